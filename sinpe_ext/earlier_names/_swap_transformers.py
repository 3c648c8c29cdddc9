"""`sinpe_ext._swap_transformers`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.integrations import transformers

sys.modules[__name__] = transformers
