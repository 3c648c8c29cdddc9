"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext._identify`."""

import sys

from sinpe_ext import identification

sys.modules[__name__] = identification
