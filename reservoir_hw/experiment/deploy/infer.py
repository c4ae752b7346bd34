"""A bundle at work: which reservoirs it gets, series in and out, and where the time goes. Needs no torch."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    InputRangeError,
    MissingExtra,
    OutputFault,
    ShapeError,
)
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.tables.configuration import ReadConfig
from reservoir_hw.experiment.deploy.pipe import Lines
from reservoir_hw.experiment.deploy.series_files import line_of, numbers, read_series
from reservoir_hw.experiment.deploy.watching import Watch
from reservoir_hw.experiment.states.progress import Progress
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.readout.edge.sessions import StageLatency
from reservoir_hw.readout.edge.verification import LARGEST
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_probe(runner: EdgeRunner) -> list[dict[str, float]]:
    """Compare each device with its golden response; returns the deviations.

    Raises `ConfigurationError` for a device that answers otherwise.
    """
    found = []
    for number, seen in enumerate(runner.verify_probe()):
        if not seen.same:
            raise ConfigurationError(
                f"reservoir {number} does not answer as the one that the model was trained on: its response deviates "
                f"by {seen.deviation:.1f} times what repeats differ by (at most {LARGEST:g} passes; node "
                f"{seen.worst_node}: {seen.worst_deviation:.1f}); train on this device"
            )
        found.append({"deviation": seen.deviation, "worst_node": seen.worst_node})
    return found


# ---- series


def read_warmup(path: Path, runner: EdgeRunner, read: ReadConfig) -> np.ndarray:
    """A series (time, inputs) that is driven before others. Raises `ConfigurationError` for one that cannot be."""
    manifest = runner.manifest
    once = manifest.reads_last or (manifest.series is not None and bool(manifest.series.classes))
    if once or manifest.whole_sequences:
        raise ConfigurationError(f"{manifest.model} answers whole series from rest, not row by row: no --warmup")
    found = read_series(path, manifest, read)
    if len(found) != 1:
        raise ConfigurationError(f"--warmup: {path} has {len(found)} series, not one")
    try:
        runner.checked(found)
    except InputRangeError as error:
        raise InputRangeError(f"{path}: {error}") from error
    return found[0]


PIECE = 4096
"""Steps that `run_series` lets pass before what was answered is kept."""


def require_place(path: Path, option: str) -> None:
    """Raise `ConfigurationError` where no file can be written, before anything is driven."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigurationError(f"{option} {path} is a folder: name a file")
    # An npy file is replaced as a whole; others are written in their place.
    place = path if path.exists() and path.suffix.lower() != ".npy" else path.parent
    if not os.access(place, os.W_OK):
        raise ConfigurationError(f"{option} {path}: no permission to write to {place}")


def run_series(
    runner: EdgeRunner,
    inputs: np.ndarray,
    progress: Progress,
    *,
    stepwise: bool = False,
    answered: list[np.ndarray] | None = None,
    forecast: int | None = None,
    watch: Watch | None = None,
) -> np.ndarray:
    """Outputs of a whole series from rest, (batch, time, outputs); `stepwise` as a controller would, for its times.

    With `forecast`, how it goes on for so many steps, (batch, steps, outputs).

    `answered` gets the outputs (batch, steps, outputs) of each call at once: they stay when a later one fails. Where a
    sequence may go on from call to call, a call has at most `PIECE` steps. `watch` may put nan in their place.
    """
    watch = watch or Watch(runner)
    # Its width, before anything looks at it.
    runner.checked(inputs[:, :0])
    inputs = watch.begin(inputs)
    runner.checked(inputs)
    steps = inputs.shape[1]
    runner.reset(len(inputs))
    pieces = [] if answered is None else answered
    if forecast is not None:
        progress("forecasting", 0, forecast)
        try:
            return runner.forecast(inputs, forecast)
        except OutputFault as fault:
            pieces.append(fault.outputs)
            raise
    # In int8 all inputs of a call share one scale: what was judged is step by step.
    if (stepwise or runner.manifest.precision == "int8") and not runner.whole_sequences:
        for step in range(steps):
            progress("step by step", step, steps)
            watch.answered(runner.step(inputs[:, step])[:, None], pieces)
    else:
        goes_on = not runner.whole_sequences and all(
            _goes_on(reservoir.spec, len(inputs)) for reservoir in runner.reservoirs
        )
        length = PIECE if goes_on else max(1, steps)
        for start in range(0, steps, length):
            progress("running", start, steps)
            try:
                found = runner.run(inputs[:, start : start + length])
            except OutputFault as fault:
                watch.answered(fault.outputs, pieces)
                raise
            except InputRangeError as error:
                if start:
                    error.add_note(f"steps are counted from step {start} of the series")
                raise
            watch.answered(found, pieces)
    outputs = np.concatenate(pieces, 1) if pieces else runner.run(inputs)
    return outputs[:, -1:] if runner.manifest.reads_last else outputs


def _goes_on(spec: ReservoirSpec, batch: int) -> bool:
    """Whether a device can continue this many sequences from call to call without driving anything again."""
    return spec.continuity == "held" and (spec.max_batch is None or batch <= spec.max_batch or spec.snapshot)


