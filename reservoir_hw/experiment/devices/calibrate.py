"""Calibrate the bench of a reservoir file: a calibration file, a figure beside it, and what to change in the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.backends.visa.calibrate import Calibrated
from reservoir_hw.backends.visa.calibration import FILLED, Calibration, Estimate
from reservoir_hw.backends.visa.configuration import BenchConfig
from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.figure_style import panels, whole_numbers
from reservoir_hw.experiment.devices.info import reservoir_from_file
from reservoir_hw.experiment.states.progress import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CalibrationResult:
    """A calibration, where it lies, and what to change in the reservoir file."""

    calibration: Calibration
    file: Path
    figure: Path | None
    remarks: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON. How the device answers to a marker is in the file alone."""
        found = self.calibration.model_dump(mode="json", exclude={"marker_answer_v", "marker_answer_rate_hz"})
        figure = None if self.figure is None else str(self.figure)
        return {"id": self.calibration.id, **found, "file": str(self.file), "figure": figure, "remarks": self.remarks}

    def facts(self) -> list[tuple[str, str]]:
        """For people: names and what there is to say about them. Intervals hold with 95 %."""
        found = self.calibration
        return [
            ("gain", _within(found.gain, "V/V", 1.0)),
            ("offset", _within(found.offset_v, "mV", 1e3)),
            ("delay", _within(found.delay_s, "µs", 1e6)),
            ("tau", _within(found.tau_s, "µs", 1e6)),
            ("noise", f"{_within(found.noise_v, 'mV', 1e3)}, rms"),
            ("linear range", f"{_range(found.linear_range_v)} V at the output"),
            ("answer", f"{_range(found.answer_range_v)} V"),
            ("vertical range", f"{_range(found.vertical_range_v)} V"),
            ("memory", f"{found.memory_steps} steps"),
        ]


def calibrate_file(
    file: str | Path,
    out: str | Path | None = None,
    *,
    set: Iterable[str] = (),
    inputs: int | None = None,
    progress: Progress | None = None,
) -> CalibrationResult:
    """Measure the bench of a reservoir or experiment file, and write what was found.

    By default it is written where `calibration:` of the reservoir says, or else to FILE.calibration.json. A figure with
    the same name ends in .png. Raises `ConfigurationError` for a reservoir that is no bench, `CalibrationError` for a
    device that cannot be calibrated.
    """
    config, _ = reservoir_from_file(file, set=set, inputs=inputs)
    if not isinstance(config, BenchConfig):
        raise ConfigurationError(f"{file}: kind {config.kind} has nothing to calibrate: a bench (kind: visa) has")
    with extra("visa", "a calibration needs scipy"):
        from reservoir_hw.backends.visa.calibrate import calibrate
    path = Path(out or config.calibration or Path(file).with_suffix(".calibration.json"))
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path} cannot be written: there is no folder {path.parent}")
    measured = calibrate(config, progress)
    measured.calibration.save(path)
    remarks, figure = _remarks(config, measured.calibration, path), path.with_suffix(".png")
    try:
        calibration_figure(measured).savefig(figure, dpi=150)
    except ImportError:
        figure = None
        remarks.append("no figure: matplotlib is not installed (pip install 'reservoir-hw[report]')")
    return CalibrationResult(measured.calibration, path, figure, remarks)


def _remarks(config: BenchConfig, found: Calibration, path: Path) -> list[str]:
    remarks = []
    if config.calibration is None or Path(config.calibration) != path:
        remarks.append(f"to use it, write into the reservoir file: calibration: {path}")
    number = config.channels.answer
    (low, high), (lowest, highest) = config.digitizer.inputs[number].range_v, found.answer_range_v
    better = f"{number}: {{range_v: [{found.vertical_range_v[0]:.4g}, {found.vertical_range_v[1]:.4g}]}}"
    if lowest < low or highest > high:
        remarks.append(f"the answer leaves the range [{low:g}, {high:g}] of input {number}: digitizer.inputs: {better}")
    elif highest - lowest < FILLED * (high - low):
        part = (highest - lowest) / (high - low)
        remarks.append(f"the answer fills {part:.0%} of the range of input {number}: digitizer.inputs: {better}")
    if found.memory_steps > config.memory_steps:
        remarks.append(
            f"the device remembers {found.memory_steps} steps, and memory_steps is {config.memory_steps}: take more"
        )
    return remarks


