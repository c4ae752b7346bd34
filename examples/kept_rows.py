"""What the tables of the examples' READMEs are made from and of: rows of finished runs, numbers, lines of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.statistics import half_width


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *body)]


def spread(values: Sequence[float] | np.ndarray, form: str = ".3f") -> str:
    """Mean ± standard deviation; of one value just the value."""
    deviation = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{deviation}"


def interval(differences: Sequence[float] | np.ndarray, form: str = "+.3f") -> str:
    """Mean and 95 % interval (Student) of paired differences."""
    values = np.asarray(differences)
    half = half_width(values)
    return f"{values.mean():{form}} [{values.mean() - half:{form}}, {values.mean() + half:{form}}]"


def replace_tables(path: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Put each table between the lines `<!-- name -->` and `<!-- end of name -->` of a file.

    Raises `ConfigurationError` where a file lacks them, and then leaves it as it is.
    """
    text = path.read_text()
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (found and closed):
            raise ConfigurationError(f"{path}: there is no place for {name}; add the lines {begin.strip()} and {end}")
        text = head + begin + "\n".join(lines) + "\n" + end + tail
    path.write_text(text)


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


@dataclass(frozen=True)
class LogFit:
    """A line, loss = slope · log10 N + intercept, with 95 % intervals of both."""

    slope: float
    intercept: float
    slope_interval: tuple[float, float]
    intercept_interval: tuple[float, float]

    def at(self, sizes: Sequence[float] | np.ndarray) -> np.ndarray:
        """The loss at these N."""
        return self.slope * np.log10(sizes) + self.intercept


def fit_log10(losses: Mapping[int, Sequence[float]], *, resamples: int = 10_000, seed: int = 0) -> LogFit:
    """Least-squares line of losses over the logarithm of a size (Köster & Uchida 2026, eq. 9).

    `losses` has the losses of all runs for each size N, such as the number of trained weights. The intervals are those
    of a percentile bootstrap: the runs of each N are drawn anew, with replacement. They hold the chance in the runs,
    and nothing of how well a line fits. Of few runs they are too narrow, of three by a factor of about √(2/3).

    Raises `ConfigurationError` if there are not two sizes.
    """
    if len(losses) < 2:
        raise ConfigurationError(f"a line needs losses at two sizes or more, and there are {len(losses)}")
    x = np.log10([size for size, runs in losses.items() for _ in runs])
    y = np.concatenate(list(losses.values()))
    random = generator(seed, "bootstrap of a fit")
    drawn = np.concatenate([random.choice(runs, (resamples, len(runs))) for runs in losses.values()], axis=1)
    solution = np.linalg.pinv(np.stack([x, np.ones_like(x)]).T)
    slope, intercept = (solution @ y).tolist()
    slopes, intercepts = np.quantile(drawn @ solution.T, [0.025, 0.975], axis=0).T.tolist()
    return LogFit(slope, intercept, tuple(slopes), tuple(intercepts))
