"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext._backend_info`."""

import sys

from sinpe_ext.backend import info

sys.modules[__name__] = info
