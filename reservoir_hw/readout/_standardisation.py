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
    centred = bias or standardise
    # Without centring a constant column is as good as any, and only zeros say nothing.
    dead = np.sqrt(variance) <= DEAD_DIGITS * precision * magnitude if centred else magnitude == 0
    keep = np.flatnonzero(~dead)
    centre = -shift
    if centred:
        centre[:features] = mean[:features]
    if bias:
        centre[features:] = mean[features:]
    scale = np.sqrt(variance[keep]) if standardise else np.ones(keep.size)
    return Design(keep=keep, features=features, centre=centre, scale=scale, constants=int(bias))
