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
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replace_file
from reservoir_hw.experiment.run.report import have_report_extra
from reservoir_hw.tasks.task import Table
from reservoir_hw.testing.comparison import ALPHA, FALSE_ALARMS, WORTH_SEEING
from reservoir_hw.testing.outcomes import OUTCOMES, Statement
from reservoir_hw.testing.session import SuiteRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = 1
"""Of the file report.json."""


@dataclass
class Report:
    """Statements about a device, in the order in which they were looked at.

    `device` is its identity and spec, `plan` what was to be driven, `worse` what a baseline says of it. `standard` are
    responses to the standard drive, (repeats, time, nodes).
    """

    statements: list[Statement]
    device: dict[str, Any]
    plan: dict[str, Any]
    worse: list[str] = field(default_factory=list)
    standard: np.ndarray | None = None

    @classmethod
    def of(cls, run: SuiteRun, groups: Sequence[str]) -> Self:
        """What a run has found, and which groups of those asked for the device does not offer."""
        hil, found = run.bench.hil, {}
        for statement in run.statements:
            # The last attempt counts.
            found[statement.group, statement.name] = statement
        plan = {
            "device_steps": run.device_steps,
            "by_group": run.steps_by_group(),
            "hours": run.device_steps * run.step_s / 3600,
            "steps_of_a_drive": run.bench.plan.steps,
            "repeats": run.bench.plan.repeats,
            "weaker": run.weaker,
            "seed": run.seed,
            "groups": list(groups),
            "not_offered": dict(hil.not_offered),
        }
        return cls(list(found.values()), run.about, plan, standard=run.bench.early)

    @property
    def counts(self) -> dict[str, int]:
        """Statements by outcome; none is left out."""
        found = Counter(statement.outcome for statement in self.statements)
        return {outcome: found[outcome] for outcome in OUTCOMES}

    @property
    def passed(self) -> bool:
        """Whether nothing counts against the device."""
        return not self.worse and not any(statement.bad for statement in self.statements)

    @property
    def failed_groups(self) -> list[str]:
        """Groups with a statement that failed or is inconclusive."""
        return list(dict.fromkeys(statement.group for statement in self.statements if statement.bad))

    @property
    def alarms(self) -> list[Statement]:
        """What counts against the device."""
        return [statement for statement in self.statements if statement.bad]

    @property
    def summary(self) -> str:
        """One line."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items() if count)
        driven = sum(statement.device_steps for statement in self.statements)
        return f"{counts} ({driven:,} device steps)"

    def compare_with(self, earlier: dict[str, Any]) -> None:
        """Hold this report against what `read_baseline` gave: `worse` says what became worse beyond both intervals."""
        before = {(one["group"], one["name"]): one for one in earlier["statements"]}
        for statement in self.statements:
            then = before.get((statement.group, statement.name))
            if then is None:
                continue
            if statement.bad and then["outcome"] == "passed":
                self.worse.append(f"{statement.title}: {statement.outcome}, and it was passed")
            elif statement.low is not None and then["high"] is not None and statement.low > then["high"]:
                self.worse.append(
                    f"{statement.title}: {statement.value:.3g} {statement.unit}, and it was {then['value']:.3g} (at "
                    f"most {then['high']:.3g})"
                )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": VERSION,
            "passed": self.passed,
            "counts": self.counts,
            "worse": self.worse,
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
        from reservoir_hw.testing import figures

        found = {}
        compared = [one for one in self.statements if one.comparisons]
        if compared:
            found["comparisons"] = figures.comparisons(compared)
        if self.standard is not None:
            found["standard drive"] = figures.standard_drive(self.standard)
        return found


def read_baseline(path: str | Path) -> dict[str, Any]:
    """An earlier report.json. Raises `ConfigurationError` for a file that is none, or of another version."""
    try:
        earlier = json.loads(Path(path).read_text())
        version, _ = earlier["version"], [one["outcome"] for one in earlier["statements"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"baseline {path}: it is no report.json of `reservoir-hw conform` ({type(error).__name__}: {error})"
        ) from error
    if version != VERSION:
        raise ConfigurationError(
            f"baseline {path}: it is a report of version {version}, and this is version {VERSION}; make a new one"
        )
    return earlier
