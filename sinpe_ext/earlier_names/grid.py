"""`sinpe_ext.grid`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.encodings import grid

sys.modules[__name__] = grid