def _within(found: Estimate, unit: str, scale: float) -> str:
    value, low, high = (scale * x for x in (found.value, found.low, found.high))
    return f"{value:.5g} {unit} ({low:.5g} to {high:.5g})"


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4g} to {ends[1]:.4g}"


# ---- What a calibration was taken from, in four panels.


_MAIN, _SECOND, _QUIET = "#26547c", "#d1495b", "0.6"
_POINTS = 4000


def calibration_figure(measured: Calibrated) -> Figure:
    """Small step, settled levels, memory, and the answer in the range of the digitizer."""
    found = measured.calibration
    figure, grid = panels(11.0, 7.0, 2, 2)
    _small_step(grid[0, 0], measured)
    _settled_levels(grid[0, 1], measured)
    _memory(grid[1, 0], measured)
    _answer(grid[1, 1], measured)
    title = f"Calibration {found.id} of {found.chain.device_name}, {found.made:%Y-%m-%d %H:%M} UTC"
    figure.suptitle(title, x=0.01, horizontalalignment="left")
    return figure


def _small_step(axes: Axes, measured: Calibrated) -> None:
    first, fit, found = measured.first, measured.first.fit, measured.calibration
    shown = first.times <= 2 * fit.until_s
    every = max(1, np.count_nonzero(shown) // _POINTS)
    times = 1e6 * first.times[shown][::every]
    axes.plot(times, first.volts[shown][::every], color=_QUIET, linewidth=2.5, label="measured")
    fitted = first.times[first.times <= fit.until_s]
    axes.plot(1e6 * fitted, fit.at(fitted), color=_SECOND, linewidth=1, label="delay and one time constant")
    axes.axhline(found.gain.value, color=_MAIN, linewidth=0.8, linestyle="--", label=f"settled: {found.gain.value:.4g}")
    axes.set(xlabel="time after a small step (µs)", ylabel="answer per volt (V/V)")
    axes.set_title(f"Delay {1e6 * found.delay_s.value:.3g} µs, tau {1e6 * found.tau_s.value:.4g} µs", loc="left")
    axes.legend(frameon=False, loc="lower right")


def _settled_levels(axes: Axes, measured: Calibrated) -> None:
    found = measured.calibration
    axes.plot(measured.levels_v, measured.level_answers_v, "o", markersize=3, color=_MAIN, label="measured")
    low, high = axes.get_ylim()
    every = np.linspace(measured.levels_v[0], measured.levels_v[-1], 500)
    line = found.offset_v.value + found.gain.value * (every - found.chain.rest_v)
    seen = (line > low) & (line < high)
    axes.plot(every[seen], line[seen], color=_SECOND, linewidth=1, label=f"gain {found.gain.value:.4g} V/V")
    axes.axvspan(*found.linear_range_v, color=_SECOND, alpha=0.15, linewidth=0, label="less than 5 % from the line")
    axes.set(xlabel="level of the output (V)", ylabel="settled answer (V)")
    axes.set_title(f"Linear from {found.linear_range_v[0]:.3g} to {found.linear_range_v[1]:.3g} V", loc="left")
    axes.legend(frameon=False)


def _memory(axes: Axes, measured: Calibrated) -> None:
    steps, smallest = np.arange(1, len(measured.memory) + 1), 0.05
    axes.semilogy(steps, np.maximum(measured.memory, smallest), "o-", markersize=3, linewidth=1, color=_MAIN)
    axes.axhline(1, color=_SECOND, linewidth=1, label="noise of a state")
    axes.set_ylim(bottom=smallest)
    axes.set(xlabel="steps since inputs are the same", ylabel="left of the past, as a part\nof the noise of a state")
    whole_numbers(axes.xaxis)
    axes.set_title(f"Remembers {measured.calibration.memory_steps} steps", loc="left")
    axes.legend(frameon=False)


def _answer(axes: Axes, measured: Calibrated) -> None:
    low, high = measured.calibration.vertical_range_v
    volts = measured.answer.volts
    counts, edges = np.histogram(volts, bins=80, range=(low, high))
    axes.stairs(counts / len(volts), edges, fill=True, color=_MAIN, alpha=0.6)
    for end in (low, high):
        axes.axvline(end, color=_SECOND, linewidth=1.5)
    lowest, highest = measured.calibration.answer_range_v
    axes.set(xlabel="answer (V); lines: range of the digitizer", ylabel="share of samples")
    axes.set_title(f"Fills {(highest - lowest) / (high - low):.0%} of {low:.3g} to {high:.3g} V", loc="left")
