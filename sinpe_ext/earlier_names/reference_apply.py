"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext.reference_apply`."""

import sys

from sinpe_ext.reference import apply

sys.modules[__name__] = apply
