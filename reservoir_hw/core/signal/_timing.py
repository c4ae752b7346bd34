"""Virtual nodes in time: from node values to the samples of a waveform, and back."""

from __future__ import annotations

from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ShapeError

# Part of a sample period by which rounding may place a time before the sample that begins there.
_ROUNDING = 1e-6


class SampleAndHold(Config):
    """Each value held for `points_per_node` samples of a generator: theta is a whole number of sample periods."""

    points_per_node: PositiveInt
    sample_rate_hz: PositiveFloat = Field(description="of the generator, as it was read back")

    @property
    def theta_s(self) -> float:
        """Duration of one virtual node."""
        return self.points_per_node / self.sample_rate_hz

    def apply(self, values: Any) -> NDArray[Any]:
        """Values (..., steps, nodes) as samples (..., steps · nodes · points_per_node) of the same dtype."""
        values = np.asarray(values)
        if values.ndim < 2:
            raise ShapeError(f"SampleAndHold takes values (..., steps, nodes), their shape is {values.shape}")
        return np.repeat(values.reshape(*values.shape[:-2], -1), self.points_per_node, axis=-1)


class Sampler(Config):
    """Which samples of a digitizer are the state of which virtual node.

    Sample k stands for the time from k to k + 1 sample periods. The window of node i in step n begins at
    delay + (n nodes + i) theta; digitizer and generator may run at different rates.
    """

    theta_s: PositiveFloat = Field(description="duration of one virtual node")
    sample_rate_hz: PositiveFloat = Field(description="of the digitizer, as it was read back")
    delay_s: NonNegativeFloat = Field(default=0.0, description="from the first sample to the window of the first node")
    position: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.5, description="where in a window its sample is taken, 0: at its beginning, towards 1: at its end"
    )
    average: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of a window, around `position`, over which samples are averaged; 0: one sample"
    )

    @model_validator(mode="after")
    def _within_a_window(self) -> Self:
        if self.theta_s * self.sample_rate_hz < 1 - _ROUNDING:
            raise ValueError(
                f"a virtual node of {self.theta_s:g} s has less than one sample at {self.sample_rate_hz:g} Hz: "
                "take a higher sample rate or a longer theta"
            )
        if self.position < self.average / 2 or self.position + self.average / 2 > 1:
            raise ValueError(
                f"an average over {self.average:g} of a window around {self.position:g} reaches beyond the window"
            )
        return self

    @property
    def samples_averaged(self) -> int:
        """How many samples make one state."""
        return max(1, int(self.average * self.theta_s * self.sample_rate_hz + _ROUNDING))

    def samples_needed(self, steps: int, nodes: int) -> int:
        """How many samples the digitizer must take for `steps` steps of `nodes` nodes."""
        return int(self._first(np.array(steps * nodes - 1))) + self.samples_averaged

    def apply(self, samples: Any, steps: int, nodes: int) -> NDArray[Any]:
        """The states (..., steps, nodes) in samples (..., time). Raises `ShapeError` if there are too few samples."""
        samples = np.asarray(samples)
        if samples.ndim == 0 or steps < 1 or nodes < 1:
            raise ShapeError(
                f"Sampler takes samples (..., time) and at least one step and node, not {samples.shape}, "
                f"{steps} steps and {nodes} nodes"
            )
        needed = self.samples_needed(steps, nodes)
        if samples.shape[-1] < needed:
            raise ShapeError(
                f"{steps} steps of {nodes} nodes of {self.theta_s:g} s need {needed} samples at "
                f"{self.sample_rate_hz:g} Hz, the waveform has {samples.shape[-1]}: acquire for longer"
            )
        first = self._first(np.arange(steps * nodes))
        states = samples[..., first]
        if self.samples_averaged > 1:
            states = samples[..., first[:, None] + np.arange(self.samples_averaged)].mean(axis=-1)
        return states.reshape(*samples.shape[:-1], steps, nodes)

    def _first(self, window: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first sample taken in each window; windows are counted through all steps."""
        begin = self.delay_s + (window + self.position - self.average / 2) * self.theta_s
        return np.floor(begin * self.sample_rate_hz + _ROUNDING).astype(np.int64)