def stream_series(runner: EdgeRunner, lines: Lines, watch: Watch) -> Iterator[np.ndarray]:
    """Outputs (outputs,) for each line as it comes. A line that cannot be used ends it, by its number.

    The warm-up series of `watch` is driven before the first line is taken.
    """
    series, (width,) = runner.manifest.series, runner.manifest.input.shape
    runner.reset()
    for row in watch.begin()[0]:
        watch.answered(runner.step(row[None])[:, None], [])
    if len(watch.warmup):
        runner.stopwatch.clear()
        lines.begin()
        watch.tell("ready")
    for number, row in numbers(lines, watch.name, () if series is None else series.input_names, live=lines.live):
        watch.line, at = number, f"{watch.name}:{number}"
        if len(row) != width:
            raise ShapeError(f"{at}: {len(row)} numbers, but the model takes {width} inputs")
        if watch.outside == "pass" and not np.isfinite(row).all():
            raise InputRangeError(f"{at}: the inputs of a step must be finite, not {line_of(row).strip()}")
        found: list[np.ndarray] = []
        watch.answered(_stepped(runner, row[None, None], watch, at)[:, None], found)
        lines.answered()
        yield found[0][0, 0]
        lines.refuse_late()


def _stepped(runner: EdgeRunner, row: np.ndarray, watch: Watch, at: str) -> np.ndarray:
    """Outputs (1, outputs) of a row (1, 1, inputs), or of what is driven in its place."""
    before = watch.held
    driven = watch.taken(row)[:, 0]
    try:
        try:
            return runner.step(driven)
        except InputRangeError as error:
            if watch.outside != "nan":
                raise InputRangeError(f"{at}: {error}") from error
            return runner.step(watch.refused(before, str(error)))
    except DeviceError as error:
        error.add_note(f"{at} was not answered")
        raise


# ---- where the time goes


def latency_table(stages: Sequence[StageLatency]) -> Table:
    """p50 and p99 of each segment and each crossing, in microseconds."""

    def us(seconds: float) -> str:
        return "-" if math.isnan(seconds) else f"{seconds * 1e6:,.1f}"

    rows = [
        [one.stage, f"{one.calls:,}", *map(us, (one.p50_s, one.p99_s, one.longest_s, per_step_s(one)))]
        for one in stages
    ]
    median, mean = (sum(time(one) for one in stages if one.steps) for time in (typical_s, per_step_s))
    rows.append(["sum", "", us(median), "", "", us(mean)])
    return Table("Latency (µs)", ["stage", "calls", "p50", "p99", "longest", "mean per step"], rows)


def per_step_s(stage: StageLatency) -> float:
    """Mean time of a stage in seconds, for each time step."""
    return stage.mean_s * stage.calls / stage.steps if stage.steps else math.nan


def typical_s(stage: StageLatency) -> float:
    """Median time of a time step; the mean, where calls had several steps."""
    return stage.p50_s if stage.calls == stage.steps else per_step_s(stage)


def require_times(stages: Sequence[StageLatency]) -> None:
    """Raise `ConfigurationError` where there is no step that could be timed."""
    if not any(one.steps for one in stages):
        raise ConfigurationError(
            "nothing was timed: --latency and --figure need a series of at least one step, or a text of two tokens"
        )


def require_figure(path: Path) -> None:
    """Raise `ConfigurationError` or `MissingExtra` before anything is driven, where no figure can be written."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ConfigurationError(f"--figure {path}: a figure is a file that ends in .png, .pdf or .svg")
    require_place(path, "--figure")
    if find_spec("matplotlib") is None:
        raise MissingExtra("a figure needs matplotlib: pip install 'reservoir-hw[report]'")


def latency_figure(stages: Sequence[StageLatency], title: str) -> Figure:
    """The budget of a step: a bar of the median times, and how much each stage varies (median to 99th percentile)."""
    from matplotlib import colormaps
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    from reservoir_hw.core.figure_style import panels

    figure, (budget, spread) = panels(8.0, 1.9 + 0.28 * len(stages), 2, 1, height_ratios=[1, 0.6 + 0.3 * len(stages)])
    are_digital = [one.stage.startswith("segment") for one in stages]
    blues, oranges = (
        iter(colormaps[name](np.linspace(0.4, 0.7, are_digital.count(digital))))
        for name, digital in (("Blues", True), ("Oranges", False))
    )
    shades = [next(blues if digital else oranges) for digital in are_digital]
    times = [1e6 * typical_s(one) for one in stages]
    left, total = 0.0, sum(times)
    for time, shade in zip(times, shades, strict=True):
        budget.barh(0, time, left=left, color=shade, edgecolor="white", linewidth=0.8)
        if time > 0.07 * total:
            budget.text(left + time / 2, 0, f"{time:,.1f}", ha="center", va="center", fontsize=8)
        left += time
    digital = sum(itertools.compress(times, are_digital))
    budget.set_title(
        f"{title}: {total:,.1f} µs per step, {digital:,.1f} digital, {total - digital:,.1f} in the reservoir",
        fontsize=9, loc="left",
    )  # fmt: skip
    budget.set(yticks=[], xlim=(0, total), xlabel="median time (µs): blue is computed, orange the reservoir")
    rows = np.arange(len(stages))
    for row, one, shade in zip(rows, stages, shades, strict=True):
        spread.plot([1e6 * one.p50_s, 1e6 * one.p99_s], [row, row], color=shade, linewidth=5, solid_capstyle="butt")
        spread.plot(1e6 * one.p50_s, row, "|", color="black", markersize=9)
    spread.set_yticks(rows, [one.stage for one in stages])
    spread.set(ylim=(len(stages) - 0.5, -0.5), xscale="log")
    # The labels of minor ticks would run into each other where all times lie within a decade.
    spread.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    spread.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    spread.xaxis.set_minor_formatter(NullFormatter())
    spread.set_xlabel("time of a call (µs): median (|) to 99th percentile")
    return figure
