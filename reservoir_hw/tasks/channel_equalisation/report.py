"""Symbol error rates with their intervals, as tables and figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel
from reservoir_hw.tasks.classification import wilson_interval
from reservoir_hw.tasks.report import about_spread, mean_and_spread
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class _Pooled:
    """The runs of one model at one signal-to-noise ratio, as if they were one long test."""

    runs: list[Row]

    @property
    def errors(self) -> int:
        return sum(int(run.evaluation.arrays["errors"]) for run in self.runs)

    @property
    def symbols(self) -> int:
        return sum(int(run.evaluation.arrays["symbols"]) for run in self.runs)

    @property
    def rate(self) -> float:
        return self.errors / self.symbols

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.errors, self.symbols)


Models: TypeAlias = dict[str, dict[float, _Pooled]]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table, with a line for each model and signal-to-noise ratio."""
    body = []
    for label, points in _models(rows).items():
        for snr, pooled in points.items():
            low, high = pooled.interval
            body.append(
                [
                    label,
                    f"{snr:g}",
                    str(len(pooled.runs)),
                    f"{pooled.symbols:,}",
                    f"{pooled.errors:,}",
                    f"{pooled.rate:.2e}",
                    f"{low:.2e} to {high:.2e}",
                    mean_and_spread(pooled.runs, "nmse", ".4f"),
                ]
            )
    header = ["model", "SNR (dB)", "runs", "symbols", "errors", "symbol error rate", "95 % interval", "NMSE"]
    note = (
        "Intervals: Wilson, of the chance in the test alone, with the symbols of all runs taken as independent. "
        f"NMSE: {about_spread(rows)}"
    )
    return [Table("Channel equalisation", header, body, note)]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem, over the same rows as `tables`.

    The rates stand over the noise, one curve for each model; where one other thing takes more values, they stand
    over that, one curve for each noise. Baselines are dashed.
    """
    models = _models(rows)
    without_device = {row.label for row in rows if row.details.get("baseline")}
    baselines = {label: points for label, points in models.items() if label in without_device}
    reservoirs = {label: points for label, points in models.items() if label not in baselines}
    noises = sorted({snr for points in models.values() for snr in points})
    varied = _varied(rows)
    figure, axes = one_panel(8.0, 4.8)
    axes.set_yscale("log")
    if reservoirs and (len(noises) == 1 or (len(varied) == 1 and len(reservoirs) > len(noises))):
        subject, line = (varied[0], "-") if len(varied) == 1 else ("model", "")
        handles = _over_models(axes, reservoirs, baselines, noises, line)
        names = _values(rows, varied, reservoirs)
        slanted = {"rotation": 25, "ha": "right"} if max(map(len, names)) > 8 else {}
        axes.set_xticks(range(len(reservoirs)), names, **slanted)
        axes.set_xlabel(subject)
        at = f" at {noises[0]:g} dB" if len(noises) == 1 else ""
        title = f"Symbol error rate by {subject}{at}"
    else:
        handles = _over_noise(axes, reservoirs, baselines)
        axes.set_xticks(noises)
        axes.set_xlabel("signal-to-noise ratio (dB)")
        title = "Symbol error rate by noise" + (f", for each {' and '.join(varied)}" if varied else "")
    axes.set_title(f"{title}\n(bars: 95 % intervals)", fontsize=11)
    axes.set_ylabel("symbol error rate")
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    if any(pooled.errors == 0 for points in models.values() for pooled in points.values()):
        label = "no error seen:\nupper end of the interval"
        handles += axes.plot([], [], "v", color="0.4", markerfacecolor="white", label=label)
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return {"symbol_error_rate": figure}


def _over_noise(axes: Axes, reservoirs: Models, baselines: Models) -> list[Any]:
    """A curve for each model, in the legend from the highest to the lowest where there is least noise."""
    looks: dict[str, dict[str, Any]] = {
        label: {"color": colour, "linestyle": "-", "marker": "o"}
        for label, colour in zip(reservoirs, colours(len(reservoirs)), strict=True)
    }
    for label, grey in zip(baselines, np.linspace(0.35, 0.65, len(baselines)), strict=True):
        looks[label] = {"color": str(grey), "linestyle": "--", "marker": "s"}
    models = {**reservoirs, **baselines}
    handles = []
    for label in sorted(models, key=lambda label: models[label][max(models[label])].interval[1], reverse=True):
        points = models[label]
        noises = sorted(points)
        name = f"baseline {label}" if label in baselines else label
        handles.append(_curve(axes, noises, [points[snr] for snr in noises], name, **looks[label]))
    return handles


def _over_models(axes: Axes, reservoirs: Models, baselines: Models, noises: Sequence[float], line: str) -> list[Any]:
    """The models side by side, a curve for each noise; baselines as levels."""
    handles = []
    for snr, colour in zip(noises, colours(len(noises)), strict=True):
        at = f", {snr:g} dB" if len(noises) > 1 else ""
        here = [(place, points[snr]) for place, points in enumerate(reservoirs.values()) if snr in points]
        if here:
            places, pooled = zip(*here, strict=True)
            handles.append(_curve(axes, places, pooled, f"reservoir{at}", color=colour, linestyle=line, marker="o"))
        for label, style in zip(baselines, itertools.cycle(["--", ":", "-."])):
            if snr in baselines[label]:
                level = baselines[label][snr]
                look: dict[str, Any] = {"color": colour if len(noises) > 1 else "0.5", "linestyle": style}
                height = level.rate or level.interval[1]
                handles.append(axes.axhline(height, label=f"baseline {label}{at}", **look))
    axes.set_xlim(-0.4, len(reservoirs) - 0.6)
    return handles


def _curve(axes: Axes, places: Sequence[float], points: Sequence[_Pooled], label: str, **look: Any) -> Any:
    x, rates = np.array(places), np.array([pooled.rate for pooled in points])
    low, high = np.array([pooled.interval for pooled in points]).T
    seen = rates > 0
    bars = (rates[seen] - low[seen], high[seen] - rates[seen])
    curve = axes.errorbar(x[seen], rates[seen], bars, markersize=4, capsize=3, label=label, **look)
    # A rate of 0 has no place on a logarithmic axis; what is known is that it lies below this.
    axes.plot(x[~seen], high[~seen], "v", color=look["color"], markerfacecolor="white")
    return curve


def _models(rows: Sequence[Row]) -> Models:
    """Runs by label and signal-to-noise ratio."""
    models: Models = {}
    for row in rows:
        points = models.setdefault(row.label, {})
        points.setdefault(
            float(row.point.get("task.snr_db", row.evaluation.arrays["snr_db"])), _Pooled([])
        ).runs.append(row)
    return models


def _varied(rows: Sequence[Row]) -> list[str]:
    """What makes different models of the rows, by the last two parts of its key."""
    keys = dict.fromkeys(key for row in rows for key in row.point if not key.startswith("task."))
    several = [key for key in keys if len({repr(row.point[key]) for row in rows if key in row.point}) > 1]
    return [".".join(key.split(".")[-2:]) for key in several if not key.endswith("seed")]


def _values(rows: Sequence[Row], varied: Sequence[str], reservoirs: Models) -> list[str]:
    """What to call the models on an axis: the value of the one thing that varies, or their labels."""
    if len(varied) != 1:
        return list(reservoirs)
    names: dict[str, str] = {}
    for row in rows:
        for key, value in row.point.items():
            if not key.startswith("task.") and key.endswith(varied[0]) and not isinstance(value, Mapping):
                names[row.label] = "none" if value is None else str(value)
    return [names.get(label, label) for label in reservoirs]
