from __future__ import annotations
from ._identify_candidates import Found
def search(table, lengths):
    return Found(reason="grid")
def likely_shapes(flat):
    return []
