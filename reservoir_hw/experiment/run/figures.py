"""Figures of a run: the score over the keys of `vary:`, and what monitors read. They need the `report` extra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.figure_style import one_panel, panels
from reservoir_hw.tasks.report import REPETITIONS, metric_values, spread_of
from reservoir_hw.tasks.task import Row, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# From this ratio of the largest to the smallest value on.
_LOGARITHMIC = 20
_MOST_NUMBERS = 150
_LONG_REMARK = 40
_MAIN, _BEST = "#26547c", "#d1495b"


def vary_figures(task: Task, rows: Sequence[Row]) -> dict[str, Figure]:
    """`vary`: the task's score over one or two keys, means over everything that is a repetition; else nothing."""
    rows = [row for row in rows if not row.details.get("baseline")]
    if len({frozenset(_varied(row)) for row in rows}) != 1:
        # Rows that name different keys differ in more than what an axis would show.
        return {}
    # With several values; those of repetitions are none.
    keys = [key for key in _varied(rows[0]) if len({_name(row.point[key]) for row in rows}) > 1]
    rows = [row for row in rows if task.score in row.evaluation.metrics]
    if not rows or any(isinstance(row.point[key], dict) for row in rows for key in keys) or not 1 <= len(keys) <= 2:
        return {}
    return {"vary": _curve(task, rows, keys[0]) if len(keys) == 1 else _map(task, rows, keys[0], keys[1])}


def _varied(row: Row) -> list[str]:
    return [key for key in row.point if key.rpartition(".")[2] not in REPETITIONS]


def _curve(task: Task, rows: Sequence[Row], key: str) -> Figure:
    figure, axes = one_panel(7.5, 4.0)
    values = _values(rows, key)
    groups = [[row for row in rows if row.point[key] == value] for value in values]
    means, said = np.array([metric_values(group, task.score).mean() for group in groups]), []
    numbers = all(_is_number(value) for value in values)
    at = np.array(values if numbers else range(len(values)), dtype=float)
    if len(rows) > len(values):
        for place, group in zip(at, groups, strict=True):
            axes.plot(np.full(len(group), place), metric_values(group, task.score), "o", color="0.7", markersize=3)
        said.append("grey: single runs")
    axes.plot(at, means, "o-", color=_MAIN, linewidth=1.2, markersize=5)
    of_device = [spread.of_device if (spread := spread_of(group, task.score)) else None for group in groups]
    if any(one is not None for one in of_device):
        lengths = [one or 0.0 for one in of_device]
        axes.errorbar(at, means, yerr=lengths, fmt="none", ecolor=_MAIN, capsize=3, linewidth=1.2)
        said.append("bars: standard deviation between draws of the device")
    if _comparable(key):
        best = _best(task, means)
        axes.plot(at[best], means[best], "o", color=_BEST, markersize=10, markerfacecolor="none", markeredgewidth=1.5)
        said.append(f"ring: the best, {means[best]:.3g}")
    if not numbers:
        axes.set_xticks(at, [_name(value) for value in values])
    elif 0 < at[0] * _LOGARITHMIC < at[-1]:
        axes.set_xscale("log")
    axes.set(xlabel=_axis(rows, key), ylabel=task.score)
    remark = f"({'; '.join(said)})" if said else ""
    between = "\n" if len(remark) > _LONG_REMARK else " "
    axes.set_title(f"{task.score} by {key}{between}{remark}".rstrip(), loc="left", fontsize=11)
    return figure


