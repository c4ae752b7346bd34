"""What an experiment found, and its run folder."""

from __future__ import annotations

import io
import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.files import replace_file, replacing
from reservoir_hw.core.provenance import Difference, as_plain, first_change
from reservoir_hw.experiment.configuration.document import called
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.harvest import find_states
from reservoir_hw.tasks.task import Row, Table, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_run_folder(parent: str | Path, name: str) -> Path:
    """Make and return `parent/name-DATE-TIME`, with a number behind it if that exists already."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = Path(parent) / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except NotADirectoryError:
            raise ConfigurationError(f"run.folder: {parent} is a file, not a folder") from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"run.folder: cannot make the run folder {folder}: {getattr(error, 'strerror', None) or error}; "
                "choose another with --set run.folder=PATH"
            ) from error
        return folder
    raise ConfigurationError(f"run.folder: {parent} holds too many runs named {stem}")


def begun_run_folder(path: str | Path, resolved: dict[str, Any]) -> Path:
    """The folder of an earlier run of the same experiment, to go on in.

    Raises `ConfigurationError` if it is none, or what decides about the results is not the same.
    """
    folder = Path(path)
    if not (folder / "experiment.yaml").is_file():
        raise ConfigurationError(f"run.resume: {folder} is not the folder of a run: it has no experiment.yaml")
    change, begun_point = change_since(folder, resolved), point_of(folder)
    if change is None and begun_point != resolved["run"]["point"]:
        change = Difference(("run", "point"), begun_point, resolved["run"]["point"])
    if change is not None:
        raise ConfigurationError(
            f"run.resume: {folder} was begun with {change.key} {change.before}, now it is {change.now}: change "
            "it back, or begin a new run (run.resume=null)"
        )
    return folder


def change_since(folder: Path, resolved: dict[str, Any]) -> Difference | None:
    """What decides about the results and was another thing when this run folder was begun."""
    begun, now = _resolved_of(folder), json.loads(json.dumps(resolved))
    sections = ("task", "reservoir", "readout", "training", "baselines", "vary")
    changes = (first_change(begun.get(section), now[section], (section,)) for section in sections)
    return next((change for change in changes if change is not None), None)


def point_of(folder: Path) -> int | None:
    """The number of the point that was run alone in a run folder, or None if all were."""
    return (_resolved_of(folder).get("run") or {}).get("point")


def _resolved_of(folder: Path) -> dict[str, Any]:
    return Document.from_file(folder / "experiment.yaml").data


def rows_in(folder: Path) -> int:
    """How many rows are in a run folder."""
    try:
        return len(json.loads((folder / "metrics.json").read_text())["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def to_json(value: Any) -> str:
    """Indented JSON; numpy numbers become plain ones, what JSON does not know becomes text."""
    return json.dumps(value, indent=2, default=as_plain)


def write_json(path: Path, value: Any) -> None:
    """As `to_json`."""
    replace_file(path, to_json(value) + "\n")


def write_array(path: Path, array: np.ndarray) -> None:
    """An npy file."""
    with replacing(path) as partial, partial.open("wb") as file:
        np.save(file, array)


def to_yaml(value: dict[str, Any]) -> str:
    """YAML in the order of the keys; `reservoir-hw run` can read it again."""
    from ruamel.yaml import YAML

    text = io.StringIO()
    YAML().dump(value, text)
    return text.getvalue()


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """As `to_yaml`."""
    replace_file(path, to_yaml(value))


@dataclass(kw_only=True, repr=False)
class InFolder(ABC):
    """What was found and the folder that it is kept in: the part that runs, sweeps and measures share.

    `status` is "running", "complete", "interrupted" or "failed"; what was finished is always there. `notes` are remarks
    for the user, `warnings` what casts doubt on the numbers; they stand below the tables. Where several processes share
    the work, one of them writes the folder (`is_written`).
    """

    title: str
    folder: Path
    provenance: dict[str, Any]
    status: str = "running"
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    is_written: bool = True
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it was begun."""
        return time.monotonic() - self.began

    def warn(self, *warnings: str) -> None:
        """Add warnings, each once."""
        self.warnings += [warning for warning in dict.fromkeys(warnings) if warning not in self.warnings]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title!r}: {self.status}, in {self.folder}>"

    def _repr_html_(self) -> str:
        """Tables and warnings, for a notebook."""
        said = [f"warning: {warning}" for warning in self.warnings]
        said += [f"{self.status}{': ' if self.problem else ''}{self.problem}; everything is in {self.folder}"]
        return "".join([*map(html_table, self.tables()), *(f"<p>{escape(line)}</p>" for line in said)])

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            "title": self.title,
            "status": self.status,
            "problem": self.problem,
            "folder": str(self.folder),
            "warnings": self.warnings,
        }

    @abstractmethod
    def tables(self) -> list[Table]:
        """Tables for the terminal and the page."""

    @abstractmethod
    def figures(self) -> dict[str, Figure]:
        """Figures by file stem. Needs the `report` extra."""

    def save(self) -> None:
        """Write metrics.json and provenance.json; done whenever something was finished."""
        write_json(self.folder / "metrics.json", self.metrics)
        write_json(self.folder / "provenance.json", {**self.provenance, "status": self.status, "seconds": self.seconds})


@dataclass(frozen=True)
class Source:
    """Where a row comes from: its point and task, and the file of its outputs."""

    point: Point
    task: Task
    outputs: Path


