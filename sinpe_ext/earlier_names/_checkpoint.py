"""`sinpe_ext._checkpoint`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.modules import checkpoint

sys.modules[__name__] = checkpoint
