"""Which features vary, and in which units the penalty sees them."""

from __future__ import annotations

import numpy as np

from reservoir_hw.readout.linear._spectrum import Array, Design
from reservoir_hw.readout.linear._statistics import Statistics

# A column that moves by less than this many of its own last digits carries rounding errors only.
DEAD_DIGITS = 2.0


def design_of(statistics: Statistics, *, shift: Array, precision: Array, standardise: bool, bias: bool) -> Design:
    """The design of some rows, whose statistics are relative to `shift` (features + outputs,).

    `precision` (features,) is the machine epsilon of the numbers that the rows came in.
    """
    features = precision.size
    mean, spread = statistics.mean, np.sqrt(statistics.variance[:features])
    magnitude = np.hypot(mean[:features] + shift[:features], spread)
    # Without a bias there is no constant to take a mean off, so a constant column is as good as any.
    keep = np.flatnonzero(spread > DEAD_DIGITS * precision * magnitude if bias else magnitude > 0)
    centre = mean if bias else -shift
    scale = (spread if bias else magnitude)[keep] if standardise else None
    return Design(keep=keep, features=features, centre=centre, scale=scale, constants=int(bias))
