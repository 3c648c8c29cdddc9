"""`sinpe_ext._swap_dropin` in pickles of swapped modules that were written up to version 0.1."""

from sinpe_ext.integrations.dropin import *  # noqa: F403
from sinpe_ext.integrations.dropin import _rebuild as _rebuild
