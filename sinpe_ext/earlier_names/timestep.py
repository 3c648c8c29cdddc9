"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext.timestep`."""

import sys

from sinpe_ext.modules import timestep

sys.modules[__name__] = timestep
