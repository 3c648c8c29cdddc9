"""`sinpe_ext.grid` in pickles that were written up to version 0.1."""

from sinpe_ext.encodings.grid import GridEncoding as GridEncoding
from sinpe_ext.encodings.grid import Piece as Piece
