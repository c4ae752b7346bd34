"""The chaotic laser of the Santa Fe competition (data set A), predicted some steps ahead."""

from __future__ import annotations

import io
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, model_validator

from reservoir_hw.tasks import datasets
from reservoir_hw.tasks.prediction.task import Prediction, PredictionConfig

STEPS = 10_093


def laser_series() -> np.ndarray:
    """The intensity of a far-infrared NH3 laser as an 8-bit converter recorded it: (10093,), float64, 0 to 255.

    Data set A of the competition with its continuation (Weigend & Gershenfeld 1993; Hübner et al. 1989): data set
    `santa_fe_laser` of `datasets`, whose errors it raises.
    """
    return np.load(io.BytesIO(datasets.contents("santa_fe_laser")), allow_pickle=False)[:, 0].astype(np.float64)


class SantaFeConfig(PredictionConfig):
    """Say what the intensity of a chaotic laser will be (Santa Fe competition, data set A)."""

    kind: Literal["santa_fe"]
    first_step: NonNegativeInt = Field(default=0, description="of the 10,093 steps of the series")
    test_steps: Annotated[int, Field(ge=2)] = 1000

    @model_validator(mode="after")
    def _within_the_series(self) -> Self:
        if self.first_step + self.series_steps > STEPS:
            raise ValueError(
                f"first_step {self.first_step}, train_steps {self.train_steps}, test_steps {self.test_steps} and "
                f"ahead_steps {self.ahead_steps} do not lie within the {STEPS} steps of the series"
            )
        return self

    def build(self) -> SantaFe:
        """A `SantaFe` with these settings."""
        return SantaFe(self)


class SantaFe(Prediction):
    """Say what the intensity of a chaotic laser will be (`laser_series` is the data, `Prediction` has the metrics).

    Inputs are the intensity, standardised by mean and standard deviation over the training inputs, (1, time, 1):
    nothing of the test enters them. The pulsations grow and break down at intervals of some hundred steps. The
    breakdowns are what is hard to predict, and few: an error depends on which piece of the series the test is.
    Train and test are consecutive, from `first_step` on.

    Takes a configuration, or the fields of `SantaFeConfig` as keywords. Raises `ConfigurationError` for settings out
    of range, and as `laser_series`.
    """

    title = "Santa Fe laser"

    def __init__(self, config: SantaFeConfig | None = None, /, **settings: Any) -> None:
        config = SantaFeConfig.of(config, settings)
        series = laser_series()[config.first_step :][: config.series_steps]
        known = series[: config.train_steps]
        # The laser's intensity was recorded in 8 bits.
        low, high = (np.array([0.0, 255.0]) - known.mean()) / known.std()
        self.input_range = (float(low), float(high))
        self.split(((series - known.mean()) / known.std())[:, None], config)
