"""What the numbers of a series are outside of a model: the names of channels, their units' scale, and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _printable(text: str) -> str:
    """Refuse what a terminal would obey."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be printed")
    return text


Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]


class ChannelFormat(BaseModel):
    """A channel: a model works with (value - zero) * gain, `value` being what the user's numbers are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Text
    zero: float = 0.0
    gain: Annotated[float, Field(gt=0)] = 1.0


class SeriesFormat(BaseModel):
    """Inputs and outputs of a model as its user knows them.

    With `classes` the outputs are scores of these, one for each, and a series has one answer: the class with the
    largest mean over its steps (`decide` mean), or at its last step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: tuple[ChannelFormat, ...]
    outputs: tuple[ChannelFormat, ...] = ()
    classes: tuple[Text, ...] = ()
    decide: Literal["mean", "last"] = "mean"

    def model_inputs(self, values: np.ndarray) -> np.ndarray:
        """What the model is given for values (..., inputs), in float64."""
        return _scaled(values, self.inputs)

    def user_inputs(self, values: np.ndarray) -> np.ndarray:
        """The user's values for what the model is given (..., inputs), in float64."""
        return _unscaled(values, self.inputs)

    def model_targets(self, values: np.ndarray) -> np.ndarray:
        """What the model learns for values (..., outputs), in float64."""
        return _scaled(values, self.outputs)

    def user_outputs(self, values: np.ndarray) -> np.ndarray:
        """The user's values for what the model answers (..., outputs), in float64."""
        return _unscaled(values, self.outputs)

    def class_of(self, outputs: np.ndarray) -> str:
        """The answer for the outputs (time, classes) of one series."""
        scores = outputs[-1] if self.decide == "last" else np.mean(outputs, axis=0, dtype=np.float64)
        return self.classes[int(np.argmax(scores))]


def _scaled(values: np.ndarray, channels: Sequence[ChannelFormat]) -> np.ndarray:
    zero, gain = _numbers(channels)
    return (np.asarray(values, np.float64) - zero) * gain


def _unscaled(values: np.ndarray, channels: Sequence[ChannelFormat]) -> np.ndarray:
    zero, gain = _numbers(channels)
    return np.asarray(values, np.float64) / gain + zero


def _numbers(channels: Sequence[ChannelFormat]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([one.zero for one in channels]), np.array([one.gain for one in channels])
