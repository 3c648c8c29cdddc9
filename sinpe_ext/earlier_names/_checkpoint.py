"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext._checkpoint`."""

import sys

from sinpe_ext.modules import checkpoint

sys.modules[__name__] = checkpoint
