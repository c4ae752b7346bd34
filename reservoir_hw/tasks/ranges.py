"""What inputs and targets were in training: what tells later whether a model is asked for something else."""

from __future__ import annotations

import numpy as np

from reservoir_hw.core.series_format import SeriesFormat

_ROWS = 1_000_000
"""That points within the ends are taken of, at most."""


def ranges_of(
    inputs: np.ndarray, targets: np.ndarray, valid: np.ndarray, series: SeriesFormat | None
) -> dict[str, dict[str, list[float]]]:
    """Ends of each channel of inputs and targets (batch, time, channels), and the points 0.1 % from them.

    They are in the user's numbers. Padding and steps that are not `valid` (batch, time) are left out.
    """
    found = {}
    users = (None, None) if series is None else (series.user_inputs, series.user_outputs)
    for name, values, to_user in zip(("inputs", "targets"), (inputs, targets), users, strict=True):
        rows = values[:, : valid.shape[1]][valid[:, : values.shape[1]]]
        most = rows[:: max(1, -(-len(rows) // _ROWS))]
        # Numbers that occur, inwards: of few rows the one at each end is left out all the same.
        low, high = np.quantile(most, 0.001, axis=0, method="higher"), np.quantile(most, 0.999, axis=0, method="lower")
        ends = np.array([rows.min(axis=0), rows.max(axis=0), low, high], np.float64)
        keys = ("low", "high", "low_point", "high_point")
        found[name] = dict(zip(keys, (ends if to_user is None else to_user(ends)).tolist(), strict=True))
    return found
