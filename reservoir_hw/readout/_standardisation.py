"""Which features vary, and in which units the penalty sees them."""

from __future__ import annotations

import numpy as np

from reservoir_hw.readout._spectrum import Array, Design
from reservoir_hw.readout._statistics import Statistics

# A column that moves by less than this many of its own last digits carries rounding errors only.
DEAD_DIGITS = 2.0


def design_of(statistics: Statistics, *, shift: Array, precision: Array, standardise: bool, bias: bool) -> Design:
    """The design of some rows, whose statistics are relative to `shift` (features + outputs,).

    `precision` (features,) is the machine epsilon of the numbers that the rows came in.
    """
    features = precision.size
    mean, variance = statistics.mean, statistics.variance[:features]
    magnitude = np.sqrt((mean[:features] + shift[:features]) ** 2 + variance)
    # Without a bias there is no constant to take a mean off, so a constant column is as good as any.
    dead = np.sqrt(variance) <= DEAD_DIGITS * precision * magnitude if bias else magnitude == 0
    keep = np.flatnonzero(~dead)
    centre = mean.copy() if bias else -shift
    spread = np.sqrt(variance) if bias else magnitude
    scale = spread[keep] if standardise else np.ones(keep.size)
    return Design(keep=keep, features=features, centre=centre, scale=scale, constants=int(bias))
