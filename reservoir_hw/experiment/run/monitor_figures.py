"""What the monitors of a device read during a run, over time. Needs the `report` extra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.figure_style import panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOUR, _LIMIT = "#26547c", "#d1495b"
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
    unit, seconds = next(
        one
        for one in (("h", 3600.0), ("min", 60.0), ("s", 1.0))
        if length >= {"h": _HOURS, "min": _MINUTES}.get(one[0], 0)
    )
    figure, grid = panels(7.5, 0.8 + 2.0 * len(shown), len(shown), 1, sharex=True, squeeze=False)
    for axes, name in zip(grid[:, 0], shown, strict=True):
        times = np.array(sorted(readings[name]))
        axes.plot((times - begin) / seconds, [readings[name][at] for at in times], ".-", color=_COLOUR, linewidth=1)
        for limit in found[name]["limits"] or ():
            axes.axhline(limit, color=_LIMIT, linestyle="--", linewidth=1)
        axes.set_ylabel(f"{name} ({found[name]['unit']})" if found[name]["unit"] else name)
    grid[0, 0].set_title("What was read beside the states (dashed: limits)", loc="left", fontsize=11)
    grid[-1, 0].set_xlabel(f"time since the first reading ({unit})")
    return {"monitors": figure}


def _monitors(device: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from device.get("monitors", {}).items()
    for segment in device.get("segments", ()):
        yield from segment.get("reservoir", {}).get("monitors", {}).items()
