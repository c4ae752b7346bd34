"""A trained readout on another device: judged as it is, and refitted there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError, DeviceError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment.deploy.trained import TrainedRow, trained_row
from reservoir_hw.experiment.run.in_one_pass import opened
from reservoir_hw.experiment.run.learning import judged, trained
from reservoir_hw.experiment.run.report import complete
from reservoir_hw.experiment.run.result import InFolder, new_run_folder, write_array
from reservoir_hw.experiment.states.drive import driven, forecast
from reservoir_hw.experiment.states.pace import begin, driven_on
from reservoir_hw.experiment.states.plan import SplitName, goes_on, plan
from reservoir_hw.experiment.states.progress import Progress, StepCounter, following
from reservoir_hw.experiment.states.watch import about_counters
from reservoir_hw.readout.configuration import Readout, StateReadoutConfig
from reservoir_hw.tasks.task import Table, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_BLOCKS = 40
# Of Student's distribution with 39 degrees of freedom, 97.5 %.
_QUANTILE = 2.023


@dataclass(frozen=True)
class Difference:
    """Of a metric: a - b, and the ends of an interval of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


def paired_difference(task: Task, a: np.ndarray, b: np.ndarray) -> dict[str, Difference]:
    """The difference of each metric of outputs (batch, time, outputs) of two models for the same test.

    The test is cut into 40 blocks: of sequences, or of time where there are fewer. What the metric loses if a block of
    `a` is replaced by that of `b` is the part of the block in the difference. The spread of these parts gives the
    interval, as it would for a mean. It holds for metrics that are nearly sums over the test.
    """
    whole, other = task.evaluate(a).metrics, task.evaluate(b).metrics
    parts: dict[str, list[float]] = {name: [] for name in whole}
    for rows, times in _blocks(a.shape[0], a.shape[1]):
        mixed = a.copy()
        mixed[rows, times] = b[rows, times]
        for name, value in task.evaluate(mixed).metrics.items():
            parts[name].append(whole[name] - value)
    found = {}
    for name, by_block in parts.items():
        value = whole[name] - other[name]
        reach = _QUANTILE * float(np.sqrt(len(by_block) * np.var(by_block, ddof=1)))
        found[name] = Difference(value, value - reach, value + reach)
    return found


