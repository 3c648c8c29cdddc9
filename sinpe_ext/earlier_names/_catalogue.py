"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext._catalogue`."""

import sys

from sinpe_ext.encodings import catalogue

sys.modules[__name__] = catalogue
