"""What the reports of tasks share: runs by label or model, means with their spread, and counted errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.figure_style import colours, new_figure, one_panel
from reservoir_hw.tasks.task import Evaluation, Row, Split, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Models = Mapping[str, Sequence[Row]]
"""Runs by the name of the model."""

DRAW = "run.draw"
"""The key that says which of several drives of the same point a run is: between them only the device differs."""

REPETITIONS = ("dataset", "seed", "first_step", "fold", "draw")
"""Keys that say which data, random numbers or drive a run had: runs that differ in them alone are repetitions."""


def by_label(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by their label: all runs of a model, whatever else of the task varies."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.label, []).append(row)
    return found


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by model, each named after its label and what else of the task varies.

    Rows that differ in which data they had (`task.dataset`, `task.seed`, `task.first_step`, `task.fold`) are
    repetitions, and stay together.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        varied = {key.removeprefix("task."): value for key, value in row.point.items() if key.startswith("task.")}
        name = ", ".join([row.label, *(f"{k} {v}" for k, v in varied.items() if k not in REPETITIONS)])
        found.setdefault(name, []).append(row)
    return found


def best(models: Models, metric: str, count: int, *, largest: bool = False) -> tuple[dict[str, Sequence[Row]], str]:
    """The `count` best models by the mean of a metric, in their own order, and a remark where there are more."""
    sign = -1 if largest else 1
    means = {name: sign * found.mean() for name in models if len(found := metric_values(models[name], metric))}
    chosen = set(sorted(models, key=lambda name: means.get(name, np.inf))[:count])
    remark = f"; the best {count} of {len(models)} models" if len(models) > count else ""
    return {name: runs for name, runs in models.items() if name in chosen}, remark


def metric_values(rows: Iterable[Row], metric: str) -> np.ndarray:
    """The metric in those of the rows that have it: (rows,)."""
    return np.array([row.evaluation.metrics[metric] for row in rows if metric in row.evaluation.metrics])


@dataclass(frozen=True)
class Spread:
    """The mean of a metric over runs, and what it varies with.

    `over_data` is the standard deviation over data sets and seeds, of the means over draws. `of_device` is that
    between draws of one point, pooled over the points. Each is None where there is nothing to tell it from.
    """

    mean: float
    over_data: float | None
    of_device: float | None


def spread_of(rows: Iterable[Row], metric: str) -> Spread | None:
    """The mean of a metric over those of the rows that have it, and its spreads; None where none has it."""
    drives: dict[str, list[float]] = {}
    for row in rows:
        if metric in row.evaluation.metrics:
            point = json.dumps({key: value for key, value in row.point.items() if key != DRAW}, default=str)
            # Without a draw each run is a drive of its own, also where two are of one point.
            drive = point if DRAW in row.point else f"{point} {len(drives)}"
            drives.setdefault(drive, []).append(row.evaluation.metrics[metric])
    if not drives:
        return None
    means = [float(np.mean(values)) for values in drives.values()]
    between = [np.var(values, ddof=1) for values in drives.values() if len(values) > 1]
    return Spread(
        float(np.mean(means)),
        float(np.std(means, ddof=1)) if len(means) > 1 else None,
        float(np.sqrt(np.mean(between))) if between else None,
    )


def about_spread(rows: Iterable[Row]) -> str:
    """The sentence below a table of `mean_and_spread`."""
    if any(DRAW in row.point for row in rows):
        return (
            "Mean ± standard deviation over data and seeds, of the means over draws; device: the standard deviation "
            "between draws of the same point."
        )
    return "Mean ± standard deviation over the runs."


def mean_and_spread(rows: Iterable[Row], metric: str, mean: str = ".3f", spread: str = "") -> str:
    """The mean of a metric, ± its spread over data and seeds, and (device ± that between draws); "–" of none.

    `mean` and `spread` are the formats; `spread` is that of the mean where it is not given.
    """
    found = spread_of(rows, metric)
    if found is None:
        return "–"
    over_data = "" if found.over_data is None else f" ± {found.over_data:{spread or mean}}"
    of_device = "" if found.of_device is None else f" (device ± {found.of_device:{spread or mean}})"
    return f"{found.mean:{mean}}{over_data}{of_device}"


def table_of_means(
    title: str, models: Models, metrics: Mapping[str, str], mean: str = ".3f", spread: str = "", note: str = ""
) -> Table:
    """`mean_and_spread` of metrics (name -> heading) by model, over the runs."""
    body = [
        [name, str(len(runs)), *(mean_and_spread(runs, metric, mean, spread) for metric in metrics)]
        for name, runs in models.items()
    ]
    return Table(title, ["model", "runs", *metrics.values()], body, about_spread(chain(*models.values())) + note)


# ---- What the tasks share that ask for one of several answers: counted errors, their interval, table and figure.


# Where the normal distribution leaves 2.5 % on either side.
_Z = 1.959964

# Models whose confusions are drawn.
_SHOWN = 4


def wilson_interval(errors: float, trials: float) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927), within [0, 1].

    (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n) with p = errors/n; good down to no error at all.
    """
    share = errors / trials
    centre = share + _Z**2 / (2 * trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    # The share lies within; rounding could put it a trace outside.
    return min(share, max(0.0, (centre - half) / scale)), max(share, min(1.0, (centre + half) / scale))


def counted(wrong: np.ndarray, name: str = "error_rate") -> Evaluation:
    """The share that is True under `name`, and the ends of its 95 % interval under `name/low` and `name/high`.

    `arrays` are `errors` and `trials` (), which `error_table` and `error_figure` pool.
    """
    errors = int(np.count_nonzero(wrong))
    low, high = wilson_interval(errors, wrong.size)
    metrics = {name: errors / wrong.size, f"{name}/low": low, f"{name}/high": high}
    return Evaluation(metrics, {"errors": np.array(errors), "trials": np.array(wrong.size)})


def counted_classes(right: np.ndarray, answers: np.ndarray, classes: int) -> Evaluation:
    """As `counted`, of numbers of classes (n,); also the array `confusion` (right, answer), counts."""
    found = counted(answers != right)
    found.arrays["confusion"] = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(found.arrays["confusion"], (right, answers), 1)
    return found


def padded(sequences: Sequence[np.ndarray], labels: Sequence[int], classes: int, *, at_end: bool = False) -> Split:
    """A split of sequences (steps, inputs) of a class each, with 0 behind their ends.

    Targets are 1 for the class and 0 for the others, at every step.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    inputs = np.zeros((len(sequences), lengths.max(), sequences[0].shape[1]), np.float32)
    targets = np.zeros((*inputs.shape[:2], classes), np.float32)
    for row, (sequence, label, length) in enumerate(zip(sequences, labels, lengths, strict=True)):
        inputs[row, :length] = sequence
        targets[row, :length, label] = 1.0
    return Split(inputs, targets, lengths=lengths, at_end=at_end)


_OF_DATA = ("task.dataset", "task.seed", "task.task.dataset", "task.task.seed")


def pooled(runs: Sequence[Row]) -> tuple[float, float]:
    """Errors and trials of the runs together, as if they were one long test.

    Runs on the same data count as one with the mean of their errors: they say no more about the chance in the test.
    A task whose seed does not decide about its test says which test it was, by an array `test`.
    """
    tests = len({str(run.evaluation.arrays.get("test", [run.point.get(key) for key in _OF_DATA])) for run in runs})
    errors, trials = (sum(int(run.evaluation.arrays[name]) for run in runs) for name in ("errors", "trials"))
    return errors * tests / len(runs), trials * tests / len(runs)


def error_table(found: Models, title: str, trials: str, further: Sequence[str] = ()) -> Table:
    """Error rates with their intervals by model, runs pooled; `further` metrics as means over the runs.

    `trials` says in the plural what was counted.
    """
    body = []
    for name, runs in found.items():
        errors, total = pooled(runs)
        low, high = wilson_interval(errors, total)
        means = [np.mean([run.evaluation.metrics[metric] for run in runs]) for metric in further]
        body.append(
            [
                name,
                str(len(runs)),
                f"{total:,.0f}",
                f"{errors:,.0f}" if errors == round(errors) else f"{errors:,.1f}",
                f"{errors / total:.2%}",
                f"{low:.2%} to {high:.2%}",
                *(f"{mean:.3g}" for mean in means),
            ]
        )
    header = ["model", "runs", trials, "errors", "error rate", "95 % interval", *further]
    note = (
        f"Intervals: Wilson, of the chance in the test alone, with the {trials} taken as independent. Runs on the same "
        "test data count as one, with the mean of their errors."
    )
    return Table(title, header, body, note)


def error_figure(found: Models, trials: str, guessing: float) -> Figure:
    """Error rates with their intervals by model, beside the rate of guessing where that is not far away."""
    drawn, axes = one_panel(7.5, 1.8 + 0.35 * len(found))
    largest = 0.0
    for height, (runs, colour) in enumerate(zip(found.values(), colours(len(found)), strict=True)):
        errors, total = pooled(runs)
        rate, (low, high) = 100 * errors / total, 100 * np.array(wilson_interval(errors, total))
        axes.errorbar(rate, height, xerr=[[rate - low], [high - rate]], fmt="o", color=colour, capsize=3)
        axes.annotate(f"{rate:.2f}", (rate, height), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8)
        largest = max(largest, high)
    if 100 * guessing < 3 * largest:
        axes.axvline(100 * guessing, color="0.5", linewidth=1, linestyle="--")
        axes.annotate("guessing ", (100 * guessing, -0.55), color="0.4", fontsize=9, ha="right", va="top")
    axes.set_yticks(range(len(found)), found)
    label = f"{trials} with the wrong answer (%, with 95 % interval; guessing: {100 * guessing:.0f} %)"
    # A little to the left, so that a point at 0 is seen whole.
    axes.set(ylim=(len(found) - 0.5, -0.6), xlim=(-0.04 * largest, None), xlabel=label)
    return drawn


def error_curves(rows: Sequence[Row], parameter: str, trials: str, guessing: float) -> Figure:
    """Error rates with their intervals against a parameter of the task that varies, a curve for each model."""
    key = f"task.{parameter}"
    values = sorted({row.point[key] for row in rows})
    points: dict[str, list[tuple[float, float, float]]] = {}
    for value in values:
        same = [row for row in rows if row.point[key] == value]
        here = [replace(row, point={k: v for k, v in row.point.items() if k != key}) for row in same]
        for name, runs in by_model(here).items():
            points.setdefault(name, []).append((value, *pooled(runs)))
    drawn, axes = one_panel(7.5, 4.4)
    for (name, found), colour in zip(points.items(), colours(len(points)), strict=True):
        x, errors, total = np.array(found).T
        rates = errors / total
        low, high = np.array([wilson_interval(*counts) for _, *counts in found]).T
        bars = rates - low, high - rates
        axes.errorbar(x, rates, bars, fmt="o-", color=colour, markersize=4, capsize=3, label=name)
    axes.axhline(guessing, color="0.5", linewidth=1, linestyle="--", label="guessing")
    label = f"error rate of {trials} (95 % interval)"
    axes.set(xticks=values, ylim=(-0.01, 1.08 * guessing), xlabel=parameter, ylabel=label)
    axes.grid(axis="y", color="0.92")
    drawn.legend(loc="outside right center", frameon=False)
    return drawn


def confusion_figure(models: Models, classes: Sequence[object], trials: str, what: str = "class") -> Figure:
    """Which class was taken for which in the tests of all runs, from the array `confusion` (right, answer)."""
    shown, which = best(models, "error_rate", _SHOWN)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    wrong: dict[str, Any] = {"color": "crimson", "weight": "bold", "bbox": box}
    figure = new_figure(1.2 + 3.6 * len(shown), 4.2)
    grid = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (name, runs) in zip(grid, shown.items(), strict=True):
        confusion = np.sum([run.evaluation.arrays["confusion"] for run in runs], axis=0)
        axes.imshow(np.sqrt(confusion / confusion.sum(axis=1, keepdims=True)), cmap="Blues", vmin=0, vmax=1)
        for right, answer in np.argwhere(confusion):
            look = {"color": "white"} if right == answer else wrong
            axes.text(answer, right, confusion[right, answer], ha="center", va="center", **look)
        axes.set_xticks(range(len(confusion)), classes)
        axes.set_yticks(range(len(confusion)), classes)
        axes.set_xlabel(f"answer: {what}")
        axes.set_title(name, fontsize=10)
    grid[0].set_ylabel(f"right answer: {what}")
    figure.suptitle(f"Which {what} was taken for which ({trials} of the test; red: wrong){which}")
    return figure
