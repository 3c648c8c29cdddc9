"""`sinpe_ext._swap_dropin`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.integrations import dropin

sys.modules[__name__] = dropin
