"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext.reference_grid`."""

import sys

from sinpe_ext.reference import grid_add

sys.modules[__name__] = grid_add
