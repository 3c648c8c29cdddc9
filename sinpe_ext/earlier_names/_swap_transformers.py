"""`sinpe_ext._swap_transformers` in pickles of swapped modules that were written up to version 0.1."""

from sinpe_ext.integrations.transformers import *  # noqa: F403
