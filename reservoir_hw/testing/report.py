"""What a run of the suite found, for people and for machines."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import AliasPath, BaseModel, Field, ValidationError

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.figure_style import colours, one_panel
from reservoir_hw.core.files import replace_file
from reservoir_hw.experiment.run.report import have_report_extra
from reservoir_hw.measures.comparison import ALPHA, FALSE_ALARMS, WORTH_SEEING
from reservoir_hw.tasks.task import Table
from reservoir_hw.testing.plan import OUTCOMES, Statement
from reservoir_hw.testing.session import SuiteRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


VERSION = 1
"""Of the file report.json."""


@dataclass
class Report:
    """Statements about a device, in the order in which they were looked at.

    `device` is its identity and spec, `plan` what was to be driven, `worse` what a baseline says of it. `interrupted`:
    Ctrl-C has ended the run. `standard` are responses to the standard drive, (repeats, time, nodes).
    """

    statements: list[Statement]
    device: dict[str, Any]
    plan: dict[str, Any]
    worse: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    standard: np.ndarray | None = None

    @classmethod
    def of(cls, run: SuiteRun, groups: Sequence[str], *, interrupted: bool = False) -> Self:
        """What a run has found, and which groups of those asked for the device does not offer."""
        hil = run.bench.hil
        found = {(one.group, one.name): Statement(one.group, one.name) for one in run.to_look_at}
        # The last attempt counts.
        found |= {(statement.group, statement.name): statement for statement in run.statements}
        for statement in found.values():
            if statement.outcome == "not looked at":
                statement.text = "the run was interrupted" if interrupted else "the run ended before"
        plan = {
            "device_steps": run.device_steps,
            "by_group": run.steps_by_group(),
            "hours": None if run.step_s is None else run.device_steps * run.step_s / 3600,
            "steps_of_a_drive": run.bench.plan.steps,
            "repeats": run.bench.plan.repeats,
            "weaker": run.weaker,
            "seed": run.seed,
            "groups": list(groups),
            "not_offered": dict(hil.not_offered),
        }
        return cls(list(found.values()), run.about, plan, interrupted=interrupted, standard=run.bench.early)

    @property
    def counts(self) -> dict[str, int]:
        """Statements by outcome; none is left out."""
        found = Counter(statement.outcome for statement in self.statements)
        return {outcome: found[outcome] for outcome in OUTCOMES}

    @property
    def passed(self) -> bool:
        """Whether everything was looked at that could be, and nothing counts against the device."""
        complete = not self.interrupted and not self.counts["not looked at"]
        return complete and not self.worse and not self.alarms

    @property
    def failed_groups(self) -> list[str]:
        """Groups with a statement that failed or is inconclusive."""
        return list(dict.fromkeys(statement.group for statement in self.statements if statement.bad))

    @property
    def alarms(self) -> list[Statement]:
        """What counts against the device."""
        return [statement for statement in self.statements if statement.bad]

    @property
    def against(self) -> str:
        """The first of what counts against the device."""
        return "; ".join(f"{one.title}: {one.text}" for one in self.alarms[:3]) or self.summary

    @property
    def summary(self) -> str:
        """One line."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items() if count)
        driven = sum(statement.device_steps for statement in self.statements)
        return f"{'interrupted: ' if self.interrupted else ''}{counts} ({driven:,} device steps)"

    def compare_with(self, earlier: Baseline) -> None:
        """Hold this report against an earlier one: `worse` says what became worse beyond both intervals."""
        if earlier.fingerprint != self.device["identity"]["fingerprint"]:
            self.notes.append(
                f"the baseline is of another device or configuration (fingerprint {earlier.fingerprint[:12]}, and this "
                f"is {self.device['identity']['fingerprint'][:12]})"
            )
        before = {(one.group, one.name): one for one in earlier.statements}
        for statement in self.statements:
            then = before.get((statement.group, statement.name))
            if then is None:
                continue
            if statement.bad and then.outcome == "passed":
                self.worse.append(f"{statement.title}: {statement.outcome}, and it was passed")
            elif statement.low is not None and then.high is not None and statement.low > then.high:
                self.worse.append(
                    f"{statement.title}: {statement.value:.3g} {statement.unit}, and it was {then.value:.3g} (at "
                    f"most {then.high:.3g})"
                )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": VERSION,
            "passed": self.passed,
            "counts": self.counts,
            "interrupted": self.interrupted,
            "worse": self.worse,
            "notes": self.notes,
            "false_alarm_rate": FALSE_ALARMS,
            "alpha": ALPHA,
            "device": self.device,
            "plan": self.plan,
            "statements": [asdict(statement) for statement in self.statements],
        }

    def tables(self) -> list[Table]:
        """For the terminal."""
        rows = [[one.title, one.outcome, f"{one.device_steps:,}", one.text] for one in self.statements]
        return [Table("Conformance", ["statement", "outcome", "device steps", "what was found"], rows, self.summary)]

    @property
    def main_file(self) -> str:
        """What a person opens."""
        return "report.html" if have_report_extra() else "report.json"

    def write(self, folder: str | Path) -> None:
        """report.json, and report.html with its figures where the extra `report` is installed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "report.json", json.dumps(self.as_dict(), indent=2, default=str))
        if not have_report_extra():
            return
        from jinja2 import Environment

        pictures = {}
        for name, figure in self.figures().items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
            pictures[name] = base64.b64encode(buffer.getvalue()).decode()
        template = files("reservoir_hw.testing").joinpath("report.html.j2").read_text(encoding="utf-8")
        page = Environment(autoescape=True).from_string(template)
        replace_file(folder / "report.html", page.render(report=self, pictures=pictures, worth_seeing=WORTH_SEEING))

    def figures(self) -> dict[str, Figure]:
        """What each comparison found and could have seen; the response to the standard drive."""
        found = {}
        compared = [one for one in self.statements if one.comparisons]
        if compared:
            found["comparisons"] = comparisons(compared)
        if self.standard is not None:
            found["standard drive"] = standard_drive(self.standard)
        return found


class Baseline(BaseModel):
    """What an earlier report says."""

    statements: list[Statement]
    fingerprint: Annotated[str, Field(validation_alias=AliasPath("device", "identity", "fingerprint"))]


def read_baseline(path: str | Path) -> Baseline:
    """An earlier report.json. Raises `ConfigurationError` for a file that is none, or of another version."""
    none = f"baseline {path}: it is no report.json of `reservoir-hw conform`"
    try:
        earlier = json.loads(Path(path).read_text())
        version = earlier["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{none} ({type(error).__name__}: {error})") from error
    if version != VERSION:
        raise ConfigurationError(
            f"baseline {path}: it is a report of version {version}, and this is version {VERSION}; make a new one"
        )
    try:
        return Baseline.model_validate(earlier)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(f"{none} ({'.'.join(map(str, first['loc']))}: {first['msg']})") from error


# ---- Figures of a run of the suite. They need the extra `report`.


_LEAST = 1e-6
_NODES = 4


def comparisons(statements: Sequence[Statement]) -> Figure:
    """For each comparison the difference that was found, and the smallest that would have been seen."""
    rows = [(one, found) for one in statements for found in one.comparisons]
    figure, axes = one_panel(8, 1.2 + 0.28 * len(rows))
    for height, (statement, found) in enumerate(reversed(rows)):
        smallest, difference = max(found["smallest"], _LEAST), max(found["difference"], _LEAST)
        axes.plot([_LEAST, smallest], [height, height], color="0.85", linewidth=6, solid_capstyle="butt", zorder=1)
        axes.plot(difference, height, "o", color="crimson" if statement.bad else "black", markersize=5, zorder=2)
    axes.axvline(WORTH_SEEING, color="0.4", linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [one.title.replace("_", " ") for one, _ in reversed(rows)])
    axes.set_xlabel("difference between the two conditions (standard deviations of the states)")
    axes.set_title(
        "Dot: found (red where the statement failed; 0 is drawn at the left edge). Grey: too small to be seen.\n"
        f"Dashed: {WORTH_SEEING:g}, which every comparison must be able to see",
        loc="left",
        fontsize=9,
    )
    return figure


def standard_drive(states: np.ndarray) -> Figure:
    """A few nodes over time: (repeats, time, nodes), the repeats over each other."""
    figure, axes = one_panel(8, 3)
    nodes = np.unique(np.linspace(0, states.shape[2] - 1, _NODES).astype(int))
    for node, colour in zip(nodes, colours(len(nodes)), strict=True):
        for number, repeat in enumerate(states):
            axes.plot(repeat[:, node], color=colour, linewidth=1, alpha=0.7, label=None if number else f"node {node}")
    axes.set_xlabel("time step")
    axes.set_ylabel("state")
    axes.set_title(f"Response to the standard drive, {len(states)} times", loc="left", fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure
