"""`sinpe_ext._swap_detr` in pickles of swapped modules that were written up to version 0.1."""

from sinpe_ext.integrations.detr import *  # noqa: F403
