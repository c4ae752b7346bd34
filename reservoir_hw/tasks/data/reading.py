"""The series of a user's data: read from files, arrays, a function or a trace, and checked where they enter."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.functions import import_function
from reservoir_hw.core.given import Given, give, give_targets, given
from reservoir_hw.core.series_format import LONGEST_NAME, is_array
from reservoir_hw.core.store import StateStore
from reservoir_hw.core.tables.columns import Columns, choose
from reservoir_hw.core.tables.configuration import ColumnsConfig
from reservoir_hw.core.tables.sources import Source, all_of, one_of, opened
from reservoir_hw.tasks.data.configuration import DataSettings, LabelsConfig, TargetsConfig, TestConfig
from reservoir_hw.tasks.datasets import FOLDER_VARIABLE, found_file

# Files whose steps differ by more than this share were not measured at one rate.
_SAME_RATE = 0.01

# A step that is so much longer than usual, as a share of it, is a gap.
_UNEVEN = 0.5

# Rows that are read at once.
_PIECE = 1 << 16


@dataclass(frozen=True)
class Series:
    """Inputs (time, inputs) and targets (time, outputs), float64, of one recording; or its class.

    Targets that are not known are NaN. `where` names the file, or the number among given arrays.
    """

    where: str
    inputs: np.ndarray
    targets: np.ndarray | None
    label: str | None = None
    group: str | None = None
    dtype: str = "float64"
    """That of the inputs in their source: those of a trace are driven as they are."""
    first: int = 0
    """Its first row in the recording."""

    @property
    def steps(self) -> int:
        """How long it is."""
        return len(self.inputs)

    def part(self, first: int, stop: int) -> Series:
        """Some of its steps."""
        targets = None if self.targets is None else self.targets[first:stop]
        return replace(self, inputs=self.inputs[first:stop], targets=targets, first=self.first + first)


@dataclass
class Found:
    """All series, what their channels are called, and the digest of each file."""

    series: list[Series]
    inputs: Sequence[str]
    outputs: Sequence[str]
    files: dict[str, str] = field(default_factory=dict)
    missing: int = 0
    """Rows without a target."""


def found_series(config: DataSettings) -> Found:
    """What the configuration asks for, without the files of a test of their own. Raises `ConfigurationError`."""
    if config.call is not None:
        found = _of_call(config)
    elif isinstance(config.inputs, str):
        name = next((one for one in (config.targets, config.labels) if isinstance(one, str)), None)
        found = _of_given(given(config.inputs, "task.inputs"), None if name is None else given(name, "task.targets"))
    elif config.trace is not None:
        found = _of_trace(config)
    else:
        found = of_files(config, config.files or [], "task.files")
    return with_targets(found, config)


def of_files(config: DataSettings, patterns: str | Sequence[str], key: str) -> Found:
    """The series of these files, each checked by itself and against the others."""
    paths = paths_of(patterns, key)
    targets = config.targets if isinstance(config.targets, TargetsConfig) else None
    others: Sequence[Path | None] = [None] * len(paths)
    if targets is not None and targets.file is not None:
        others = paths_of(targets.file, "task.targets.file")
        if len(others) != len(paths):
            raise ConfigurationError(
                f"task.targets.file: {len(others)} files of targets for {len(paths)} of inputs: {targets.file}"
            )
        if len(paths) > 1:
            others = _beside(paths, others)
    labels = _labels_of(config, paths)
    found, periods = Found([], (), ()), {}
    for path, other in zip(paths, others, strict=True):
        inputs, outputs, series, period = _of_file(config, path, other, labels.get(path), found.files)
        if found.series and list(inputs) != list(found.inputs):
            raise ConfigurationError(
                f"task.inputs: {path} has the columns {', '.join(inputs)}, and {paths[0]} {', '.join(found.inputs)}"
            )
        found.inputs, found.outputs = inputs, outputs
        found.series += series
        if period is not None:
            periods[path] = period
    slow, fast = (pick(periods, key=periods.__getitem__) if periods else None for pick in (max, min))
    if slow is not None and fast is not None and periods[slow] > (1 + _SAME_RATE) * periods[fast]:
        raise ConfigurationError(
            f"task.time: a step takes {periods[fast]:.6g} in {fast} and {periods[slow]:.6g} in {slow}: bring all to "
            "one rate"
        )
    if config.continuous == "files" and len(found.series) > 1:
        if targets is None:
            raise ConfigurationError("task.continuous: files of one recording have targets, not a class each")
        known = [one.targets for one in found.series if one.targets is not None]
        inputs = np.concatenate([one.inputs for one in found.series])
        found.series = [Series(found.series[0].where, inputs, np.concatenate(known) if known else None)]
    return found


def _beside(paths: Sequence[Path], others: Sequence[Path]) -> list[Path]:
    """The file of targets for each of inputs: that of the same name, whatever it ends in."""
    of_name = {path.stem: path for path in others}
    alone = [path.stem for path in paths if path.stem not in of_name]
    if alone or len({path.stem for path in paths}) < len(paths):
        raise ConfigurationError(
            f"task.targets.file: which file belongs to which is told by their names, and {(alone or ['a name'])[0]} is "
            f"not there once among {', '.join(sorted(of_name)[:4])}"
        )
    return [of_name[path.stem] for path in paths]


def paths_of(patterns: str | Sequence[str], key: str) -> list[Path]:
    """The files that are meant, each once."""
    found: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not glob.has_magic(pattern):
            found.append(found_file(pattern, key))
            continue
        folders = ["", os.environ.get(FOLDER_VARIABLE, "")]
        matches = next(
            (some for f in folders if (some := sorted(glob.glob(os.path.join(f, pattern), recursive=True)))), []
        )
        if not matches:
            raise ConfigurationError(
                f"{key}: no file matches {pattern!r} here ({Path.cwd()}), nor in {FOLDER_VARIABLE}"
            )
        found += map(Path, matches)
    if not found:
        raise ConfigurationError(f"{key}: names no file")
    return list(dict.fromkeys(found))


def _of_file(
    config: DataSettings, path: Path, other: Path | None, label: tuple[str, str | None] | None, files: dict[str, str]
) -> tuple[Sequence[str], Sequence[str], list[Series], float | None]:
    """Names of inputs and targets, the series of one file, and how long a step is."""
    targets = config.targets if isinstance(config.targets, TargetsConfig) else None
    with opened(path, config.read) as source:
        files[str(path)] = source.sha256
        inputs = _inputs(config, source, targets if other is None else None)
        values = _finite(inputs, "task.inputs")
        wanted: np.ndarray | None = None
        names: Sequence[str] = ()
        if targets is not None and targets.ahead_steps is None:
            if other is None:
                names, wanted = _targets(source, targets, inputs)
            else:
                with opened(other, config.read) as beside:
                    files[str(other)] = beside.sha256
                    names, wanted = _targets(beside, targets, None)
            if len(wanted) != len(values) or wanted.shape[1] != values.shape[1]:
                raise ConfigurationError(
                    f"task.targets: {other or path} has {wanted.shape[1]} rows of targets in {len(wanted)} series, and "
                    f"{path} {values.shape[1]} rows of inputs in {len(values)}"
                )
        chosen = [label] * len(values) if label is not None else [(None, None)] * len(values)
        if isinstance(config.labels, LabelsConfig) and config.labels.file is None:
            chosen = [(one, None) for one in _labels_in(source, config.labels.label, len(values), path)]
        pieces, period = [slice(0, values.shape[1])], None
        if config.time is not None:
            pieces, period = _pieces(source, config, values.shape[1])
    series = []
    for number, (own, group) in enumerate(chosen):
        where = str(path) if len(values) == 1 else f"{path}, series {number}"
        whole = Series(where, values[number], None if wanted is None else wanted[number], own, group)
        series += [whole.part(piece.start, piece.stop) for piece in pieces] if len(pieces) > 1 else [whole]
    return inputs.names, names, series, period


def _inputs(config: DataSettings, source: Source, targets: TargetsConfig | None) -> Columns:
    """The columns of inputs: of a table in which none are named, those that are nothing else."""
    inputs, labels, known, where = config.inputs, config.labels, source.header, str(source.path)
    assert isinstance(inputs, ColumnsConfig)
    apart: list[str | int] = []
    if known and targets is not None:
        named = (targets.columns or []) if targets.array is None else [targets.array]
        apart += all_of(named, known, len(known), f"task.targets: {where}")
    if known and config.time is not None:
        apart.append(one_of(config.time.column, known, len(known), f"task.time: {where}"))
    if isinstance(labels, LabelsConfig) and labels.file is None and labels.label in known:
        apart.append(labels.label)
    if known and inputs.columns is None:
        inputs = inputs.model_copy(update={"without": [*inputs.without, *apart]})
    return choose(source, inputs, "task.inputs")


def _targets(source: Source, targets: TargetsConfig, inputs: Columns | None) -> tuple[Sequence[str], np.ndarray]:
    columns = choose(source, targets, "task.targets")
    if inputs is not None and inputs.array is columns.array:
        both = [name for name, number in zip(columns.names, columns.numbers, strict=True) if number in inputs.numbers]
        if both:
            raise ConfigurationError(
                f"task.targets: {columns.where}: the column {both[0]!r} is among the inputs, too: name the columns of "
                "one of them"
            )
    return columns.names, _finite(columns, "task.targets", missing=targets.missing == "skip")


def _finite(columns: Columns, what: str, *, missing: bool = False) -> np.ndarray:
    """All values; NaN only where they may be `missing`."""
    values = np.empty((columns.sequences, columns.steps, len(columns.numbers)))
    # In pieces: whole arrays of a long file would be in memory several times.
    for first in range(0, columns.steps, _PIECE):
        piece = columns.read(first, min(first + _PIECE, columns.steps))
        values[:, first : first + _PIECE] = piece
        wrong = arrays.not_finite(piece, arrays.NO_NUMBER)
        if missing:
            wrong &= ~np.isnan(piece)
        if not wrong.any():
            continue
        _, row, column = (int(at[0]) for at in np.nonzero(wrong))
        empty = "is empty" if np.isnan(piece[:, row, column]).any() else "is not a finite number below 9e37"
        row += first
        hint = "; targets: {missing: skip} passes such rows over" if what == "task.targets" and "empty" in empty else ""
        raise ConfigurationError(f"{what}: {columns.place(row, column)}: the cell {empty}{hint}")
    return values


def _pieces(source: Source, config: DataSettings, rows: int) -> tuple[list[slice], float | None]:
    """The parts without a gap in time, and the usual step."""
    assert config.time is not None
    times = config.time.unit_s * source.times(config.time.column, "task.time", config.time.array)
    if len(times) != rows:
        raise ConfigurationError(f"task.time: {source.path} has {len(times)} times for {rows} rows")
    steps = np.diff(times)
    if not len(steps):
        return [slice(0, rows)], None
    if not (steps > 0).all():
        row = int((~(steps > 0)).argmax()) + 1
        again = "is the same as in the row before" if steps[row - 1] == 0 else "is not later than in the row before"
        raise ConfigurationError(
            f"task.time: {source.path}, row {row} (0 is the first row of numbers): the time {again}; sort the rows, "
            "and give daylight-saving time its offset"
        )
    usual = float(np.median(steps))
    gaps = np.flatnonzero(steps > (1 + _UNEVEN) * usual) + 1
    if len(gaps) and config.time.gaps == "refuse":
        raise ConfigurationError(
            f"task.time: {source.path}, row {gaps[0]}: {steps[gaps[0] - 1]:.6g} behind the row before it, a usual step "
            f"is {usual:.6g} ({len(gaps)} gaps): fill it, or time: {{gaps: split}} begins a new series there"
        )
    uneven = np.flatnonzero(steps < (1 - _UNEVEN) * usual)
    if len(uneven):
        raise ConfigurationError(
            f"task.time: {source.path}, row {uneven[0] + 1}: only {steps[uneven[0]]:.6g} behind the row before it, a "
            f"usual step is {usual:.6g}: bring the rows to one rate"
        )
    ends = [0, *gaps.tolist(), rows]
    return [slice(first, stop) for first, stop in itertools.pairwise(ends)], usual


def _labels_of(config: DataSettings, paths: Sequence[Path]) -> Mapping[Path, tuple[str, str | None]]:
    """Class and group of each file, where a table has them: by its name, with as many folders as the table says."""
    labels = config.labels
    if not isinstance(labels, LabelsConfig) or labels.file is None:
        return {}
    table, key = found_file(labels.file, "task.labels.file"), "task.labels.file"
    with opened(table, config.read) as source:
        names, classes = source.texts(labels.name, "task.labels.name"), source.texts(labels.label, "task.labels.label")
        groups = [None] * len(names) if labels.group is None else source.texts(labels.group, "task.labels.group")
    tests = config.test.files if isinstance(config.test, TestConfig) else None
    known = [*paths, *(paths_of(tests, "task.test.files") if tests else ())]
    found: dict[Path, tuple[str, str | None]] = {}
    for name, own, group in zip(names, classes, groups, strict=True):
        parts = Path(name).parts
        meant = [path for path in dict.fromkeys(known) if parts and path.parts[-len(parts) :] == parts]
        if len(meant) != 1:
            several = ", ".join(map(str, meant[:4])) or "none that is there"
            raise ConfigurationError(f"{key}: {table}: {name!r} stands for one file, and here it is {several}")
        if meant[0] in found:
            raise ConfigurationError(f"{key}: {table} names {name} more than once")
        if not own.strip():
            raise ConfigurationError(f"{key}: {table} has an empty label for {name}")
        found[meant[0]] = own, group
    if without := [str(path) for path in paths if path not in found]:
        raise ConfigurationError(f"{key}: {table} has no label for {', '.join(without[:4])}")
    return found


def _labels_in(source: Source, name: str, count: int, path: Path) -> list[str]:
    """The classes in the files themselves: a column that is the same in all rows, or an array with one for each."""
    if name in source.header:
        values = source.texts(name, "task.labels.label")
        if len(set(values)) > 1:
            several = ", ".join(list(dict.fromkeys(values))[:4])
            raise ConfigurationError(
                f"task.labels.label: {path} has several classes in the column {name!r} ({several}): a series has one; "
                "cut the file into series"
            )
        return values[:1] * count
    array = np.asarray(source.array(name))
    if array.shape not in ((count,), (count, 1)):
        raise ConfigurationError(
            f"task.labels.label: {path}, {name} is {array.shape}: {count} series need one class each"
        )
    return [_text(one) for one in array.ravel().tolist()]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _of_call(config: DataSettings) -> Found:
    """What the function returns, twice the same."""
    assert config.call is not None
    function = import_function(config.call, "task.call")

    def called() -> tuple[Given, Given | None]:
        try:
            answer = function(**config.params)
        except Exception as error:
            raise ConfigurationError(f"task.call: {config.call} failed: {type(error).__name__}: {error}") from error
        if isinstance(answer, Mapping):
            answer = (answer.get("inputs"), answer.get("targets"))
        if not (isinstance(answer, tuple) and len(answer) == 2 and is_array(answer[0])):
            raise ConfigurationError(
                f"task.call: {config.call} must return inputs and targets, arrays or lists of them"
            )
        inputs, targets = give(answer[0], "task.call: inputs"), None
        if answer[1] is not None:
            targets = give_targets(inputs, answer[1], "task.call: targets")
        return inputs, targets

    (inputs, targets), again = called(), called()
    if [one and one.name for one in again] != [inputs.name, targets and targets.name]:
        raise ConfigurationError(
            f"task.call: {config.call} returned other data when it was called again: give it a seed (task.params)"
        )
    return _of_given(inputs, targets)


def _of_given(inputs: Given, targets: Given | None) -> Found:
    series: list[Series] = []
    names = inputs.names or tuple(f"u{number}" for number in range(inputs.series[0].shape[1]))
    outputs: tuple[str, ...] = ()
    labels: list[str | None] = [None] * len(inputs.series)
    wanted: list[np.ndarray | None] = [None] * len(inputs.series)
    if targets is not None and targets.single and targets.series[0].dtype.kind == "f":
        outputs = ("y0",)
        wanted = [np.full((len(u), 1), y) for u, y in zip(inputs.series, targets.series[0].tolist(), strict=True)]
    elif targets is not None and targets.single:
        labels = [_text(one) for one in targets.series[0].tolist()]
    elif targets is not None:
        wanted = list(targets.series)
        outputs = targets.names or tuple(f"y{number}" for number in range(targets.series[0].shape[1]))
        if len(wanted) != len(inputs.series):
            raise ConfigurationError(f"targets are {len(wanted)} series, inputs {len(inputs.series)}")
    for number, (u, y, label) in enumerate(zip(inputs.series, wanted, labels, strict=True)):
        where = f"series {number}" if len(wanted) > 1 else "the series"
        if u.dtype.kind not in "fiub" or (y is not None and y.dtype.kind not in "fiub"):
            raise ConfigurationError(f"{where}: inputs and targets of one series are numbers, not text")
        if y is not None and len(y) != len(u):
            raise ConfigurationError(f"{where}: targets have {len(y)} rows, inputs {len(u)}")
        if u.shape[1] > len(u) > 1 and all(one.shape[1] > len(one) for one in inputs.series):
            raise ConfigurationError(
                f"{where}: inputs are {u.shape}, more channels than steps: (time, channels) is meant; transpose them"
            )
        wrong = arrays.not_finite(u, arrays.NO_NUMBER)
        if wrong.any():
            row, column = (int(at[0]) for at in np.nonzero(wrong))
            raise ConfigurationError(f"{where}: the input in row {row}, column {names[column]!r} is {u[row, column]}")
        series.append(Series(where, u.astype(np.float64), None if y is None else y.astype(np.float64), label))
        if series[-1].inputs.shape[1] != len(names):
            raise ConfigurationError(f"{where}: {u.shape[1]} inputs, and the first series has {len(names)}")
    return Found(series, names, outputs)


def _of_trace(config: DataSettings) -> Found:
    """The inputs of the first data set of a trace, with targets of one's own."""
    assert config.trace is not None
    store = StateStore.open(config.trace)
    dataset = next(iter(store.datasets.values()), None)
    if dataset is None:
        raise ConfigurationError(f"task.trace: {config.trace} holds no states yet")
    values = dataset.read_inputs(slice(0, dataset.sequences), 0, dataset.steps)
    names = tuple(store.facts.get("spec", {}).get("input_names", ())) or tuple(f"u{k}" for k in range(values.shape[2]))
    found = Found([], names, ())
    wanted: np.ndarray | None = None
    targets = config.targets
    if isinstance(targets, str):
        wanted = np.stack(given(targets, "task.targets").series).astype(np.float64)
        found.outputs = tuple(f"y{number}" for number in range(wanted.shape[2]))
    elif targets is not None and targets.file is not None:
        path = found_file(targets.file, "task.targets.file")
        with opened(path, config.read) as source:
            found.files[str(path)] = source.sha256
            found.outputs, wanted = _targets(source, targets, None)
    for row, u in enumerate(values):
        known = ~np.isnan(u).any(axis=1)
        steps = len(u) if known.all() else int((~known).argmax())
        y = None
        if wanted is not None:
            if len(wanted) != len(values) or wanted.shape[1] < steps:
                raise ConfigurationError(
                    f"task.targets: {wanted.shape[1]} rows in {len(wanted)} series, and {config.trace} has {steps} "
                    f"steps in {len(values)}"
                )
            y = wanted[row, :steps]
        where = config.trace if len(values) == 1 else f"{config.trace}, sequence {row}"
        found.series.append(Series(where, u[:steps].astype(np.float64), y, dtype=str(u.dtype)))
    return found


