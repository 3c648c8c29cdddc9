"""`sinpe_ext._catalogue`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.encodings import catalogue

sys.modules[__name__] = catalogue
