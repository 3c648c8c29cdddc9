"""`sinpe_ext.timestep` in pickles that were written up to version 0.1."""

from sinpe_ext.modules.timestep import TimestepEncoding as TimestepEncoding