def with_targets(found: Found, config: DataSettings) -> Found:
    """Targets that are later inputs, the counts of what is missing, and what every series must have."""
    targets = config.targets
    if isinstance(targets, TargetsConfig) and targets.ahead_steps is not None:
        ahead = targets.ahead_steps
        at = list(range(len(found.inputs)))
        if targets.columns is not None:
            at = all_of(targets.columns, found.inputs, len(at), "task.targets.columns")
        for one in found.series:
            if one.steps <= ahead + 1:
                raise ConfigurationError(
                    f"task.targets: {one.where} has {one.steps} rows, too few to look {ahead} ahead"
                )
        found.series = [
            replace(one, inputs=one.inputs[:-ahead], targets=one.inputs[ahead:][:, at]) for one in found.series
        ]
        # The names of the inputs are for what can be fed back as the next one.
        found.outputs = [found.inputs[k] if ahead == 1 else f"{found.inputs[k]} +{ahead}" for k in at]
    classes = sorted({one.label for one in found.series if one.label is not None})
    for what, names in (("inputs", found.inputs), ("targets", found.outputs), ("labels", classes)):
        if len(set(names)) < len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise ConfigurationError(f"task.{what}: several columns are called {twice!r}: give each a name of its own")
        if bad := [name for name in names if not name.isprintable() or len(name) > LONGEST_NAME]:
            raise ConfigurationError(
                f"task.{what}: {bad[0][:40]!r} is too long, or cannot be printed: name it otherwise"
            )
    skip = isinstance(targets, TargetsConfig) and targets.missing == "skip"
    for one in found.series:
        if one.steps < 2:
            raise ConfigurationError(f"{one.where} has {one.steps} rows: a series has at least 2")
        if one.targets is None:
            if not (one.label or "").strip():
                raise ConfigurationError(f"{one.where} has neither targets nor a label")
            continue
        rows = np.isnan(one.targets).any(axis=1)
        found.missing += int(rows.sum())
        if rows.any() and not skip:
            raise ConfigurationError(
                f"{one.where}: the target in row {int(rows.argmax())} is not a number; targets: {{missing: skip}} "
                "passes such rows over"
            )
    return found
