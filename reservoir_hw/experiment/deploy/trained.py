"""A trained model of a run folder: where its files are, what it was trained on, and what it answered in the test."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.axes import refuse_vary
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.provenance import plain
from reservoir_hw.core.reservoir_config import reservoir_section
from reservoir_hw.core.series_format import SeriesFormat
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.configuration.experiment import Point, grid, parse_experiment, trained_baselines
from reservoir_hw.experiment.run.trainer import RowFiles
from reservoir_hw.readout.edge.manifest import Ranges
from reservoir_hw.readout.edge.verification import INT8_LIMIT, STILL, spread_of
from reservoir_hw.tasks.task import Task


@dataclass(frozen=True)
class TrainedRow:
    """Row `number` of a run. `record` is what the provenance says about it, `provenance` that of the whole run.

    `label` is that of the run's tables.
    """

    folder: Path
    number: int
    label: str
    point: Point
    record: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def reservoirs(self) -> list[ReservoirSpec]:
        """What the devices declared that it was trained on, the first for the first layer."""
        found = filter(None, (self.record.get("reservoir"), *self.record.get("further_reservoirs", ())))
        return [ReservoirSpec(**one["spec"], identity=one["identity"]) for one in found]

    @property
    def series(self) -> SeriesFormat | None:
        """What the user's numbers were in the training."""
        found = self.record.get("series")
        return None if found is None else SeriesFormat.model_validate(found)

    def task(self) -> Task:
        """The task of the run, made again. Raises `ConfigurationError` where its data are others than in the run."""
        task = self.point.config.task.build()
        then = self.record.get("task", {})
        now = plain(dict(task.facts))
        if then == now:
            return task
        files = {name: (then.get("files", {}).get(name), digest) for name, digest in now.get("files", {}).items()}
        changed = [Path(name).name for name, (before, digest) in files.items() if before != digest]
        what = [part for part in ("inputs", "targets") if then.get(f"{part}_sha256") != now.get(f"{part}_sha256")]
        what = what or [str(fact) for fact in sorted(then.keys() | now.keys()) if then.get(fact) != now.get(fact)]
        raise ConfigurationError(
            f"{', '.join(changed) or 'what the task is made of'} has changed since the run of "
            f"{self.provenance.get('time')}: {' and '.join(what)} differ; run the experiment again"
        )

    def file(self, key: str = "file") -> Path:
        """The file of the readout or the model, its "outputs" for the test, or its "tokenizer".

        Raises `ConfigurationError` if it is not there.
        """
        name = self.record["readout"].get(key)
        path = self.folder / str(name)
        if name is None or not path.is_file():
            raise ConfigurationError(f"{self.folder} has no {name or key} of row {self.number} ({self.label})")
        return path


def trained_row(run: str | Path, row: int | None = None, *, reservoir: str | Path | None = None) -> TrainedRow:
    """A row of a run folder, by default the only one; `reservoir` names a file in the place of its reservoir.

    Raises `ConfigurationError` if `run` is no run folder, or does not have that row.
    """
    folder, provenance = _opened(run)
    rows = provenance["rows"]
    if not rows:
        raise ConfigurationError(
            f"{folder} holds no trained model: the run is {provenance.get('status', 'unfinished')}"
        )
    # As it was run: what is in the environment now has nothing to do with it.
    points = grid(Document.from_file(folder / "experiment.yaml"))
    if len(points) < len(rows):
        raise ConfigurationError(f"{folder}: experiment.yaml has {len(points)} rows and provenance.json {len(rows)}")
    places = [f"{point.label} ({point.place})" if point.place else point.label for point in points[: len(rows)]]
    known = "".join(f"\n  {number}  {place}" for number, place in enumerate(places))
    if row is None:
        if len(rows) > 1:
            raise ConfigurationError(f"{folder} holds {len(rows)} trained models: say which by --row{known}")
        row = 0
    if not 0 <= row < len(rows):
        raise ConfigurationError(f"{folder} has no row {row}; it has{known}")
    point = points[row] if reservoir is None else _with_reservoir(points[row], reservoir)
    device = rows[row].get("reservoir", {})
    if mask := device.get("spec", {}).get("input_mask"):
        kept = point.config.reservoir.keeping_mask(mask)
        point = replace(point, config=point.config.model_copy(update={"reservoir": kept}))
    if point.config.readout.layers_of_reservoirs and "identity" not in device:
        raise ConfigurationError(f"{folder}: row {row} ({points[row].label}) was not finished")
    here = points[row].config.reservoir
    units = {name: knob["unit"] for name, knob in device.get("spec", {}).get("knobs", {}).items()}
    here.learn_name(device.get("label", ""), units)
    return TrainedRow(folder, row, here.with_own_name(points[row].label), point, rows[row], provenance)


def trained_baseline(run: str | Path, number: int) -> TrainedRow:
    """A baseline of the tables of a run that was trained by gradients, counted in their order.

    Raises `ConfigurationError` as `trained_row`.
    """
    folder, provenance = _opened(run)
    points = [one for point in grid(Document.from_file(folder / "experiment.yaml")) for one in trained_baselines(point)]
    of_file = {RowFiles(folder, f"baseline-{one.number:03d}").weights: one for one in points}
    there = [
        (of_file[file], one) for one in provenance.get("baselines", []) if (file := one["readout"]["file"]) in of_file
    ]
    known = "".join(f"\n  {count}  {point.label}" for count, (point, _) in enumerate(there)) or " none that is finished"
    if not 0 <= number < len(there):
        raise ConfigurationError(f"{folder} has no trained baseline {number}; it has{known}")
    point, record = there[number]
    return TrainedRow(folder, number, point.label, point, record, provenance)