def _map(task: Task, rows: Sequence[Row], across: str, up: str) -> Figure:
    x, y = _values(rows, across), _values(rows, up)
    means = np.full((len(y), len(x)), np.nan)
    for i, j in np.ndindex(means.shape):
        if cell := [row for row in rows if row.point[across] == x[j] and row.point[up] == y[i]]:
            means[i, j] = metric_values(cell, task.score).mean()
    figure, axes = one_panel(2.4 + max(3.0, 0.62 * len(x)), 1.6 + max(2.0, 0.42 * len(y)))
    colours = "viridis" if task.larger_is_better else "viridis_r"
    norm = "log" if 0 < np.nanmin(means) * _LOGARITHMIC < np.nanmax(means) else "linear"
    image = axes.imshow(means, norm=norm, cmap=colours, origin="lower", aspect="auto")
    figure.colorbar(image, ax=axes, label=task.score)
    if means.size <= _MOST_NUMBERS:
        shades = np.asarray(image.norm(means))
        for (i, j), value in np.ndenumerate(means):
            dark = (shades[i, j] > 0.5) != task.larger_is_better
            text = "" if np.isnan(value) else f"{value:.3g}"
            axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    remark = ""
    if _comparable(across, up):
        i, j = np.unravel_index(_best(task, means), means.shape)
        axes.plot(j, i, "s", color=_BEST, markersize=24, markerfacecolor="none", markeredgewidth=2)
        remark = f" (frame: the best, {means[i, j]:.3g})"
    axes.set_xticks(range(len(x)), [_name(value) for value in x], rotation=45 if len(x) > 8 else 0)
    axes.set_yticks(range(len(y)), [_name(value) for value in y])
    axes.set(xlabel=_axis(rows, across), ylabel=_axis(rows, up))
    axes.set_title(f"{task.score}{remark}", loc="left", fontsize=11)
    return figure


def _values(rows: Sequence[Row], key: str) -> list[Any]:
    """The values of a key, numbers in their order."""
    found = list({_name(row.point[key]): row.point[key] for row in rows}.values())
    return sorted(found) if all(_is_number(value) for value in found) else found


def _axis(rows: Sequence[Row], key: str) -> str:
    """The key, with its unit where the file gives one."""
    unit = next((row.details["units"][key] for row in rows if key in row.details.get("units", {})), "")
    return f"{key} ({unit})" if unit else key


def _comparable(*keys: str) -> bool:
    """Whether all have the same task, so that one may be the best."""
    return not any(key.startswith("task.") for key in keys)


def _best(task: Task, means: np.ndarray) -> int:
    return int(np.nanargmax(means) if task.larger_is_better else np.nanargmin(means))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else str(value)


# ---- What the monitors of a device read during a run, over time. Needs the `report` extra.


# From so many seconds on, hours are shown, and from so many on, minutes.
_HOURS, _MINUTES = 7200.0, 300.0


def monitor_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """`monitors`: a panel for each, with its limits, from the records of rows in the provenance; else nothing."""
    found: dict[str, dict[str, Any]] = {}
    readings: dict[str, dict[float, float]] = {}
    for row in rows:
        for name, series in _monitors(row.get("reservoir", {})):
            found[name] = dict(series)
            # Rows that share a drive have the same readings.
            readings.setdefault(name, {}).update(zip(series["times"], series["values"], strict=True))
    shown = [name for name in found if readings[name]]
    if not shown:
        return {}
    begin = min(min(readings[name]) for name in shown)
    length = max(max(readings[name]) for name in shown) - begin
    unit, seconds = ("h", 3600.0) if length >= _HOURS else ("min", 60.0) if length >= _MINUTES else ("s", 1.0)
    figure, grid = panels(7.5, 0.8 + 2.0 * len(shown), len(shown), 1, sharex=True, squeeze=False)
    for axes, name in zip(grid[:, 0], shown, strict=True):
        times = np.array(sorted(readings[name]))
        axes.plot((times - begin) / seconds, [readings[name][at] for at in times], ".-", color=_MAIN, linewidth=1)
        for limit in found[name]["limits"] or ():
            axes.axhline(limit, color=_BEST, linestyle="--", linewidth=1)
        axes.set_ylabel(f"{name} ({found[name]['unit']})" if found[name]["unit"] else name)
    grid[0, 0].set_title("What was read beside the states (dashed: limits)", loc="left", fontsize=11)
    grid[-1, 0].set_xlabel(f"time since the first reading ({unit})")
    return {"monitors": figure}


def _monitors(device: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from device.get("monitors", {}).items()
    for segment in device.get("segments", ()):
        yield from segment.get("reservoir", {}).get("monitors", {}).items()
