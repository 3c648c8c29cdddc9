"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext.encoding`."""

import sys

from sinpe_ext.encodings import encoding

sys.modules[__name__] = encoding
