"""`sinpe_ext._swap_computed` in pickles of swapped modules that were written up to version 0.1."""

from sinpe_ext.integrations.computed import *  # noqa: F403