def _opened(run: str | Path) -> tuple[Path, dict[str, Any]]:
    """The run folder, and its provenance."""
    folder = Path(run)
    for name in ("experiment.yaml", "provenance.json"):
        if not (folder / name).is_file():
            raise ConfigurationError(f"{folder} is not the folder of a run: it has no {name}")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        if isinstance(found["rows"], list):
            return folder, found
    raise ConfigurationError(f"{folder / 'provenance.json'} is damaged: run the experiment again")


def _with_reservoir(point: Point, path: str | Path) -> Point:
    """The same point with the reservoir of a file."""
    given = Document.from_file(path)
    given.set_environment(prefix=("reservoir",) if "kind" in given.data else ())
    document = Document.from_mapping(point.config.model_dump(mode="json", serialize_as_any=True), "the run")
    document.data |= {"vary": {}, "sweep": None}
    section = reservoir_section(given)
    refuse_vary(section)
    document.replace("reservoir", section)
    return replace(point, config=parse_experiment(document))


# ---- What the run of a trained model has kept of its test and its training, and what an export takes of it.


_MOST = 20_000
"""Steps of the test that are driven at most to see a start from rest settle."""
_MARGIN = 2.0
"""How many times the largest difference between two drives is no noise any more."""
GLITCH = 10
"""So many times wider than nearly all of its numbers is a channel with a glitch."""


class Stored:
    """`outputs` (batch, steps, outputs) of the run for its test, None where it had none, and `washout`, the user's.

    `spread` (outputs,) is how much each of them moves behind the washout. Classes are judged by whole series: they have
    no washout. `notes` gets what there is to tell.
    """

    def __init__(self, row: TrainedRow, notes: list[str]) -> None:
        series = row.series
        classes = series is not None and bool(series.classes)
        self.washout = 0 if classes else int(getattr(row.point.config.readout, "washout", 0))
        self.outputs, self.spread = _outputs_of(row), None
        self.ranges = Ranges.model_validate(row.record["ranges"], strict=False) if "ranges" in row.record else None
        self.notes = notes
        if self.outputs is not None:
            self.steps: list[int] = row.record.get("test_lengths") or [self.outputs.shape[1]] * len(self.outputs)
            """Of each sequence: what lies beyond is padding."""
            self.spread = self._spread(self.outputs)
        if self.ranges is None:
            self.notes.append("The run did not keep the ranges of its training: infer cannot tell what lies outside.")
        else:
            self._tell_glitches(self.ranges)

    def _spread(self, outputs: np.ndarray) -> np.ndarray:
        valid = np.arange(outputs.shape[1]) < np.array(self.steps)[:, None]
        counted = self.behind(outputs)[self.behind(valid)]
        spread = spread_of(counted if len(counted) else outputs[valid])
        least = np.maximum(STILL * np.abs(outputs[valid]).max(axis=0), np.finfo(np.float32).tiny)
        if (still := np.flatnonzero(spread <= least)).size:
            self.notes.append(
                f"Output {', '.join(map(str, still))} hardly moved in the test of the run: errors of it are "
                "measured in roundings of its value."
            )
        return spread

    def behind(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs (batch, steps, outputs) behind the washout; all of them where it is longer."""
        return outputs[:, self.washout :] if self.washout < outputs.shape[1] else outputs

    def settles(self, answers: Callable[[int], np.ndarray], first: np.ndarray, *, deterministic: bool) -> None:
        """Let the washout cover what a start from rest shows: the last answer that is off those of the run.

        `first` (1, steps, outputs) are the answers to the test's beginning from rest; `answers` gives those to so many
        steps, driven anew. Where the second half is still off, twice as many are driven. What a noisy device differs by
        from one drive to the next does not count.
        """
        if self.outputs is None or self.spread is None:
            return
        most, outputs, limit = min(self.steps[0], _MOST), first, INT8_LIMIT
        if not deterministic:
            noise = np.abs(answers(first.shape[1]) - first) / self.spread
            limit = max(limit, _MARGIN * float(noise.max(initial=0.0)))
        while True:
            steps = min(outputs.shape[1], most)
            apart = (np.abs(outputs[0, :steps] - self.outputs[0, :steps]) / self.spread).max(axis=1)
            settled = int(np.flatnonzero(apart > limit).max(initial=-1)) + 1
            if settled <= steps // 2 or steps == most:
                break
            outputs = answers(min(2 * steps, most))
        if settled <= self.washout:
            return
        what = f"From rest, the answers take {settled} steps to become those of the run"
        if settled > steps // 2:
            what = f"From rest, the answers are off those of the run even after {settled} of {steps} steps"
        self.notes.append(
            f"{what}; readout.washout is {self.washout}. infer leaves out the longer time, or --warmup FILE drives it."
        )
        self.washout = settled

    def _tell_glitches(self, ranges: Ranges) -> None:
        for what, one in (("input", ranges.inputs), ("target", ranges.targets)):
            width, most = (np.subtract(*ends) for ends in ((one.high, one.low), (one.high_point, one.low_point)))
            for channel in np.flatnonzero(width > GLITCH * np.maximum(most, 0)):
                if most[channel] > 0:
                    self.notes.append(
                        f"In training {what} {channel} was {one.low[channel]:.9g} to {one.high[channel]:.9g}, 99.8 % "
                        f"of it {one.low_point[channel]:.9g} to {one.high_point[channel]:.9g}: a glitch makes the "
                        "range wide that infer watches."
                    )


def _outputs_of(row: TrainedRow) -> np.ndarray | None:
    try:
        found = np.load(row.file("outputs"), allow_pickle=False)
    except (ConfigurationError, OSError, ValueError):
        return None
    return found if found.ndim == 3 and found.size and np.isfinite(found).all() else None
