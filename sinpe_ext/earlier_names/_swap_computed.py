"""`sinpe_ext._swap_computed`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.integrations import computed

sys.modules[__name__] = computed
