"""`sinpe_ext._backend`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.backend import loader

sys.modules[__name__] = loader
