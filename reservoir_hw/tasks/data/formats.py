"""Where the numbers of a user's data are brought to: statistics of the training, as a `SeriesFormat`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.series_format import ChannelFormat, SeriesFormat
from reservoir_hw.tasks.data.configuration import DataSettings
from reservoir_hw.tasks.data.reading import Found, Series

# Numbers that are driven as they are reach a device in float32: so many of its steps must lie within a spread.
_STEPS = 100
_WHOLE = 2**24


def format_of(config: DataSettings, found: Found, train: Sequence[Series], classes: Sequence[str]) -> SeriesFormat:
    """Zero and gain of each channel. Raises `ConfigurationError` for numbers that float32 cannot tell apart."""
    scale, ends = config.scale, _Statistics(len(found.inputs), [one.inputs for one in train])
    inputs = _channels(found.inputs, ends, scale.inputs, scale.margin, "inputs")
    if classes:
        first = config.washout if config.judge_from is None else config.judge_from
        return SeriesFormat(inputs=inputs, classes=tuple(classes), decide=config.decide, decide_from=first)
    if config.closed_loop is not None:
        # Its answers are its next inputs.
        return SeriesFormat(inputs=inputs, outputs=inputs)
    known = [one.targets[~np.isnan(one.targets).any(axis=1)] for one in train if one.targets is not None]
    ends = _Statistics(len(found.outputs), known)
    return SeriesFormat(inputs=inputs, outputs=_channels(found.outputs, ends, scale.targets, scale.margin, "targets"))


class _Statistics:
    """Of the columns of some series, in float64."""

    def __init__(self, columns: int, parts: Sequence[np.ndarray]) -> None:
        parts = [part for part in parts if len(part)]
        if not parts:
            raise ConfigurationError("task: no row of the training has a target")
        count = sum(map(len, parts))
        self.low = np.min([part.min(axis=0) for part in parts], axis=0)
        self.high = np.max([part.max(axis=0) for part in parts], axis=0)
        self.mean = np.sum([part.sum(axis=0) for part in parts], axis=0) / count
        squares = np.zeros(columns)
        for part in parts:
            for column in range(columns):
                # A column at a time: a copy of all would take as much again.
                squares[column] += np.square(part[:, column] - self.mean[column]).sum()
        self.deviation = np.sqrt(squares / count)


def _channels(
    names: Sequence[str], of: _Statistics, how: Literal["range", "standard", "none"], margin: float, what: str
) -> tuple[ChannelFormat, ...]:
    found = []
    for column, name in enumerate(names):
        low, high, deviation = float(of.low[column]), float(of.high[column]), float(of.deviation[column])
        if how == "none":
            _check_resolution(name, low, high, what)
            found.append(ChannelFormat(name=name))
        elif how == "standard":
            gain = 1.0 if high == low or deviation == 0 else 1 / deviation
            found.append(ChannelFormat(name=name, zero=float(of.mean[column]), gain=gain))
        else:
            reach = (high - low) * (0.5 + margin)
            found.append(ChannelFormat(name=name, zero=(low + high) / 2, gain=1.0 if reach == 0 else 1 / reach))
    return tuple(found)


def _check_resolution(name: str, low: float, high: float, what: str) -> None:
    largest = max(abs(low), abs(high))
    if low < high and high - low < _STEPS * float(np.spacing(np.float32(largest))):
        raise ConfigurationError(
            f"task.scale.{what}: the column {name!r} goes from {low:.12g} to {high:.12g}, which float32 can hardly "
            "tell apart: scale it (standard, or range)"
        )
    if largest > _WHOLE and low == round(low) and high == round(high):
        raise ConfigurationError(
            f"task.scale.{what}: the column {name!r} reaches {largest:.12g}, and float32 knows whole numbers up to "
            f"{_WHOLE} only: scale it (standard, or range)"
        )
