"""The operations of the library: each file has the calls of one, its operators and their derivatives."""

# Importing one registers the operators of all.
from . import embed as embed
