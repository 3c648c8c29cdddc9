"""Positions where an encoding is hardest to compute; recorded, so that a GPU machine does not need mpmath."""

from __future__ import annotations

# (dim, position, pair) where a sine or cosine is closest to zero. There, a rotation in float64 alone is off by 3 to 60
# float32 ULP, a 64-bit phase by more than 1.
CLOSEST = ((512, 7199, 35), (512, 81665, 13), (512, 408325, 77), (512, 3803902, 50), (768, 97253, 53))