def _blocks(sequences: int, steps: int) -> list[tuple[Any, Any]]:
    if sequences >= _BLOCKS:
        return [(rows, slice(None)) for rows in np.array_split(np.arange(sequences), _BLOCKS)]
    ends = np.linspace(0, steps, -(-_BLOCKS // sequences) + 1).astype(int)
    times = [slice(first, last) for first, last in itertools.pairwise(ends) if last > first]
    return list(itertools.product(range(sequences), times))


HOME, THERE, REFITTED = "here", "there", "refitted"
# Points of a scatter.
_MOST_POINTS = 2000


@dataclass(kw_only=True)
class Evaluated(InFolder):
    """The metrics of a readout on the device of its training, on another, and of one that was fitted there.

    `outputs` are (batch, time, outputs) of each. `differences` are between them, metric by metric; there are none in a
    closed loop.
    """

    here: str
    there: str
    task: Task
    scores: dict[str, dict[str, float]]
    outputs: dict[str, np.ndarray]
    differences: dict[str, dict[str, Difference]]

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            **super().metrics,
            **{name: getattr(self, name) for name in ("here", "there", "scores")},
            "differences": {
                name: {metric: asdict(one) for metric, one in found.items()} for name, found in self.differences.items()
            },
        }

    def tables(self) -> list[Table]:
        """The metrics, and their differences where both outputs are known."""
        metrics = list(self.scores[HOME])
        rows = [[metric, *(f"{found[metric]:.4g}" for found in self.scores.values())] for metric in metrics]
        names = f"Here: {self.here}, where it was trained. There: {self.there}."
        names += " Refitted: trained anew there." if REFITTED in self.scores else ""
        tables = [Table("Evaluation", ["metric", *self.scores], rows, names)]
        if self.differences:
            rows = [[metric, *(str(found[metric]) for found in self.differences.values())] for metric in metrics]
            note = "Intervals of 95 %, from blocks of the test that both answered."
            tables.append(Table("Differences", ["metric", *self.differences], rows, note))
        return tables

    def figures(self) -> dict[str, Figure]:
        """Outputs over targets. Needs the `report` extra."""
        from reservoir_hw.core.figure_style import panels

        figure, grid = panels(3.6 * len(self.outputs), 3.8, 1, len(self.outputs), squeeze=False, sharey=True)
        split = self.task.test
        for axes, (name, outputs) in zip(grid.flat, self.outputs.items(), strict=True):
            targets, answers = split.targets[split.valid].ravel(), outputs[split.valid].ravel()
            step = -(-len(targets) // _MOST_POINTS)
            axes.plot(targets[::step], answers[::step], ".", markersize=3, alpha=0.5)
            ends = [np.nanmin(targets), np.nanmax(targets)]
            axes.plot(ends, ends, color="black", linewidth=0.8)
            axes.set(title=name, xlabel="target")
        grid.flat[0].set_ylabel("output")
        return {"outputs_over_targets": figure}


def evaluate(
    run: str | Path,
    *,
    reservoir: str | Path | None = None,
    row: int | None = None,
    refit: bool = False,
    progress: Progress | None = None,
) -> Evaluated:
    """Judge the readout of a run folder on the device of another reservoir file: same task, same test inputs.

    Parameters
    ----------
    run, row
        A run folder, and which of its rows; by default the only one.
    reservoir
        A reservoir file; by default the reservoir of the run.
    refit
        Train a new readout there, too.

    A new folder in `run.folder` gets metrics, outputs and a report. Raises `ConfigurationError` for a readout that is
    not trained in one pass, or a device with other nodes, and the device's own errors.
    """
    here = trained_row(run, row)
    there = here if reservoir is None else trained_row(run, row, reservoir=reservoir)
    config = there.point.config
    if not isinstance(config.readout, StateReadoutConfig):
        raise ConfigurationError(
            f"{run}: readout {config.readout.kind} is trained by gradients; export the model, and `infer` runs "
            "it on other devices"
        )
    task, spec = here.task(), here.reservoirs[0]
    readout = config.readout.load(here.file())
    with opened(there.point, task) as device:
        if device.spec.nodes != spec.nodes:
            raise ConfigurationError(
                f"the readout was trained on {spec.nodes} nodes, and {device.name} has {device.spec.nodes}: it cannot "
                "be judged there, not with --refit either; train one there: reservoir-hw run "
                f"{here.folder / 'experiment.yaml'} --reservoir {reservoir or 'FILE'}"
            )
        result = Evaluated(
            title=f"{here.label}, evaluated on {config.reservoir.name}",
            folder=new_run_folder(config.run.folder, f"evaluate-{Path(run).resolve().name}"),
            provenance={**provenance.collect(config.model_dump(mode="json", serialize_as_any=True)), "rows": []},
            here=here.point.config.reservoir.name,
            there=config.reservoir.name,
            task=task,
            scores={HOME: _scores_of(here)},
            outputs={HOME: np.load(here.file("outputs"))},
            differences={},
        )
        if device.spec.dtype != spec.dtype:
            result.warn(f"{device.name} gives {device.spec.dtype} states, the readout was trained on {spec.dtype}")
        try:
            found = _answers(there, task, readout, device, refit, StepCounter(progress))
        except DeviceError as error:
            result.status, result.problem = "failed", str(error)
            result.save()
            raise
        if reservoir is None and device.spec.identity.fingerprint != spec.identity.fingerprint:
            result.warn(
                f"{device.name} is not as it was: the fingerprint of the training was {spec.identity.fingerprint}"
            )
        if device.about_mask is not None:
            result.warn(device.about_mask)
        result.warn(*about_counters(device.counters, device.spec))
        result.provenance["rows"].append({"label": here.label, "reservoir": device.provenance()})
    for name, outputs in zip((THERE, REFITTED), found, strict=False):
        result.scores[name] = task.evaluate(outputs).metrics
        result.outputs[name] = outputs
        (result.folder / "outputs").mkdir(exist_ok=True)
        write_array(result.folder / "outputs" / f"{name}.npy", outputs)
    for name, (a, b) in {f"{THERE} - here": (THERE, HOME), f"{REFITTED} - {THERE}": (REFITTED, THERE)}.items():
        if a in result.outputs and b in result.outputs and not task.closed_loop:
            result.differences[name] = paired_difference(task, result.outputs[a], result.outputs[b])
    complete(result)
    return result


def _answers(
    row: TrainedRow, task: Task, readout: Readout, device: Reservoir, refit: bool, counter: StepCounter
) -> list[np.ndarray]:
    """Outputs for the test: of the readout, and of the one that is fitted here if that is wanted."""
    config = row.point.config
    training = config.training
    splits: Sequence[SplitName] = ("train", "test") if refit or goes_on(task, training) else ("test",)
    if task.closed_loop:
        splits = ("train",) if refit else ()
    begun, on_steps = None, following(device, counter.add)
    most, batch = config.run.chunk_steps, device.spec.max_batch
    bursts = plan(task, training, chunk_steps=most, max_batch=batch, splits=splits) if splits else []
    if bursts:
        paced, begun = begin(device, bursts, most)
        bursts = plan(task, training, chunk_steps=paced, max_batch=batch, splits=splits)
    of = driven_on(device)
    counter.total = of.opening + of.bursts(bursts) + (of.forecasts(task) * (1 + refit) if task.closed_loop else 0)
    counter.say(f"{config.reservoir.name}: judging")
    # In the precision of the training, as at the edge.
    dtype = row.reservoirs[0].numpy_dtype
    given = driven(device, bursts, on_steps, repetitions=training.repetitions, begun=begun)
    states = ((chunk, answer.astype(dtype, copy=False)) for chunk, answer in given)
    if not task.closed_loop:
        return [outputs for _, outputs in judged(row.point, task, readout, states, refit=refit)]
    readouts = [readout, *([trained([row.point], task, states)[0][0]] if refit else [])]
    return [forecast(device, one, task.test.inputs, task.test.targets.shape[1], on_steps) for one in readouts]


def _scores_of(row: TrainedRow) -> dict[str, float]:
    """What the run has found for this row."""
    rows = json.loads((row.folder / "metrics.json").read_text(encoding="utf-8"))["rows"]
    points = [one for one in rows if one["label"] == row.record["label"] and one["point"] == row.record["point"]]
    if not points:
        raise ConfigurationError(f"{row.folder}/metrics.json has no row {row.label}: run the experiment again")
    return points[0]["metrics"]
