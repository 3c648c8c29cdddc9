"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext._backend`."""

import sys

from sinpe_ext.backend import loader

sys.modules[__name__] = loader
