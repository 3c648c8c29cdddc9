"""`sinpe_ext._swap_diffusers` in pickles of swapped modules that were written up to version 0.1."""

from sinpe_ext.integrations.diffusers import *  # noqa: F403
