"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext._swap_diffusers`."""

import sys

from sinpe_ext.integrations import diffusers

sys.modules[__name__] = diffusers
