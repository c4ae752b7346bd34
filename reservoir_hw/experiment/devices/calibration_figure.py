"""What a calibration was taken from, in four panels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.backends.visa.calibrate import Calibrated
from reservoir_hw.core.figure_style import panels, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    fit, found = measured.step_fit, measured.calibration
    shown = measured.step_times <= 2 * fit.until_s
    every = max(1, np.count_nonzero(shown) // _POINTS)
    times = 1e6 * measured.step_times[shown][::every]
    axes.plot(times, measured.step_v[shown][::every], color=_QUIET, linewidth=2.5, label="measured")
    fitted = measured.step_times[measured.step_times <= fit.until_s]
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
    line = found.offset_v.value + found.gain.value * (every - measured.rest_v)
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
