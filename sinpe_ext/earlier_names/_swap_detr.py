"""`sinpe_ext._swap_detr`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.integrations import detr

sys.modules[__name__] = detr
