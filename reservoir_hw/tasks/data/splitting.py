"""Which series, and which of their steps, are learned from and which are judged."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.series_format import ChannelFormat, SeriesFormat
from reservoir_hw.core.words import counted
from reservoir_hw.tasks.data.configuration import DataSettings, FoldsConfig, TestConfig
from reservoir_hw.tasks.data.reading import Found, Series, of_files, with_targets
from reservoir_hw.tasks.task import stratified

SHARE = 0.25
"""The share of the data that becomes the test by default. `test: none` never comes here."""


@dataclass(frozen=True)
class Parts:
    """Series to learn from, and series that are judged. `follows`: the test goes on where the training ends."""

    train: list[Series]
    test: list[Series]
    follows: bool = False


def parts_of(found: Found, config: DataSettings) -> Parts:
    """What the configuration asks for. Raises `ConfigurationError`."""
    series, test = found.series, config.test
    if not isinstance(test, TestConfig):
        test = TestConfig(share=test if isinstance(test, float) else SHARE)
    if config.folds is not None:
        return _fold(series, config.folds, config.fold or 0, config.washout)
    if test.files is not None:
        apart = with_targets(of_files(config, test.files, "task.test.files"), config)
        if list(apart.inputs) != list(found.inputs) or list(apart.outputs) != list(found.outputs):
            raise ConfigurationError(
                f"task.test.files: their columns are {', '.join([*apart.inputs, *apart.outputs])}, those of the "
                f"training {', '.join([*found.inputs, *found.outputs])}"
            )
        # The file of targets may serve both.
        if both := sorted(set(apart.files) & set(found.files) - {getattr(config.targets, "file", None)}):
            raise ConfigurationError(f"task.test.files: {both[0]} is in the training, too")
        found.files |= apart.files
        return Parts(series, apart.series)
    if test.rows is not None:
        return _rows(series, *test.rows)
    return shared(series, test.share or SHARE, test.seed)


def shared(series: Sequence[Series], share: float, seed: int = 0) -> Parts:
    """Split off the test. Of one series it is the end.

    Of several it is whole series: the share of each class. Series of one group stay together.
    """
    if len(series) == 1:
        cut = series[0].steps - round(share * series[0].steps)
        if not 2 <= cut <= series[0].steps - 2:
            raise ConfigurationError(
                f"task.test: {series[0].where} has {series[0].steps} rows, too few for a test of {share:.0%}"
            )
        return _rows(series, cut, series[0].steps)
    labels, groups = [one.label for one in series], _groups(series)
    # Reversed, so that the first series of each group wins.
    firsts = {group: number for number, group in reversed(list(enumerate(groups)))}
    judged_groups = stratified([labels[number] for number in firsts.values()], share, seed)
    return _divided(series, {group for group, chosen in zip(firsts, judged_groups, strict=True) if chosen})


def _groups(series: Sequence[Series]) -> list[str | int]:
    """The group of each series. A series without a group gets its number as a group of its own."""
    return [number if one.group is None else one.group for number, one in enumerate(series)]


def _divided(series: Sequence[Series], judged: Container[str | int]) -> Parts:
    """The series of these groups are the test."""
    parts = Parts([], [])
    for one, group in zip(series, _groups(series), strict=True):
        (parts.test if group in judged else parts.train).append(one)
    return parts


def _rows(series: Sequence[Series], first: int, stop: int) -> Parts:
    if len(series) != 1:
        raise ConfigurationError(f"task.test: rows are those of one series, and there are {len(series)}: name files")
    (one,) = series
    if one.targets is None:
        raise ConfigurationError("task.test: a single series with one class cannot be learned and judged: give several")
    if stop - first < 2:
        raise ConfigurationError(f"task.test: rows {first} to {stop} are fewer than the 2 rows that a test needs")
    if first < 0 or stop > one.steps:
        raise ConfigurationError(
            f"task.test: rows {first} to {stop} do not lie within the {one.steps} rows of {one.where}"
        )
    before, behind = one.part(0, first), one.part(stop, one.steps)
    train = [part for part in (before, behind) if part.steps >= 2]
    if not train:
        raise ConfigurationError(f"task.test: rows {first} to {stop} leave nothing of {one.where} to learn from")
    return Parts(train, [one.part(first, stop)], follows=len(train) == 1 and train[0] is before)


def _fold(series: Sequence[Series], folds: FoldsConfig, number: int, washout: int) -> Parts:
    if len(series) > 1:
        groups = _groups(series)
        names = list(dict.fromkeys(groups))
        label_of = {group: one.label for one, group in zip(series, groups, strict=True)}
        fold_of = _dealt([label_of[name] for name in names], folds.count, folds.seed)
        parts = _divided(series, {name for name, fold in zip(names, fold_of, strict=True) if fold == number})
        if not parts.train or not parts.test:
            raise ConfigurationError(f"task.folds: {len(names)} series or groups are too few for {folds.count} folds")
        return parts
    (one,) = series
    if one.targets is None:
        raise ConfigurationError(
            "task.folds: a single series with one class cannot be learned and judged: give several"
        )
    gap = washout if folds.gap_steps is None else folds.gap_steps
    forward = folds.order == "time"
    ends = np.linspace(0, one.steps, folds.count + 1 + forward).astype(int)
    first, stop = (int(end) for end in ends[number + forward : number + forward + 2])
    if stop - first < 2:
        raise ConfigurationError(
            f"task.folds: fold {number} of {folds.count} has {counted(stop - first, 'step')} to judge, and at least 2 "
            "are needed: take fewer folds"
        )
    parts = [one.part(0, max(0, first - gap)), *([] if forward else [one.part(min(stop + gap, one.steps), one.steps)])]
    train = [part for part in parts if part.steps > washout + 1]
    if not train:
        raise ConfigurationError(
            f"task.folds: fold {number} of {folds.count} leaves {max(part.steps for part in parts)} steps to learn "
            f"from, with a gap of {gap} and a washout of {washout}: take fewer folds, or a smaller gap_steps"
        )
    return Parts(train, [one.part(first, stop)])


def _dealt(labels: Sequence[str | None], count: int, seed: int) -> list[int]:
    """A fold for each, those of one label dealt out in turn."""
    rng, found, turn = generator(seed, "folds of series"), [0] * len(labels), 0
    for label in dict.fromkeys(labels):
        for member in rng.permutation([number for number, own in enumerate(labels) if own == label]):
            found[member], turn = turn % count, turn + 1
    return found


# ---- How the user's numbers are scaled, from statistics of the training data.


# Unscaled numbers reach a device as float32. From the lowest to the highest there must be at least 100 float32 steps.
_STEPS = 100
# Whole numbers are exact up to 2^24.
_WHOLE = 2**24


def format_of(config: DataSettings, found: Found, train: Sequence[Series], classes: Sequence[str]) -> SeriesFormat:
    """Zero and gain of each channel. Raises `ConfigurationError` for numbers that float32 cannot tell apart."""
    scale, ends = config.scale, _Statistics([one.inputs for one in train])
    inputs = _channels(found.inputs, ends, scale.inputs, scale.margin, "inputs")
    if classes:
        first = config.washout if config.judge_from is None else config.judge_from
        return SeriesFormat(inputs=inputs, classes=tuple(classes), decide=config.decide, decide_from=first)
    if config.closed_loop is not None:
        # Its answers are its next inputs.
        return SeriesFormat(inputs=inputs, outputs=inputs)
    known = [one.targets[~np.isnan(one.targets).any(axis=1)] for one in train if one.targets is not None]
    ends = _Statistics(known)
    return SeriesFormat(inputs=inputs, outputs=_channels(found.outputs, ends, scale.targets, scale.margin, "targets"))


class _Statistics:
    """Of the columns of some series, in float64."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        parts = [part for part in parts if len(part)]
        if not parts:
            raise ConfigurationError("task: no row of the training has a target")
        count = sum(map(len, parts))
        self.low = np.min([part.min(axis=0) for part in parts], axis=0)
        self.high = np.max([part.max(axis=0) for part in parts], axis=0)
        self.mean = np.sum([part.sum(axis=0) for part in parts], axis=0) / count
        squares = np.zeros(len(self.mean))
        for part in parts:
            for column in range(len(squares)):
                # A column at a time: a copy of all would take as much again.
                squares[column] += np.square(part[:, column] - self.mean[column]).sum()
        self.deviation = np.sqrt(squares / count)


def _channels(
    names: Sequence[str], of: _Statistics, how: Literal["range", "standard", "none"], margin: float, what: str
) -> tuple[ChannelFormat, ...]:
    found = []
    for column, name in enumerate(names):
        low, high = float(of.low[column]), float(of.high[column])
        if how == "none":
            _check_resolution(name, low, high, what)
            zero, reach = 0.0, 1.0
        elif how == "standard":
            zero = float(of.mean[column])
            reach = float(of.deviation[column]) if low < high else 0.0
        else:
            zero, reach = (low + high) / 2, (high - low) * (0.5 + margin)
        found.append(ChannelFormat(name=name, zero=zero, gain=1 / reach if reach else 1.0))
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
