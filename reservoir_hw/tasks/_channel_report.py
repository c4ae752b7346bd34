"""Symbol error rates with their intervals, as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.tasks._figures import colours, new_figure, plain
from reservoir_hw.tasks._series import mean_and_spread
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Where the normal distribution leaves 2.5 % on either side.
_Z = 1.959964


def wilson_interval(errors: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927), within [0, 1].

    (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n) with p = errors/n; good down to no error at all.
    """
    share = errors / trials
    centre = share + _Z**2 / (2 * trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


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


def tables(rows: Sequence[Row], snr_db: float) -> list[Table]:
    """One table; `snr_db` is that of rows in which it was not varied."""
    body = []
    for label, points in _models(rows, snr_db).items():
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
                    mean_and_spread((run.evaluation.metrics["nmse"] for run in pooled.runs), digits=4),
                ]
            )
    header = ["model", "SNR (dB)", "runs", "symbols", "errors", "symbol error rate", "95 % interval", "NMSE"]
    note = (
        "Intervals: Wilson, of the chance in the test alone, with the symbols of all runs taken as independent. "
        "NMSE: mean ± standard deviation over the runs."
    )
    return [Table("Channel equalisation", header, body, note)]


def figures(rows: Sequence[Row], snr_db: float) -> dict[str, Figure]:
    """Figures by file stem, over the same rows as `tables`."""
    models = _models(rows, snr_db)
    figure = new_figure(7.5, 4.8)
    axes = figure.subplots()
    for (label, points), colour in zip(models.items(), colours(len(models)), strict=True):
        snr = np.array(sorted(points))
        rates = np.array([points[at].rate for at in snr])
        low, high = np.array([points[at].interval for at in snr]).T
        seen = rates > 0
        axes.errorbar(
            snr[seen],
            rates[seen],
            (rates[seen] - low[seen], high[seen] - rates[seen]),
            fmt="o-",
            color=colour,
            markersize=4,
            capsize=3,
            label=label,
        )
        # A rate of 0 has no place on a logarithmic axis; what is known is that it lies below this.
        axes.plot(snr[~seen], high[~seen], "v", color=colour, markerfacecolor="white")
    axes.set_yscale("log")
    axes.set_xticks(sorted({snr for points in models.values() for snr in points}))
    axes.set_xlabel("signal-to-noise ratio (dB)")
    axes.set_ylabel("symbol error rate")
    axes.set_title("Errors with their 95 % intervals (hollow: none seen, upper end)", fontsize=11)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    figure.legend(loc="outside right center", frameon=False)
    plain(axes)
    return {"symbol_error_rate": figure}


def _models(rows: Sequence[Row], snr_db: float) -> dict[str, dict[float, _Pooled]]:
    """Runs by label and signal-to-noise ratio."""
    models: dict[str, dict[float, _Pooled]] = {}
    for row in rows:
        points = models.setdefault(row.label, {})
        points.setdefault(float(row.point.get("task.snr_db", snr_db)), _Pooled([])).runs.append(row)
    return models
