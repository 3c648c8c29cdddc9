"""`sinpe_ext._swap_plain_forms`, as pickles of version 0.1 name it."""

import sys

from sinpe_ext.integrations import plain_forms

sys.modules[__name__] = plain_forms