@dataclass(kw_only=True, repr=False)
class Result(InFolder):
    """The rows of an experiment, one for each point of its grid and each baseline.

    `sources` has those of the rows of points, by the number of the row. `earlier_rows` is how many rows a call that is
    gone on with has left in the folder: its files stay as they are until there are as many again.
    """

    task: Task
    rows: list[Row] = field(default_factory=list)
    sources: dict[int, Source] = field(default_factory=dict)
    earlier_rows: int = 0
    readout: Any = None
    """That of the last row whose readout learned in one pass, as it is in this process."""

    def outputs(self, row: int | None = None) -> np.ndarray:
        """What the readout of a row answered in the test, (batch, time, outputs). By default of the first readout.

        Raises `ConfigurationError` for a baseline, or a language model: their outputs are not kept.
        """
        path = self._source(row).outputs
        if not path.is_file():
            raise ConfigurationError(f"there is no {path}: outputs are kept of readouts that learn in one pass")
        return np.load(path)

    def targets(self, row: int | None = None) -> np.ndarray:
        """What they should be, (batch, time, outputs)."""
        return self._source(row).task.test.targets

    def states(self, row: int | None = None) -> dict[str, Any]:
        """The states of a row by data set ("train", "test"): Zarr arrays (sequences, time, nodes), read by slices.

        Raises `ConfigurationError` where the states were not kept, and for a language model.
        """
        source = self._source(row)
        if not source.outputs.is_file():
            raise ConfigurationError(
                "this model drove its reservoir itself while it was trained: set run.record to a folder, which then "
                "gets the inputs and states of all that is driven"
            )
        store = find_states(source.point, source.task)
        if store is None:
            raise ConfigurationError("the states were used and not kept: `Experiment.harvest` before `run` keeps them")
        return {name: dataset.states for name, dataset in store.datasets.items()}

    def to_frame(self) -> Any:
        """A pandas frame with a line for each row: model, keys that vary, metrics. Raises `MissingExtra`."""
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError as error:
            raise MissingExtra("to_frame needs pandas: pip install pandas") from error
        return pandas.DataFrame([{"model": row.label, **row.point, **row.evaluation.metrics} for row in self.rows])

    def plot(self, row: int | None = None) -> Figure:
        """Outputs over targets of a row. Needs the `report` extra."""
        from reservoir_hw.core.figure_style import one_panel

        valid = self._source(row).task.test.valid
        targets, outputs = self.targets(row)[valid].ravel(), self.outputs(row)[valid].ravel()
        figure, axes = one_panel(4.2, 4.0)
        axes.plot(targets, outputs, ".", markersize=3, alpha=0.5)
        ends = [targets.min(), targets.max()]
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.set(title=self.rows[self._number(row)].label, xlabel="target", ylabel="output")
        return figure

    def _number(self, row: int | None) -> int:
        if row is None and self.sources:
            return min(self.sources)
        if row not in self.sources:
            known = ", ".join(f"{number} ({self.rows[number].label})" for number in self.sources)
            raise ConfigurationError(f"row {row} is not that of a readout; there are: {known or 'none'}")
        return row

    def _source(self, row: int | None) -> Source:
        return self.sources[self._number(row)]

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            **super().metrics,
            "rows": [
                {"label": row.label, "point": dict(row.point), "metrics": row.evaluation.metrics, **row.details}
                for row in self.rows
            ],
        }

    @property
    def replaces_earlier(self) -> bool:
        """Whether nothing is lost if this is written over what an earlier call has found."""
        return len(self.rows) >= self.earlier_rows

    def tables(self) -> list[Table]:
        """The task's own tables; a plain one of all metrics for a task that has none."""
        return self.task.tables(self.rows) or [_plain_table(self.rows)]

    def figures(self) -> dict[str, Figure]:
        """The task's figures by file stem, and what the keys of `vary` do to its score. Needs the `report` extra."""
        from reservoir_hw.experiment.run.figures import monitor_figures, vary_figures

        return {
            **self.task.figures(self.rows),
            **vary_figures(self.task, self.rows),
            **monitor_figures(self.provenance.get("rows", [])),
        }

    def save(self) -> None:
        """Write metrics.json and provenance.json; done after every row."""
        if self.is_written and self.replaces_earlier:
            super().save()


def html_table(table: Table) -> str:
    """A table as a piece of a page."""
    rows = [("th", table.header), *(("td", row) for row in table.rows)]
    lines = (f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>" for cell, texts in rows)
    return f"<table><caption>{escape(table.title)}</caption>{''.join(lines)}</table><p>{escape(table.note)}</p>"


def how_it_ended(error: BaseException) -> tuple[str, str]:
    """Status, "interrupted" or "failed", and problem of what this error ended."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted by Ctrl-C"
    # What SIGTERM becomes where it is waited for.
    if isinstance(error, SystemExit):
        return "interrupted", "terminated"
    return "failed", f"{type(error).__name__}: {error}"


def _plain_table(rows: list[Row]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.evaluation.metrics))
    points = list(dict.fromkeys(key for row in rows for key in row.point))
    return Table(
        "Results",
        ["model", *points, *names],
        [
            [
                row.label,
                *(said.get(key, "") for key in points),
                *(f"{row.evaluation.metrics[n]:.4g}" if n in row.evaluation.metrics else "" for n in names),
            ]
            for row, said in zip(rows, called([row.point for row in rows]), strict=True)
        ],
    )
