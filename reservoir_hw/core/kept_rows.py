"""Rows of finished runs, kept beside an example's README: its tables are made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.markdown import spread, table


@dataclass(frozen=True)
class KeptRow:
    """A point of a run: the model without its settings, the settings that varied, and its metrics."""

    label: str
    point: dict[str, Any]
    metrics: dict[str, float]
    baseline: bool

    @property
    def model(self) -> str:
        """The label without `key=value`: ESN(500)."""
        return re.sub(r",? [\w.]+=(\[[^]]*\]|\S+)", "", self.label)


@dataclass(frozen=True)
class KeptRows:
    """Rows of one run, in its order."""

    rows: Sequence[KeptRow]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Those of `rows/NAME.json`, or of a `metrics.json`.

        Raises `ConfigurationError` for a run that did not come to its end.
        """
        found = json.loads(file.read_text())
        if found["status"] != "complete":
            raise ConfigurationError(f"{file}: the run is {found['status']}; give its command again")
        return cls([KeptRow(r["label"], r["point"], r["metrics"], r.get("baseline", False)) for r in found["rows"]])

    def write(self, file: Path, metrics: Iterable[str]) -> None:
        """A row a line, with these metrics to six digits; counts are kept whole."""
        lines = []
        for row in self.rows:
            numbers = {name: _short(row.metrics[name]) for name in metrics if name in row.metrics}
            kept = {"label": row.label, "point": row.point, "metrics": numbers}
            lines.append(json.dumps(kept | ({"baseline": True} if row.baseline else {})))
        file.write_text('{"status": "complete", "rows": [\n' + ",\n".join(lines) + "\n]}\n")

    def at(self, **point: Any) -> Self:
        """Those rows whose point has these values, for instance `at(**{"readout.alpha": 0.1})`; or lacks the key."""
        return type(self)(
            [r for r in self.rows if all(r.point.get(key, value) == value for key, value in point.items())]
        )

    def only(self, *, baselines: bool) -> Self:
        """Those of the baselines, or those of the device."""
        return type(self)([row for row in self.rows if row.baseline is baselines])

    def by(self, name: str = "model") -> dict[str, Self]:
        """Rows by their `model`, or by their `label`, in the order of the run."""
        found: dict[str, list[KeptRow]] = {}
        for row in self.rows:
            found.setdefault(getattr(row, name), []).append(row)
        return {key: type(self)(rows) for key, rows in found.items()}

    def means(self) -> Self:
        """One row for each label: the mean of its repetitions, of metrics that all of them have."""
        rows = []
        for label, of in self.by("label").items():
            first = of.rows[0]
            point = {
                key: value for key, value in first.point.items() if all(row.point[key] == value for row in of.rows)
            }
            numbers = {name: float(np.mean(of.values(name))) for name in first.metrics}
            known = {name: value for name, value in numbers.items() if np.isfinite(value)}
            rows.append(KeptRow(label, point, known, first.baseline))
        return type(self)(rows)

    def values(self, metric: str) -> np.ndarray:
        """The metric of each row; not a number where a run has none, because its forecast left all bounds."""
        return np.array([row.metrics.get(metric, np.nan) for row in self.rows])


def _short(number: float) -> float:
    return number if float(number).is_integer() else float(f"{number:.6g}")


@dataclass(frozen=True)
class Chosen:
    """The setting with the best mean over its repetitions, and among how many."""

    label: str
    point: dict[str, Any]
    score: float
    settings: int


def chosen(rows: KeptRows, metric: str, *, larger_is_better: bool = False) -> Chosen:
    """The best setting of a search, with the metric in all its repetitions; of equal ones, the first."""
    found = rows.by("label")
    means = {label: float(np.mean(of.values(metric))) for label, of in found.items()}
    able = [label for label, mean in means.items() if np.isfinite(mean)]
    best = (max if larger_is_better else min)(able, key=means.__getitem__)
    return Chosen(best, found[best].rows[0].point, means[best], len(means))


def found(searches: Mapping[str, tuple[KeptRows, str, bool]], device: str) -> list[str]:
    """A table of what searches found: by title the rows, the metric that decided, and whether larger is better."""
    body = []
    for title, (rows, metric, larger) in searches.items():
        for who, baselines in ((device, False), ("baseline", True)):
            of = rows.only(baselines=baselines)
            if of.rows:
                best = chosen(of, metric, larger_is_better=larger)
                body.append([title, metric, who, str(best.settings), best.label, f"{best.score:.2g}"])
    return table(["search", "judged by", "of", "settings", "the best", "its score there"], body)


def scores(models: Mapping[str, KeptRows], metrics: Mapping[str, str]) -> list[str]:
    """A table with a line for each model: the mean ± standard deviation over its rows of each metric, by its title.

    `models` may be `rows.by()`.
    """
    body = [[name, *(spread(rows.values(metric)) for metric in metrics)] for name, rows in models.items()]
    return table(["", *metrics.values()], body)


def keep(folder: Path, named: Iterable[str], metrics: Sequence[str]) -> None:
    """Write `rows/NAME.json` in `folder` for each `NAME=RUN`, where RUN is the folder of a run.

    Of a search (its name begins with `search`) the mean of each setting is kept.
    """
    for name, _, run in (text.partition("=") for text in named):
        rows = KeptRows.read(Path(run) / "metrics.json")
        (rows.means() if name.startswith("search") else rows).write(folder / "rows" / f"{name}.json", metrics)
