"""What the numbers of a series are outside of a model: the names of channels, their units' scale, and classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator

from reservoir_hw.core.errors import ShapeError


def _printable(text: str) -> str:
    """Refuse what a terminal would obey."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be printed")
    return text


LONGEST_NAME = 200
"""Characters in the name of a column or a class."""

Text = Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_printable)]


class ChannelFormat(BaseModel):
    """A channel: a model works with (value - zero) * gain, `value` being what the user's numbers are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Text
    zero: FiniteFloat = 0.0
    gain: Annotated[FiniteFloat, Field(gt=0)] = 1.0


class Scale:
    """Zeros and gains of channels, made once for arrays (..., channels)."""

    def __init__(self, channels: Sequence[ChannelFormat]) -> None:
        self.zero = np.array([one.zero for one in channels], np.float64)
        self.gain = np.array([one.gain for one in channels], np.float64)

    def to_model(self, values: np.ndarray) -> np.ndarray:
        """What a model works with, in float64."""
        return (values - self.zero) * self.gain

    def to_user(self, values: np.ndarray) -> np.ndarray:
        """The user's numbers, in float64."""
        return values / self.gain + self.zero


class SeriesFormat(BaseModel):
    """Inputs and outputs of a model as its user knows them.

    Outputs that are the inputs of the next step have the names of the inputs: such a model can go on alone. Others,
    such as inputs of later steps, have other names.

    With `classes` the outputs are scores of these, one for each, and a series has one answer: the class with the
    largest mean over its steps (`decide` mean), or at its last step. Steps before `decide_from` have no part in a
    mean, unless there are no others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: Annotated[tuple[ChannelFormat, ...], Field(min_length=1)]
    outputs: tuple[ChannelFormat, ...] = ()
    classes: tuple[Text, ...] = ()
    decide: Literal["mean", "last"] = "mean"
    decide_from: NonNegativeInt = 0

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if bool(self.outputs) == bool(self.classes):
            raise ValueError("a series has either outputs or classes")
        for names in (self.input_names, self.output_names):
            if len(set(names)) != len(names):
                raise ValueError(f"a name occurs twice: {', '.join(sorted(names))}")
        return self

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of the columns that a model takes."""
        return tuple(one.name for one in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of what a model answers: values, or scores of classes."""
        return self.classes or tuple(one.name for one in self.outputs)

    @cached_property
    def input_scale(self) -> Scale:
        """Of inputs."""
        return Scale(self.inputs)

    @cached_property
    def output_scale(self) -> Scale:
        """Of outputs; scores of classes are as they are."""
        return Scale(self.outputs or [ChannelFormat(name=name) for name in self.classes])

    def model_inputs(self, values: np.ndarray) -> np.ndarray:
        """What the model is given for values (..., inputs), in float64."""
        return self.input_scale.to_model(np.asarray(values))

    def user_inputs(self, values: np.ndarray) -> np.ndarray:
        """The user's values for what the model is given (..., inputs), in float64."""
        return self.input_scale.to_user(np.asarray(values))

    def model_targets(self, values: np.ndarray) -> np.ndarray:
        """What the model learns for values (..., outputs), in float64."""
        return self.output_scale.to_model(np.asarray(values))

    def user_outputs(self, values: np.ndarray) -> np.ndarray:
        """The user's values for what the model answers (..., outputs), in float64."""
        return self.output_scale.to_user(np.asarray(values))

    def scores_of(self, outputs: np.ndarray) -> np.ndarray:
        """(classes,), by which a series with the outputs (time, classes) is decided. `ShapeError` for no step."""
        if not len(outputs):
            raise ShapeError("a series without steps has no class")
        if self.decide == "last":
            return outputs[-1]
        first = self.decide_from if self.decide_from < len(outputs) else 0
        return np.asarray(np.mean(outputs[first:], axis=0, dtype=np.float64))

    def class_of(self, outputs: np.ndarray) -> str:
        """The answer for the outputs (time, classes) of one series."""
        return self.classes[int(np.argmax(self.scores_of(outputs)))]
