"""`sinpe_ext.timestep`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.modules import timestep

sys.modules[__name__] = timestep
