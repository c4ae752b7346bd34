"""What the numbers of a series are outside of a model: the names of channels, their units' scale, and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import ConfigurationError, ShapeError


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


# ---- Series in tables of pandas and arrays of xarray: channels by their names, and answers of the kind that was given.


def is_array(value: Any) -> bool:
    """Whether this is an array, a tensor, a table or a list of such, and no setting."""
    if isinstance(value, list | tuple):
        return bool(value) and all(is_array(one) for one in value)
    return getattr(value, "ndim", 0) > 0 and (hasattr(value, "__array__") or hasattr(value, "to_numpy"))


def series_of(X: Any) -> Any:
    """Series as they were given. Raises `ShapeError` for what is none."""
    if not (is_array(X) or isinstance(X, Mapping | str)) and (hasattr(X, "__array__") or isinstance(X, list | tuple)):
        X = np.asarray(X)
    if hasattr(X, "toarray") or not is_array(X):
        raise ShapeError(
            f"{type(X).__name__} is no series: give an array (time, channels), a table, or a list of them, not sparse"
        )
    if "complex" in str(getattr(X, "dtype", "")):
        raise ShapeError("Complex data not supported: give real numbers")
    return X


def with_columns(X: Any, names: Sequence[str], what: str) -> Any:
    """Tables, and DataArrays with named channels, with the columns of the training in their order.

    Without `names` they stay as they are. Raises `ConfigurationError` that names `what` where a column is missing.
    """
    if isinstance(X, list | tuple):
        return [with_columns(one, names, what) for one in X]
    there = {str(column): column for column in columns_of(X)}
    if not len(names) or not there:
        return X
    if missing := [name for name in names if name not in there]:
        raise ConfigurationError(f"{what} has no column {missing[0]!r}, which the model was trained with")
    wanted = [there[name] for name in names]
    return X[wanted] if hasattr(X, "columns") else X.sel({X.dims[-1]: wanted})


def columns_of(X: Any) -> list[Any]:
    """What a table, or a DataArray of xarray, calls its channels; nothing for others."""
    if hasattr(X, "columns"):
        return list(X.columns)
    dims = getattr(X, "dims", ())
    return X.coords[dims[-1]].values.tolist() if len(dims) > 1 and dims[-1] in X.coords else []


def as_given(answer: np.ndarray, one: Any, names: Sequence[str]) -> Any:
    """Answers (time, outputs), or (time,), to a series, in the library of that series: tables with the same index.

    `names` are those of the outputs.
    """
    flat = answer.ndim == 1
    if hasattr(one, "columns") or hasattr(one, "to_frame"):
        table = type(one if hasattr(one, "columns") else one.to_frame())
        frame = table(answer[:, None] if flat else answer, index=one.index, columns=list(names))
        return frame[names[0]] if flat else frame
    if hasattr(one, "dims"):
        dims, coords = (one.dims[0],) if flat else (one.dims[0], "output"), {} if flat else {"output": list(names)}
        if one.dims[0] in one.coords:
            coords[one.dims[0]] = one.coords[one.dims[0]]
        return type(one)(answer, dims=dims, coords=coords)
    return arrays.like(answer, one)
