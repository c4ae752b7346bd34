"""Write 300 steps of NARMA10: python make_series.py INPUTS TARGETS."""

from __future__ import annotations

import sys

import numpy as np

from reservoir_hw.tasks.narma import Narma


def series() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (300, 1), which the training of narma.yaml has not seen."""
    task = Narma(train_steps=2000, test_steps=300)
    return task.test.inputs[0], task.test.targets[0]


if __name__ == "__main__":
    for path, values in zip(sys.argv[1:3], series(), strict=True):
        np.savetxt(path, values, fmt="%.6f")
