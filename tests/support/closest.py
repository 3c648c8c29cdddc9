"""Where an encoding is hardest to compute: known without mpmath, so that a machine with a card need not have it."""

from __future__ import annotations

# (dim, position, pair) where a sine or cosine comes closest to zero. A rotation in float64 alone is 3 to 60 float32 ULP
# off there, a phase of 64 bits more than 1.
CLOSEST = ((512, 7199, 35), (512, 81665, 13), (512, 408325, 77), (512, 3803902, 50), (768, 97253, 53))
