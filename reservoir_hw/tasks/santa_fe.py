"""The chaotic laser of the Santa Fe competition (data set A), predicted some steps ahead."""

from __future__ import annotations

import io

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks import datasets
from reservoir_hw.tasks.prediction.task import Prediction

STEPS = 10_093


def laser_series() -> np.ndarray:
    """The intensity of a far-infrared NH3 laser as an 8-bit converter recorded it: (10093,), float64, 0 to 255.

    Data set A of the competition with its continuation (Weigend & Gershenfeld 1993; Hübner et al. 1989): data set
    `santa_fe_laser` of `datasets`, whose errors it raises.
    """
    return np.load(io.BytesIO(datasets.contents("santa_fe_laser")), allow_pickle=False)[:, 0].astype(np.float64)


class SantaFe(Prediction):
    """Say what the intensity of a chaotic laser will be (`laser_series` is the data, `Prediction` has the metrics).

    Inputs are the intensity, standardised by mean and standard deviation over the training inputs, (1, time, 1):
    nothing of the test enters them. The pulsations grow and break down at intervals of some hundred steps. The
    breakdowns are what is hard to predict, and few: an error depends on which piece of the series the test is.
    Train and test are consecutive, from `first_step` on.

    Raises `ConfigurationError` for arguments out of range, and as `laser_series`.
    """

    title = "Santa Fe laser"

    def __init__(
        self, first_step: int = 0, ahead_steps: int = 1, train_steps: int = 3000, test_steps: int = 1000
    ) -> None:
        needed = self.steps_needed(ahead_steps, train_steps, test_steps, None)
        if first_step < 0 or first_step + needed > STEPS:
            raise ConfigurationError(
                f"first_step {first_step}, train_steps {train_steps}, test_steps {test_steps} and ahead_steps "
                f"{ahead_steps} do not lie within the {STEPS} steps of the series."
            )
        series = laser_series()[first_step : first_step + needed]
        known = series[:train_steps]
        self.split(((series - known.mean()) / known.std())[:, None], ahead_steps, train_steps, None)
