"""A user's own data: learned on one part, judged on another, in the user's units."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.functions import import_function, without_digest
from reservoir_hw.core.given import given_in
from reservoir_hw.core.series_format import SeriesFormat
from reservoir_hw.tasks import report
from reservoir_hw.tasks.data.configuration import DataSettings
from reservoir_hw.tasks.data.reading import Found, Series, found_series
from reservoir_hw.tasks.data.splitting import Parts, format_of, parts_of, shared
from reservoir_hw.tasks.prediction.report import PIECE, forecast_figures, forecast_table, series_figures
from reservoir_hw.tasks.prediction.task import judged_forecast
from reservoir_hw.tasks.task import Evaluation, Figures, OutputScale, Row, Split, Table, Task, checked_outputs

# In standard deviations of the training: a test so far off is something else than what was learned.
_FAR = 3.0


class DataConfig(DataSettings):
    """A user's own data, from files or arrays: learned on one part and judged on another."""

    def build(self) -> Data:
        """A `Data` with these settings."""
        return Data(self)


class Data(Task):
    """A user's own recordings, as `DataConfig` says: a regression, a forecast, or a class for each series.

    The splits hold scaled float32 numbers; `series` says what they are for the user, and all metrics are in the user's
    units. Several series begin at rest each, and lie in the splits padded behind their `lengths`. Of a single one the
    test goes on where the training ended. Targets of classes are 1 for the right one and 0 for the others at each step.

    `evaluate` gives `nrmse`, `nmse`, `mae` and `r2` (`of_numbers`), or `accuracy`, `balanced_accuracy`, `f1`
    and `error_rate` (`of_classes`), or in a closed loop those of `Prediction`; and those of one's own.

    Takes a configuration, or the fields of `DataConfig` as keywords. Raises `ConfigurationError` that names file, line
    and column for data that cannot be used.
    """

    larger = ("r2", "accuracy", "balanced_accuracy", "f1", "valid_steps", "whole")
    smaller = ("nrmse", "nmse", "mae", "error_rate", "diverged")
    series: SeriesFormat

    def __init__(self, config: DataConfig | None = None, /, **settings: Any) -> None:
        # Arrays that nobody else keeps are gone when this list is.
        kept = given_in(settings)
        config = DataConfig.of(config, settings)
        self._make(config, *_found_parts(config))
        self._kept = kept

    def _make(self, config: DataSettings, found: Found, parts: Parts) -> None:
        self._config, self._outputs = config, tuple(found.outputs)
        splits = {"train": parts.train, "test": parts.test}
        self.sequences = {name: [one.where for one in part] for name, part in splits.items()}
        """Where the sequences of the two splits come from."""
        self._firsts = {name: [one.first for one in part] for name, part in splits.items()}
        self.classes = tuple(sorted({one.label for one in parts.train if one.label is not None}))
        if unknown := {one.label for one in parts.test} - {*self.classes, None}:
            raise ConfigurationError(f"task.labels: the class {min(map(str, unknown))!r} is in the test only")
        if len(self.classes) == 1:
            raise ConfigurationError(
                f"task.labels: all series are of the class {self.classes[0]!r}: nothing is to tell apart"
            )
        self.series = format_of(  # pyright: ignore[reportIncompatibleVariableOverride]
            config, found, parts.train, self.classes
        )
        self._check_lengths(parts)
        self.train, self.test = (self._split(parts, judged=judged) for judged in (False, True))
        if (loop := config.closed_loop) is not None:
            self.closed_loop = True
            pieces = np.stack([self.series.model_inputs(one.inputs) for one in parts.test]).astype(np.float32)
            self.test = Split(pieces[:, : loop.warmup_steps], pieces[:, loop.warmup_steps :])
        if config.scale.inputs == "range":
            self.input_range = (-1.0, 1.0)
        self.score = "valid_steps" if self.closed_loop else "accuracy" if self.classes else "nrmse"
        self.larger_is_better = self.score != "nrmse"
        self.goes_on = parts.follows and not self.closed_loop
        self.facts = {
            "files": {"/".join(Path(file).parts[-2:]): digest for file, digest in found.files.items()},
            "inputs_sha256": _digest_of(parts, "inputs"),
            "targets_sha256": _digest_of(parts, "targets"),
            "rows": {name: sum(one.steps for one in part) for name, part in splits.items()},
            "series": {name: len(part) for name, part in splits.items()},
            "inputs": list(found.inputs),
            "outputs": list(self.classes or found.outputs),
        }
        # All that decides about states: what is driven, in which pieces, and whether there is a reset between them.
        driven = (self.facts["inputs_sha256"], self.facts["rows"], self.goes_on, self.series.inputs, config.closed_loop)
        self.inputs_digest = hashlib.sha256(repr(driven).encode()).hexdigest()
        if self.classes:
            self.facts["classes"] = {
                name: dict(Counter(str(one.label) for one in part)) for name, part in splits.items()
            }
        self.remarks = self._remarks(found, parts)

    def _check_lengths(self, parts: Parts) -> None:
        """Each series has steps behind the washout, where it begins at rest."""
        first = self._config.judge_from if self._config.judge_from is not None else self._config.washout
        judged = () if parts.follows or self._config.test == "none" or self._config.closed_loop else parts.test
        for one in [*parts.train, *judged]:
            if one.steps <= first:
                raise ConfigurationError(
                    f"task: {one.where} has {one.steps} steps, and the first {first} of each series are not counted "
                    "(readout.washout, task.judge_from): take fewer, or leave the series out"
                )

    def _split(self, parts: Parts, *, judged: bool) -> Split:
        series, follows, config = parts.test if judged else parts.train, parts.follows, self._config
        # Of a test only one that follows its training is in one piece: others begin at rest.
        alone = len(series) == 1 and (not judged or follows or not series[0].steps)
        shape = (len(series), max(one.steps for one in series))
        dtype = np.dtype(series[0].dtype if config.trace is not None else np.float32)
        # Of zeros that are not touched nothing is in memory: series may be much shorter than the longest.
        inputs = np.zeros((*shape, len(self.series.inputs)), dtype)
        targets = np.zeros((*shape, len(self.classes or self.series.outputs)), np.float32)
        skipped = False
        for row, one in enumerate(series):
            _fill(inputs[row], one.inputs, self.series.model_inputs)
            if one.targets is None:
                targets[row, : one.steps, self.classes.index(str(one.label))] = 1.0
            else:
                _fill(targets[row], one.targets, self.series.model_targets)
                skipped = skipped or bool(np.isnan(one.targets).any())
        first = config.judge_from if config.judge_from is not None else 0 if follows else config.washout
        counted: np.ndarray | None = None
        if skipped or (judged and first and config.decide != "last"):
            counted = np.asarray(~np.isnan(targets).any(axis=2))
            counted[:, : first if judged else 0] = False
        lengths = None if alone else np.array([one.steps for one in series])
        return Split(inputs, targets, None, lengths, bool(self.classes) and config.decide == "last", counted)

    def _remarks(self, data: Found, parts: Parts) -> list[str]:
        """What casts doubt on these data."""
        found = []
        if data.missing:
            found.append(f"{data.missing:,} rows have no target: they are driven, and neither learned nor judged")
        for column, name in enumerate(data.inputs if parts.test[0].steps else ()):
            before, after = (
                np.concatenate([one.inputs[:, column] for one in part]) for part in (parts.train, parts.test)
            )
            shift, usual = abs(float(after.mean()) - float(before.mean())), float(before.std())
            if shift > _FAR * usual > 0:
                found.append(
                    f"the mean of {name!r} in the test lies {shift / usual:.1f} standard deviations from that of the "
                    "training: it is another kind of data"
                )
        loop = self._config.closed_loop
        if loop is not None and loop.starts == 1:
            found.append("closed_loop has one start: a single forecast says little, take more `starts`")
        return found

    def place_of(self, split: str, row: int, step: int) -> str:
        """The recording, and its row."""
        return f"{self.sequences[split][row]}, row {self._firsts[split][row] + step} (0 is the first row of numbers)"

    def validation(self, share: float) -> Task:
        """The same, with a share of the training series as its test, or their end; scaled by what is left of them."""
        if self._config.closed_loop is not None:
            return super().validation(share)
        found = object.__new__(type(self))
        config = self._config.model_copy(update={"test": None, "folds": None, "fold": None})
        data, parts = _found_parts(self._config)
        found._make(config, data, shared(parts.train, share))
        return found

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (series, steps, outputs) for the test split; the class describes the metrics.

        `arrays` are, of numbers, `piece/targets` and `piece/outputs`, the first steps of the first output; of classes
        `errors` and `trials` (), and `confusion` (right, answer).

        Raises `ShapeError` for other shapes and, but in a closed loop, `InputRangeError` for NaN or infinity.
        """
        config, test = self._config, self.test
        if config.closed_loop is not None:
            found = judged_forecast(self, checked_outputs(outputs, test, finite=False), config.closed_loop)
            for name in ("targets", "outputs"):
                found.arrays[name] = self.series.user_outputs(found.arrays[name])
            return found
        if test.targets.shape[1] == 0:
            return Evaluation({})
        outputs, valid = checked_outputs(outputs, test), test.valid
        if self.classes:
            rows, ends = np.arange(len(outputs)), test.ends
            scores = outputs[rows, ends] if test.at_end else np.where(valid[:, :, None], outputs, 0).sum(axis=1)
            right = test.targets[rows, ends].argmax(axis=1)
            return of_classes(right, scores.argmax(axis=1), self.classes, config.metrics)
        # Row by row of the split: of series that differ in length most of it is padding.
        targets, answers = (
            np.concatenate([self.series.user_outputs(one[here]) for one, here in zip(values, valid, strict=True)])
            for values in (test.targets, outputs)
        )
        if not len(targets):
            raise ConfigurationError(
                "task: no row of the test is judged: task.judge_from, or missing targets, leave none"
            )
        piece = {"piece/targets": targets[:PIECE, 0], "piece/outputs": answers[:PIECE, 0]}
        return Evaluation(of_numbers(targets, answers, self._outputs, config.metrics), piece)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Errors by model; of several outputs a second table has each."""
        models, first = report.by_model(rows), rows[0].evaluation.metrics
        if self.closed_loop:
            return [forecast_table(models, "Own data")]
        own = [name for one in self._config.metrics if (name := name_of(one)) in first]
        if self.classes:
            shown = ["accuracy", "balanced_accuracy", "f1", *own]
            return [report.error_table(models, "Own data", "series", shown)]
        tables = {"Own data": {name: name for name in ("nrmse", "mae", "r2", *own)}}
        if each := {name: name.partition("/")[2] for name in first if name.startswith("nrmse/")}:
            tables["NRMSE of each output"] = each
        return [report.table_of_means(title, models, shown, ".3g", ".2g") for title, shown in tables.items()]

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Outputs beside targets with their error, or error rates and which class was taken for which."""
        models = report.by_model(rows)
        if self.closed_loop:
            return forecast_figures(models, [one.name for one in self.series.inputs], ((0, 0), (0, 1)))
        if not self.classes:
            return series_figures(models)
        return {
            "error_rate": report.error_figure(models, "series", 1 - 1 / len(self.classes)),
            "confusion": report.confusion_figure(models, self.classes, "series"),
        }


def _found_parts(config: DataSettings) -> tuple[Found, Parts]:
    """All that was found, and what of it is learned from and judged. Nobody keeps it: it is as large as the splits."""
    found = found_series(config)
    if config.test == "none":
        return found, Parts(found.series, [found.series[0].part(0, 0)])
    if config.closed_loop is not None:
        return found, _forecast_parts(found.series, config)
    return found, parts_of(found, config)


def _fill(place: np.ndarray, values: np.ndarray, scaled: Any) -> None:
    """Scaled numbers, a piece at a time: in float64 they take twice the memory of what is kept."""
    for first in range(0, len(values), 1 << 16):
        piece = values[first : first + (1 << 16)]
        place[first : first + len(piece)] = scaled(piece)


def _forecast_parts(series: Sequence[Series], config: DataSettings) -> Parts:
    """The end of one series, or series of their own, in pieces of a warm-up and a forecast."""
    loop = config.closed_loop
    assert loop is not None
    if len(series) != 1:
        raise ConfigurationError(f"task.closed_loop: forecasts are made on one series, and there are {len(series)}")
    (one,) = series
    window = loop.warmup_steps + loop.forecast_steps
    needed = loop.starts * window
    if needed + 2 > one.steps:
        raise ConfigurationError(
            f"task.closed_loop: {loop.starts} starts of {loop.warmup_steps} + {loop.forecast_steps} steps need "
            f"{needed} rows behind the training, and {one.where} has {one.steps}: take fewer or shorter ones"
        )
    cut = one.steps - needed
    pieces = [one.part(cut + number * window, cut + (number + 1) * window) for number in range(loop.starts)]
    return Parts([one.part(0, cut)], pieces)


def _digest_of(parts: Parts, name: str) -> str:
    """Of the user's numbers, or classes: a scale hides that all are twice as large."""
    digest = hashlib.sha256()
    for one in [*parts.train, *parts.test]:
        values = getattr(one, name)
        digest.update(f"{one.label} {one.steps}".encode() if name == "targets" else f"{one.steps}".encode())
        if values is not None:
            digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


