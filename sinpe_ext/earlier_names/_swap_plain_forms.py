"""`sinpe_ext._swap_plain_forms` in pickles of swapped modules that were written up to version 0.1."""

from sinpe_ext.integrations.plain_forms import *  # noqa: F403
