"""`sinpe_ext._backend_info`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.backend import info

sys.modules[__name__] = info
