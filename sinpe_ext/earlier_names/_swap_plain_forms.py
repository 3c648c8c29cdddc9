"""Alias for pickles of version 0.1, which refer to this module as `sinpe_ext._swap_plain_forms`."""

import sys

from sinpe_ext.integrations import plain_forms

sys.modules[__name__] = plain_forms
