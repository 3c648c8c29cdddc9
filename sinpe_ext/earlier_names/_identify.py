"""`sinpe_ext._identify`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext import identification

sys.modules[__name__] = identification
