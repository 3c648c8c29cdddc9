"""`sinpe_ext.encoding` in pickles that were written up to version 0.1."""

from sinpe_ext.encodings.encoding import Encoding as Encoding
