"""`sinpe_ext._swap_diffusers`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.integrations import diffusers

sys.modules[__name__] = diffusers