# ---- How answers to a user's own data are judged.


def of_numbers(
    targets: np.ndarray, outputs: np.ndarray, names: Sequence[str], further: Sequence[str]
) -> dict[str, float]:
    """`nrmse`, `nmse`, `mae` and `r2` of targets and outputs, both (rows, outputs), in the user's units.

    nmse is the mean squared error over the variance of the targets, nrmse its root, mae the mean absolute error, and
    r2 = 1 - nmse. Of several outputs the mean stands under the bare name, and each under `nmse/NAME`. `further` are
    functions of (targets, outputs). Against targets that are all the same any error is infinite, and none is 0.

    Raises `ConfigurationError` where there is no row, or a number is NaN or infinite.
    """
    if not len(targets):
        raise ConfigurationError("no row is judged")
    for what, values in (("target", targets), ("output", outputs)):
        for row in np.flatnonzero(~np.isfinite(values).all(axis=1))[:1]:
            raise ConfigurationError(f"the {what} in row {row} is not a number: {values[row].tolist()}")
    error = np.mean((outputs - targets) ** 2, axis=0)
    # The mean of equal numbers may be rounded, and then their variance is not 0.
    spread = np.where(np.ptp(targets, axis=0) > 0, targets.var(axis=0), 0.0)
    nmse = np.divide(error, spread, out=np.where(error > 0, np.inf, 0.0), where=spread > 0)
    found = {"nrmse": np.sqrt(nmse), "nmse": nmse, "mae": np.abs(outputs - targets).mean(axis=0), "r2": 1 - nmse}
    metrics = {name: float(values.mean()) for name, values in found.items()}
    if len(names) > 1:
        for name, values in found.items():
            metrics |= {f"{name}/{output}": float(value) for output, value in zip(names, values, strict=True)}
    single = targets.shape[1] == 1
    return metrics | own(further, targets[:, 0] if single else targets, outputs[:, 0] if single else outputs)


