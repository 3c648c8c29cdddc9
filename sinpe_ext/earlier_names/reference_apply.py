"""`sinpe_ext.reference_apply`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.reference import apply

sys.modules[__name__] = apply
