"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext.grid`."""

import sys

from sinpe_ext.encodings import grid

sys.modules[__name__] = grid