def of_classes(right: np.ndarray, answers: np.ndarray, classes: Sequence[str], further: Sequence[str]) -> Evaluation:
    """`accuracy`, `balanced_accuracy` (mean over the classes), `f1` (mean over the classes), and `error_rate`.

    `right` and `answers` are (series,), numbers of the classes. A class that is neither asked for nor answered does not
    count. The error rate has its 95 % interval, and `arrays` are those of `counted_classes`.
    """
    counted = report.counted_classes(right, answers, len(classes))
    counts = counted.arrays["confusion"]
    hits, asked, given = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    there, seen = asked > 0, asked + given > 0
    metrics = {
        "accuracy": 1 - counted.metrics["error_rate"],
        "balanced_accuracy": float(np.mean(hits[there] / asked[there])),
        "f1": float(np.mean(2 * hits[seen] / (asked + given)[seen])),
        **counted.metrics,
    }
    names = np.array(classes)
    return Evaluation(metrics | own(further, names[right], names[answers]), counted.arrays)


def name_of(function: str) -> str:
    """What a user's metric is called: as its function."""
    return without_digest(function).partition(":")[2]


def own(functions: Sequence[str], targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """The metrics that a user names, each under the name of its function.

    Raises `ConfigurationError` for one that fails, or gives no finite number.
    """
    found = {}
    for target in functions:
        try:
            value = float(import_function(target, "task.metrics", "metric")(targets, outputs))
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(f"task.metrics: {target} failed: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise ConfigurationError(f"task.metrics: {target} gave {value}, which is no measure of an error")
        found[name_of(target)] = value
    return found
