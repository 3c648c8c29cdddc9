"""`sinpe_ext.reference_grid`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.reference import grid_add

sys.modules[__name__] = grid_add
