"""Whether inputs are independent from step to step, which capacities presuppose."""

from __future__ import annotations

import numpy as np

from reservoir_hw.measures._blocks import Recording

_LAGS = 100

# A correlation of independent inputs is beyond this many standard errors once in a billion lags.
_SUSPICIOUS = 6.0


def strongest_correlation(recording: Recording, power: int = 1) -> tuple[int, float] | None:
    """Lag and value of the largest autocorrelation of an input channel, or of its `power`.

    None where all may be chance. Inputs whose squares are correlated (an amplitude that changes, a pause) are not
    independent although they are not correlated.
    """
    worst: tuple[int, float] | None = None
    for channel in np.moveaxis(recording.inputs**power, 2, 0):
        moved = channel - channel.mean()
        if (moved**2).mean() <= 1e-12 * (channel**2).mean():
            # The squares of ±1.
            continue
        samples, steps = moved.size, moved.shape[1]
        for lag in range(1, min(_LAGS, steps - 1) + 1):
            value = float((moved[:, lag:] * moved[:, :-lag]).sum() / (moved**2).sum())
            if abs(value) > max(_SUSPICIOUS / samples**0.5, abs(worst[1]) if worst else 0.0):
                worst = lag, value
    return worst


def correlation_note(recording: Recording) -> str:
    """A sentence for results on correlated inputs; empty for independent ones."""
    found = strongest_correlation(recording)
    if found is None:
        return ""
    lag, value = found
    return (
        f"The inputs are correlated over time ({value:.2f} at lag {lag}): different delays hold the same information, "
        "and the sum counts it more than once."
    )
