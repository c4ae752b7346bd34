"""Figures of the measures. They need the `report` extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.figure_style import colours, describe, new_figure, one_panel, panels
from reservoir_hw.measures._capacity import MemoryCapacity, ProcessingCapacity
from reservoir_hw.measures._climate import Climate
from reservoir_hw.measures._drift import Drift
from reservoir_hw.measures._lyapunov import EchoStateIndex, LyapunovExponent, LyapunovSpectrum
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._operating_map import BEHAVIOURS, Coverage, OperatingMap
from reservoir_hw.measures._rank import EffectiveDimension, Rank
from reservoir_hw.measures._repeats import Consistency, NoiseBudget, SignalToNoise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAIN, _SECOND, _QUIET = "#26547c", "#d1495b", "0.6"
_SHOWN_NODES = 5
_NAMED = 4


def figures(results: Mapping[str, Measured]) -> dict[str, Figure]:
    """A figure for each result, under its name. A result without anything to draw has no figure."""
    drawn = {name: _DRAW[type(result)](result) for name, result in results.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def memory_figure(result: MemoryCapacity) -> Figure:
    """What is remembered of each delay."""
    figure, axes = one_panel(8.0, 3.6)
    delays = np.arange(result.recall.shape[1])
    for channel, (recall, colour) in enumerate(zip(result.recall, colours(len(result.recall)), strict=True)):
        label = "recall" if len(result.recall) == 1 else f"recall of input {channel}"
        axes.plot(delays, recall, "o-", color=colour, markersize=3, linewidth=1, label=label)
    axes.fill_between(delays, result.threshold.max(axis=0), color=_QUIET, alpha=0.5, linewidth=0, label="chance")
    remembered = np.flatnonzero(result.capacities.any(axis=0))
    axes.set_xlim(-0.5, min(len(delays) - 0.5, 1.15 * (remembered[-1] if len(remembered) else 0) + 5))
    axes.set_ylim(0, 1.05)
    title = f"Linear memory capacity {result.value:.3g}; at most {result.rank}"
    x, y = "delay (steps)", "squared correlation r²\nof the best linear readout"
    describe(axes, title, x, y, counted=True, legend={})
    return figure


def processing_figure(result: ProcessingCapacity) -> Figure:
    """Capacity by degree, and by the longest delay."""
    figure, (whole, parts) = panels(9.0, 4.0, 1, 2, width_ratios=[1, 3])
    shades = colours(len(result.by_degree))
    longest = np.flatnonzero(result.by_delay.any(axis=0))
    delays = np.arange((longest[-1] if len(longest) else 0) + 1)
    bottom, below = 0.0, np.zeros(len(delays))
    for degree, (capacity, by_delay, colour) in enumerate(
        zip(result.by_degree, result.by_delay[:, : len(delays)], shades, strict=True), 1
    ):
        whole.bar(0, capacity, 0.6, bottom=bottom, color=colour)
        if capacity > 0.04 * result.rank:
            name = f"degree {degree}: {capacity:.3g}"
            lightness = "white" if sum(colour[:3]) < 1.5 else "black"
            whole.text(0, bottom + capacity / 2, name, ha="center", va="center", fontsize=8, color=lightness)
        label = "degree 1: linear memory" if degree == 1 else f"degree {degree}" if capacity > 0 else None
        parts.bar(delays, by_delay, 0.9, bottom=below, color=colour, label=label)
        bottom, below = bottom + capacity, below + by_delay
    whole.axhline(result.rank, color="black", linestyle="--", linewidth=1)
    whole.text(0, result.rank, f"at most {result.rank}", ha="center", va="bottom", fontsize=9)
    whole.set(ylim=(0, 1.1 * result.rank), xlim=(-0.5, 0.5), xticks=[])
    describe(whole, f"Total {result.value:.3g}", "", "capacity")
    title, delay = "Which functions of past inputs the states compute", "longest delay in the function (steps)"
    describe(parts, title, delay, "capacity", counted=True, legend={"fontsize": 9})
    return figure


def rank_figure(result: Rank) -> Figure:
    """The singular values with their threshold."""
    figure, axes = one_panel(7.0, 3.6)
    at = np.arange(1, result.singular_values.shape[1] + 1)
    positive = np.maximum(result.singular_values, np.finfo(np.float64).tiny)
    for values in positive:
        axes.semilogy(at, values, "o-", color=_MAIN, markersize=3, linewidth=0.8, alpha=0.7)
    axes.axhline(result.threshold, color=_SECOND, linestyle="--", linewidth=1, label="below: noise or rounding")
    axes.set_ylim(bottom=min(result.threshold, max(positive.min(), result.threshold * 1e-4)) / 5)
    what = "Kernel" if result.streams == "different" else "Generalisation"
    title = f"{what} rank {result.value:.3g}: states at the ends of {result.streams} input streams"
    x, y = "number of the singular value", "singular value\n(units of the state)"
    describe(axes, title, x, y, counted=True, legend={"fontsize": 9})
    return figure


def consistency_figure(result: Consistency) -> Figure:
    """Consistency of each node, and of the directions of the states."""
    figure, (nodes, profile) = panels(9.0, 3.6, 1, 2, sharey=True)
    nodes.plot(np.arange(len(result.nodes)), result.nodes, "o", color=_MAIN, markersize=4)
    nodes.axhline(result.value, color=_SECOND, linewidth=1)
    y = "consistency\n(1: fully reproduced, 0: unrelated)"
    describe(nodes, f"Nodes, mean {result.value:.3g} (line)", "node", y, counted=True)
    profile.plot(np.arange(1, len(result.profile) + 1), result.profile, "o-", color=_MAIN, markersize=3, linewidth=1)
    profile.fill_between(np.arange(1, len(result.profile) + 1), result.profile, color=_MAIN, alpha=0.15, linewidth=0)
    title = f"Directions, capacity {result.capacity:.3g} of {len(result.profile)}"
    describe(profile, title, "direction of the states, most consistent first", counted=True)
    low = float(np.nanmin(np.concatenate([result.nodes, result.profile])))
    nodes.set_ylim(min(0.0, low) - 0.03, 1.05)
    return figure


def signal_to_noise_figure(result: SignalToNoise) -> Figure | None:
    """Signal-to-noise ratio of each node; None where no node has a finite one."""
    at = np.flatnonzero(np.isfinite(result.nodes))
    if not len(at):
        return None
    figure, axes = one_panel(8.0, 3.4)
    axes.vlines(at, 0, result.nodes[at], color=_MAIN, linewidth=1)
    axes.plot(at, result.nodes[at], "o", color=_MAIN, markersize=4)
    axes.axhline(0, color=_QUIET, linewidth=1)
    if np.isfinite(result.value):
        axes.axhline(result.value, color=_SECOND, linewidth=1)
    left_out = len(result.nodes) - len(at)
    axes.set_xlim(-1, len(result.nodes))
    x = "node" + (f" ({left_out} without a finite ratio not shown)" if left_out else "")
    title = f"Signal to noise, {result.value:.3g} dB over all nodes (line)"
    describe(axes, title, x, "signal-to-noise ratio (dB)", counted=True)
    return figure


def lyapunov_figure(result: LyapunovExponent) -> Figure | None:
    """The mean log distance with the fitted line; None where nothing was left of a difference."""
    if not len(result.log_distance):
        return None
    figure, axes = one_panel(7.5, 3.8)
    shown = slice(None) if np.isinf(result.floor) else slice(2 * result.last + 20)
    curve = result.log_distance[shown]
    axes.plot(np.arange(len(curve)), curve, color=_QUIET, linewidth=2, label="measured, mean over pairs")
    at = np.arange(result.first, result.last + 1)
    middle = result.log_distance[at].mean()
    axes.plot(
        at, middle + result.value * (at - at.mean()), color=_SECOND, linewidth=2,
        label=f"slope {result.value:.3g} per step",
    )  # fmt: skip
    if np.isfinite(result.floor):
        axes.axhline(result.floor, color="black", linestyle="--", linewidth=1, label="noise floor")
    what = "forgets its past" if result.value < 0 else "does not forget its past"
    title = f"Lyapunov exponent {result.value:.3g} per step: the device {what}"
    describe(axes, title, "step of the common drive", "ln (distance / first distance)", counted=True, legend={})
    return figure


def echo_index_figure(result: EchoStateIndex) -> Figure:
    """How the responses from different initial states approach each other, or not."""
    figure, axes = one_panel(7.5, 3.8)
    steps = np.arange(1, result.approach.shape[1] + 1)
    lowest = result.tolerance / 100
    for number, colour in enumerate(colours(int(result.value))):
        members = np.flatnonzero(result.response == number)
        for place, initial in enumerate(members):
            label = f"response {number + 1}, from {len(members)} of them" if place == 0 and number < _NAMED else None
            shown = np.maximum(result.approach[initial], lowest)
            axes.loglog(steps, shown, color=colour, linewidth=1, alpha=0.7, label=label)
    axes.axhline(result.tolerance, color="black", linestyle="--", linewidth=1, label="below: the same response")
    axes.set_ylim(bottom=lowest)
    most = f" to {result.interval.high:.0f}" if np.isfinite(result.interval.high) else ""
    title = f"Echo-state index {result.value:.0f}{most}, from {len(result.response)} initial states"
    x, y = "step of the common drive (logarithmic)", "distance to the response from\nthe first (in units of the spread)"
    describe(axes, title, x, y, legend={"fontsize": 8, "loc": "lower left"})
    return figure


def dimension_figure(result: EffectiveDimension) -> Figure:
    """The share of each principal axis in the variance."""
    figure, axes = one_panel(7.0, 3.6)
    share = result.variances / result.variances.sum()
    kept = share > 1e-16
    axes.semilogy(np.arange(1, len(share) + 1)[kept], share[kept], "o-", color=_MAIN, markersize=3, linewidth=1)
    axes.axvline(result.value, color=_SECOND, linestyle="--", linewidth=1)
    axes.annotate(
        f"effective dimension {result.value:.3g}", (result.value, 1), (4, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", color=_SECOND, fontsize=9,
    )  # fmt: skip
    title = f"How the variance of {len(share)} nodes is spread"
    describe(axes, title, "principal axis of the states", "share of the variance", counted=True)
    return figure


def drift_figure(result: Drift) -> Figure:
    """The course of mean and gain of the nodes in which each changes most."""
    figure, places = panels(9.0, 3.8, 1, 2)
    for axes, name, values, change, significant, unit in (
        (places[0], "mean", result.means, result.mean_change, result.mean_significant, "standard deviations"),
        (places[1], "gain", result.gains, result.gain_change, result.gain_significant, "mean gain"),
    ):
        most = np.argsort(-np.abs(change))[:_SHOWN_NODES]
        for node, colour in zip(most, colours(len(most)), strict=True):
            label = f"node {node}" if significant[node] else f"node {node} (not significant)"
            axes.plot(values[:, node], "o-", color=colour, markersize=3, linewidth=1, label=label)
        title = f"The {name} changes in {np.count_nonzero(significant)} of {len(change)} nodes"
        x, y = "segment or repeat, in the order of time", f"{name} of the node ({unit})"
        describe(axes, title, x, y, counted=True, legend={"fontsize": 8})
    return figure


def noise_budget_figure(result: NoiseBudget) -> Figure:
    """The budget of single responses and of averages, and what longer averages would lose."""
    figure, (budget, forecast) = panels(9.0, 4.0, 1, 2, width_ratios=[3, 2])
    at, known = np.arange(len(result.repetitions)), np.isfinite(result.lost)
    dark, middle, _ = colours(3)
    bottom = np.zeros(len(at))
    for values, colour, label in (
        (result.linear, dark, "linear in the input"),
        (result.nonlinear, middle, "nonlinear"),
        (np.maximum(result.rest, 0.0), "0.88", "rest, not found" if known.all() else "noise, or not found"),
        (np.where(known, result.lost, 0.0), _SECOND, "lost to noise"),
    ):
        budget.bar(at, values, 0.6, bottom=bottom, color=colour, label=label)
        for place, (value, below) in enumerate(zip(values, bottom, strict=True)):
            if value > 0.06 * result.rank[0]:
                budget.text(
                    place, below + value / 2, f"{value:.3g}", ha="center", va="center", fontsize=9,
                    color="white" if colour in (dark, _SECOND) else "black",
                )  # fmt: skip
        bottom = bottom + values
    budget.plot(at, result.rank, "_", color="black", markersize=34, label="rank")
    budget.set_xticks(at, [str(count) for count in result.repetitions])
    budget.set(ylim=(0, 1.08 * result.rank.max()), xlim=(-0.5, len(at) - 0.5 + 0.001))
    describe(budget, f"Where a rank of {result.rank[0]:.0f} goes", "repetitions that were averaged", "capacity")
    figure.legend(*budget.get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside lower center", ncols=5)
    if not known.all():
        forecast.set_axis_off()
        return figure
    forecast.semilogx(result.averaged, result.forecast, "-", color=_QUIET, linewidth=2, label="forecast")
    errors = _errors(result.lost, result.lost_intervals)
    forecast.errorbar(
        result.repetitions, result.lost, errors, fmt="o", color=_SECOND, markersize=4, capsize=2, label="measured"
    )
    forecast.set_ylim(0, max(1.1 * result.lost.max(), 0.05 * result.rank[0]))
    x, y = "repetitions that are averaged", "capacity lost to noise"
    describe(forecast, "What averaging brings back", x, y, legend={"fontsize": 9})
    return figure


def _errors(values: np.ndarray, intervals: Sequence[Interval]) -> np.ndarray | None:
    ends = np.array([(one.low, one.high) for one in intervals]).T
    return np.abs(ends - values) if np.isfinite(ends).all() else None


def lyapunov_spectrum_figure(result: LyapunovSpectrum) -> Figure:
    """The exponents with their intervals, and their running sum."""
    figure, (each, sums) = panels(9.0, 3.8, 1, 2)
    at = np.arange(1, len(result.exponents) + 1)
    for axes, known in ((each, result.known), (sums, np.cumsum(result.known))):
        axes.axhline(0, color=_QUIET, linewidth=1)
        if len(known):
            axes.plot(np.arange(1, len(known) + 1), known, "x", color="black", markersize=8, label="true system")
    errors = _errors(result.exponents, result.exponent_intervals)
    each.errorbar(
        at, result.exponents, errors, fmt="o", color=_MAIN, markersize=5, capsize=3, markerfacecolor="none",
        label="measured",
    )  # fmt: skip
    sums.plot(at, np.cumsum(result.exponents), "o-", color=_MAIN, markersize=4, linewidth=1, label="measured")
    if np.isfinite(result.dimension):
        sums.axvline(result.dimension, color=_SECOND, linestyle="--", linewidth=1)
        title = f"Kaplan–Yorke dimension {result.dimension:.3g} (dashed)"
    else:
        title = "Dimension: more exponents are needed"
    x, y, legend = "number of the exponent", "Lyapunov exponent (per step)", {"fontsize": 9, "loc": "lower left"}
    describe(each, f"Largest exponent {result.value:.3g}", x, y, counted=True, legend=legend)
    describe(sums, title, x, "sum up to here (per step)", counted=True)
    return figure


def climate_figure(result: Climate) -> Figure:
    """The return map and the power spectra, beside those of the true system."""
    figure, (maxima, power) = panels(9.0, 4.0, 1, 2)
    for pairs, colour, size, label in (
        (result.true_maxima, "0.7", 9, "true system"),
        (result.maxima, _SECOND, 3, "closed loop"),
    ):
        maxima.plot(pairs[:, 0], pairs[:, 1], ".", color=colour, markersize=size, label=label)
    # A loop that has left the attractor must not hide it.
    if len(result.true_maxima):
        low, high = result.true_maxima.min(), result.true_maxima.max()
        room = 0.25 * (high - low) + 1e-9
        maxima.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
    legend = {"fontsize": 9, "loc": "lower left"}
    describe(maxima, "Return map", "maximum of the last channel", "next maximum", legend=legend)
    shades = colours(len(result.power))
    for channel, (found, true, colour) in enumerate(zip(result.power, result.true_power, shades, strict=True)):
        shift = 1e3 ** (len(result.power) - 1 - channel)
        name = "" if len(result.power) == 1 else f", channel {channel}" + (f" (× {shift:.0e})" if shift > 1 else "")
        power.loglog(result.frequencies, shift * true, color="0.7", linewidth=2.5)
        power.loglog(result.frequencies, shift * found, color=colour, linewidth=1, label=f"closed loop{name}")
    power.plot([], [], color="0.7", linewidth=2.5, label=f"true system (halves differ by {result.floor:.3g} dB)")
    title, legend = f"Spectra differ by {result.value:.3g} dB", {"fontsize": 8, "loc": "lower left"}
    describe(power, title, "frequency (cycles per step)", "power spectrum", legend=legend)
    return figure


def operating_map_figure(result: OperatingMap) -> Figure:
    """Capacity, its linear part and consistency over the first two axes; a column for each value of the others."""
    names = (*result.axes, "")
    across, down = result.points[:, 0], result.points[:, 1] if len(result.axes) > 1 else np.zeros(len(result.points))
    others, column = np.unique(result.points[:, 2:], axis=0, return_inverse=True)
    x, y = np.unique(across), np.unique(down)
    figure = new_figure(3.0 + 2.6 * len(others), 3.0 + 0.75 * len(y))
    grid = figure.subplots(3, len(others), squeeze=False, sharex=True, sharey=True)
    rows = (
        ("capacity", result.capacity, "viridis"),
        ("linear", result.linear, "viridis"),
        ("consistency", result.consistency, "magma"),
    )
    for row, (what, values, shades) in enumerate(rows):
        highest = float(values.max())
        # What is equal but for rounding has one colour.
        lowest = min(float(values.min()), highest - 0.01 * abs(highest))
        for place, axes in enumerate(grid[row]):
            cells = np.full((len(y), len(x)), np.nan)
            here = np.flatnonzero(column == place)
            at = np.searchsorted(x, across[here]), np.searchsorted(y, down[here])
            cells[at[1], at[0]] = values[here]
            axes.set_facecolor("0.93")
            axes.imshow(
                cells, origin="lower", aspect="auto", vmin=lowest, vmax=highest, cmap=shades, interpolation="nearest"
            )
            for number, i, j in zip(here, *at, strict=True):
                star = "★ " if number == result.best else ""
                axes.text(
                    i, j, f"{star}{values[number]:.3g}", ha="center", va="center", fontsize=8,
                    color="white" if values[number] < (lowest + highest) / 2 else "black",
                )  # fmt: skip
            axes.set_xticks(np.arange(len(x)), [f"{value:.3g}" for value in x])
            axes.set_yticks(np.arange(len(y)), [f"{value:.3g}" for value in y] if names[1] else [""])
            if row == 0:
                title = ", ".join(f"{name} {value:.3g}" for name, value in zip(names[2:], others[place], strict=False))
                axes.set_title(title, loc="left", fontsize=10)
            if row == 2:
                axes.set_xlabel(names[0])
        grid[row, 0].set_ylabel(names[1])
        figure.colorbar(grid[row, 0].images[0], ax=grid[row].tolist(), label=what)
    title = f"Operating map: capacity {result.value:.3g} at the best point (★)"
    if len(result.points) < len(x) * len(y) * len(others):
        title += "; grey: beyond the range"
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def coverage_figure(result: Coverage) -> Figure:
    """The behaviours that were reached, beside those of leaky networks."""
    figure, grid = panels(10.0, 3.8, 1, 3)
    for axes, (first, second) in zip(grid, ((0, 2), (1, 2), (0, 1)), strict=True):
        for behaviours, colour, label in (
            (result.beside, "0.65", f"leaky networks: {result.cells_beside} cells"),
            (result.behaviours, _SECOND, f"this device: {result.value:.0f} cells"),
        ):
            axes.plot(*behaviours[:, (first, second)].T, "o", color=colour, markersize=5, alpha=0.7, label=label)
        axes.set(xlabel=BEHAVIOURS[first], ylabel=BEHAVIOURS[second])
        # The sides of the cells.
        for limits, draw in ((axes.get_xlim(), axes.axvline), (axes.get_ylim(), axes.axhline)):
            for side in np.arange(np.ceil(limits[0] / result.width), limits[1] / result.width):
                draw(side * result.width, color="0.9", linewidth=0.6, zorder=0)
    figure.legend(*grid[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
    figure.suptitle(f"Behaviours reached with {len(result.behaviours)} settings", x=0.01, ha="left")
    return figure


_DRAW: Mapping[type[Measured], Callable[[Any], Figure | None]] = {
    MemoryCapacity: memory_figure,
    ProcessingCapacity: processing_figure,
    Rank: rank_figure,
    Consistency: consistency_figure,
    SignalToNoise: signal_to_noise_figure,
    LyapunovExponent: lyapunov_figure,
    EchoStateIndex: echo_index_figure,
    EffectiveDimension: dimension_figure,
    Drift: drift_figure,
    LyapunovSpectrum: lyapunov_spectrum_figure,
    Climate: climate_figure,
    OperatingMap: operating_map_figure,
    Coverage: coverage_figure,
    NoiseBudget: noise_budget_figure,
}
