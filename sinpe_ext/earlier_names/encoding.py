"""`sinpe_ext.encoding`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.encodings import encoding

sys.modules[__name__] = encoding
