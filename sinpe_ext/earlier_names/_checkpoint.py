"""`sinpe_ext._checkpoint` in pickles of layers that were written up to version 0.1."""

from sinpe_ext.modules.checkpoint import compare_table as compare_table
from sinpe_ext.modules.checkpoint import write_table as write_table
