"""Outputs beside the series that they follow, and forecasts in a closed loop, as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, new_figure, one_panel, panels, plain
from reservoir_hw.core.statistics import half_width
from reservoir_hw.tasks.report import Models, best, metric_values
from reservoir_hw.tasks.task import Figures, Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 4

PIECE = 200
"""Steps of the test that the figure shows: the arrays `piece/targets` and `piece/outputs` (steps,)."""

_MOST_LINES = 20
# From this ratio of the largest to the smallest error on, a linear axis would hide the small ones.
_LOGARITHMIC = 20


def series_figures(models: Models) -> Figures:
    """`series`: outputs beside targets with their error; `nmse`: the error of every run."""
    return {"series": _series_figure(models), "nmse": _error_figure(models)}


def _series_figure(models: Models) -> Figure:
    shown, which = best(models, "nmse", _SHOWN)
    size = (11.0, 1.4 + 1.5 * len(shown))
    figure, grid = panels(*size, len(shown), 3, sharey="col", squeeze=False, width_ratios=[4, 4, 1.6])
    for (above, below, against), (name, runs), colour in zip(grid, shown.items(), colours(len(shown)), strict=True):
        arrays = runs[0].evaluation.arrays
        steps = np.arange(len(arrays["piece/targets"]))
        ends = [arrays["piece/targets"].min(), arrays["piece/targets"].max()]
        against.plot(ends, ends, color="0.6", linewidth=1)
        against.plot(arrays["piece/targets"], arrays["piece/outputs"], ".", color=colour, markersize=2)
        against.set_ylabel("output")
        above.plot(steps, arrays["piece/targets"], color="0.6", linewidth=2.5)
        above.plot(steps, arrays["piece/outputs"], color=colour, linewidth=1)
        above.set_title(name, fontsize=10, loc="left")
        below.axhline(0, color="0.6", linewidth=1)
        below.plot(steps, arrays["piece/outputs"] - arrays["piece/targets"], color=colour, linewidth=1)
        above.set_ylabel("value")
        below.set_ylabel("output - target")
    for axes in grid[-1, :2]:
        axes.set_xlabel("step of the test")
    grid[-1, 2].set_xlabel("target")
    figure.suptitle(f"Outputs (in colour) and target (grey) at the beginning of the test, first run{which}")
    return figure


def _error_figure(models: Models) -> Figure:
    models, which = best(models, "nmse", _MOST_LINES)
    figure, axes = one_panel(7.5, 1.6 + 0.35 * len(models))
    found = [np.array([run.evaluation.metrics["nmse"] for run in runs]) for runs in models.values()]
    for height, (errors, colour) in enumerate(zip(found, colours(len(found)), strict=True)):
        axes.plot(errors, np.full(len(errors), height), "o", color=colour, markersize=4, alpha=0.6)
        axes.plot(errors.mean(), height, "|", color="black", markersize=14)
        if len(errors) > 2:
            reach = half_width(errors)
            axes.plot(errors.mean() + np.array([-reach, reach]), [height, height], color="black", linewidth=1)
    axes.set_yticks(range(len(models)), models)
    everything = np.concatenate(found)
    if 0 < _LOGARITHMIC * everything.min() < everything.max():
        axes.set_xscale("log")
        axes.grid(axis="x", color="0.92")
    else:
        axes.set_xlim(left=0)
    interval = " with its 95 % interval" if any(len(errors) > 2 for errors in found) else ""
    axes.set(ylim=(len(models) - 0.5, -0.5), xlabel=f"NMSE (dots: runs, bar: their mean{interval})")
    axes.set_title(which.removeprefix("; "), loc="left", fontsize=10)
    return figure


# ---- Forecasts in a closed loop beside how the series truly goes on.


Portrait = tuple[tuple[int, int], tuple[int, int]]

_SCORE = "valid_steps"
_CHANNELS = 4
_TRUTH = "0.65"


def forecast_table(models: Models, title: str) -> Table:
    """Valid prediction times, over the starts of all runs."""
    counts = ["diverged", "whole"]
    known = dict.fromkeys(name for runs in models.values() for run in runs for name in run.evaluation.metrics)
    further = [name for name in known if name.startswith("nrmse/")]
    factors = {name: _lyapunov_per_step(runs) for name, runs in models.items()}
    body = []
    for name, runs in models.items():
        valid, factor = _valid(runs), factors[name]
        quartiles = np.percentile(valid, [50, 25, 75])
        cells = [name, str(len(runs)), str(len(valid)), "{:g} ({:g} to {:g})".format(*quartiles)]
        if any(factors.values()):
            cells.append("{:.2f} ({:.2f} to {:.2f})".format(*(quartiles * factor)) if factor else "–")
        cells += [f"{sum(run.evaluation.metrics[count] for run in runs):g}" for count in counts]
        for metric in further:
            found = metric_values(runs, metric)
            cells.append(f"{found.mean():.2e}" if len(found) else "–")
        body.append(cells)
    header = ["model", "runs", "starts", "valid steps"]
    header += ["Lyapunov times"] * any(factors.values())
    header += [*counts, *(f"NRMSE after {metric.rpartition('/')[2]}" for metric in further)]
    limits = " or ".join(f"{threshold:g}" for threshold in _thresholds(models))
    note = (
        f"Valid until the error exceeds {limits} of the series' standard deviation: median over the starts "
        "(quartiles). Diverged: starts whose forecast left every bound. Whole: still valid at the end of the forecast."
    )
    return Table(f"{title}, closed loop", header, body, note)


def forecast_figures(models: Models, channel_names: Sequence[str], portrait: Portrait) -> Figures:
    """Figures by file stem."""
    return {
        "forecast": _forecast_figure(models, channel_names),
        "forecast_error": _growth_figure(models),
        "valid_steps": _valid_figure(models),
        "attractor": _attractor_figure(models, channel_names, portrait),
    }


def _lyapunov_per_step(runs: Sequence[Row]) -> float | None:
    known = runs[0].evaluation.arrays.get("lyapunov_per_step")
    return None if known is None else float(known)


def _thresholds(models: Models) -> list[float]:
    return sorted({float(runs[0].evaluation.arrays["threshold"]) for runs in models.values()})


def _valid(runs: Sequence[Row]) -> np.ndarray:
    return np.concatenate([run.evaluation.arrays["valid_steps"] for run in runs])


def _typical(runs: Sequence[Row]) -> tuple[Row, int]:
    """Of the first run, the start whose valid time is the median."""
    valid = runs[0].evaluation.arrays["valid_steps"]
    return runs[0], int(np.argsort(valid, kind="stable")[(len(valid) - 1) // 2])


def _forecast_figure(models: Models, channel_names: Sequence[str]) -> Figure:
    shown, which = best(models, _SCORE, _SHOWN, largest=True)
    channels = min(len(channel_names), _CHANNELS)
    if channels < len(channel_names):
        which += f"; the first {channels} of {len(channel_names)} channels"
    figure = new_figure(9.0, 1.0 + (0.45 + 1.15 * channels) * len(shown))
    parts = np.atleast_1d(np.asarray(figure.subfigures(len(shown), 1)))
    for part, (name, runs), colour in zip(parts, shown.items(), colours(len(shown)), strict=True):
        run, start = _typical(runs)
        arrays = run.evaluation.arrays
        targets, outputs, valid = arrays["targets"][start], arrays["outputs"][start], int(arrays["valid_steps"][start])
        # A while beyond the valid time, where it can be seen how the two part.
        steps = np.arange(1, min(len(targets), max(3 * valid, 100)) + 1)
        grid = part.subplots(channels, 1, sharex=True, squeeze=False)[:, 0]
        for channel, axes in enumerate(grid):
            axes.plot(steps, targets[: len(steps), channel], color=_TRUTH, linewidth=2.5, label="true series")
            axes.plot(steps, outputs[: len(steps), channel], color=colour, linewidth=1.2, label="forecast")
            axes.set_ylim(_window(targets[:, channel]))
            axes.axvspan(0, valid, color="0.95", zorder=0)
            axes.axvline(valid, color="crimson", linewidth=1)
            axes.set_ylabel(channel_names[channel])
            axes.set_xlim(0, steps[-1])
            plain(axes)
        factor = _lyapunov_per_step(runs)
        times = "" if factor is None else f", {valid * factor:.1f} Lyapunov times"
        part.suptitle(f"{name}: valid for {valid} steps{times} (line)", fontsize=10, x=0.02, ha="left")
        grid[-1].set_xlabel("steps after the last true input")
    parts[0].legend(
        *parts[0].axes[0].get_legend_handles_labels(), loc="upper right", ncols=2, fontsize=8, frameon=False
    )
    figure.suptitle("The start with the median valid time: nothing but its own answers is fed back" + which)
    return figure


def _growth_figure(models: Models) -> Figure:
    figure, axes = one_panel(7.5, 4.6)
    last = 1
    for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
        errors = np.concatenate([run.evaluation.arrays["error"] for run in runs])
        # Not that of numpy: it cannot interpolate between infinities, which are forecasts that diverged.
        low, middle, high = np.percentile(np.minimum(errors, 1e9), [25, 50, 75], axis=0)
        steps = np.arange(1, errors.shape[1] + 1)
        axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(steps, middle, color=colour, linewidth=1.6, label=name)
        last = max(last, min(errors.shape[1], int(2.5 * np.median(_valid(runs))) + 20))
    for threshold in _thresholds(models):
        axes.axhline(threshold, color="crimson", linewidth=1)
        axes.annotate(f" {threshold:g}: no longer valid", (1, threshold), color="crimson", fontsize=9, va="bottom")
    axes.set(yscale="log", xlim=(1, last), ylim=(None, 5))
    axes.set(xlabel="steps after the last true input", ylabel="error / standard deviation of the series")
    _lyapunov_axis(axes, models)
    axes.set_title("How the error of the forecast grows (median and quartiles of the starts)", fontsize=11)
    figure.legend(loc="outside right center", frameon=False)
    axes.grid(axis="y", color="0.92")
    return figure


def _valid_figure(models: Models) -> Figure:
    figure, axes = one_panel(7.5, 2.0 + 0.4 * len(models))
    for height, (runs, colour) in enumerate(zip(models.values(), colours(len(models)), strict=True)):
        valid = _valid(runs)
        low, middle, high = np.percentile(valid, [25, 50, 75])
        axes.plot([low, high], [height, height], color=colour, linewidth=9, alpha=0.25, solid_capstyle="butt")
        axes.plot(valid, np.full(len(valid), height), "o", color=colour, markersize=4, alpha=0.6)
        axes.plot(middle, height, "|", color="black", markersize=16)
    axes.set_yticks(range(len(models)), models)
    label = "valid steps (dots: starts, band: quartiles, bar: median)"
    axes.set(ylim=(len(models) - 0.5, -0.5), xlim=(0, None), xlabel=label)
    _lyapunov_axis(axes, models)
    return figure


def _attractor_figure(models: Models, channel_names: Sequence[str], portrait: Portrait) -> Figure:
    shown, which = best(models, _SCORE, _SHOWN - 1, largest=True)
    figure, grid = panels(3.2 * (1 + len(shown)), 3.6, 1, 1 + len(shown), sharex=True, sharey=True)
    run, start = _typical(next(iter(shown.values())))
    truth = run.evaluation.arrays["targets"][start]
    _draw_portrait(grid[0], truth, portrait, "0.35")
    grid[0].set_title("true series", fontsize=10)
    for axes, (name, runs), colour in zip(grid[1:], shown.items(), colours(len(shown)), strict=True):
        run, start = _typical(runs)
        _draw_portrait(axes, run.evaluation.arrays["outputs"][start], portrait, colour)
        axes.set_title(f"{name}, forecast", fontsize=10)
    x, y = (f"{channel_names[channel]}(t{f' - {delay}' if delay else ''})" for channel, delay in portrait)
    across, up = (_window(truth[:, channel]) for channel, _ in portrait)
    grid[0].set(xlim=across, ylim=up, ylabel=y)
    for axes in grid:
        axes.set_xlabel(x)
    figure.suptitle(f"The way of {len(truth)} steps: a good forecast keeps the shape when it has lost the path{which}")
    return figure


def _draw_portrait(axes: Axes, series: np.ndarray, portrait: Portrait, colour: object) -> None:
    longest = max(delay for _, delay in portrait)
    lines = [series[longest - delay : len(series) - delay, channel] for channel, delay in portrait]
    axes.plot(*lines, color=colour, linewidth=0.6)  # type: ignore[arg-type]


def _window(series: np.ndarray) -> tuple[float, float]:
    """Ends of what is drawn: a forecast that runs away must not flatten the series."""
    low, high = float(series.min()), float(series.max())
    middle, half = (low + high) / 2, 0.65 * (high - low)
    return middle - half, middle + half


def _lyapunov_axis(axes: Axes, models: Models) -> None:
    """A second axis above, where a Lyapunov time is the same number of steps for all models."""
    factors = {_lyapunov_per_step(runs) for runs in models.values()}
    factor = factors.pop()
    if factor is None or factors:
        return
    above = axes.secondary_xaxis(
        "top", functions=(lambda steps: np.multiply(steps, factor), lambda times: np.divide(times, factor))
    )
    above.set_xlabel("Lyapunov times")
