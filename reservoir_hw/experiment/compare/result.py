"""What a comparison found: its verdict, tables and numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.experiment.compare.nodes import NodeComparison
from reservoir_hw.experiment.compare.sides import Side
from reservoir_hw.experiment.compare.transfer import Transfer
from reservoir_hw.experiment.devices.measure import plain
from reservoir_hw.experiment.devices.measured_tables import interval_text, number_text
from reservoir_hw.experiment.run.result import InFolder
from reservoir_hw.measures import MEASURES, Measured
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Two 95 % intervals this many times farther apart than both are wide together: 1 in 2000 by chance.
_APART = 2.0
# A measure of a deterministic device has an interval of no width, and its last digits depend on the dtype.
_ROUNDING = 1e-6


@dataclass(kw_only=True)
class Comparison(InFolder):
    """`nodes` and `task` are None where `reasons` says why. The folder is there afterwards only if it is `kept`."""

    sides: list[Side]
    kept: bool
    washout: int
    tolerance: float | None = None
    nodes: NodeComparison | None = None
    task: Transfer | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[Measured]:
        """All measures of both."""
        return [found for side in self.sides for found in side.measured.values()]

    @property
    def within_tolerance(self) -> bool:
        """Whether no node has a raw NRMSE above the tolerance, if there is one."""
        return (
            self.nodes is None or self.tolerance is None or bool((self.nodes.difference.nrmse <= self.tolerance).all())
        )

    def beyond_tolerance(self) -> str:
        """Which nodes are above the tolerance, in a sentence."""
        assert self.nodes is not None
        nrmse = self.nodes.difference.nrmse
        above = np.count_nonzero(~(nrmse <= self.tolerance))
        floors = [floor for floor in (self.nodes.floor_a, self.nodes.floor_b) if floor is not None]
        floor = max((float(floor.max()) for floor in floors), default=0.0)
        own = f"; repeats of one device alone reach {floor:.3g}" if floor > (self.tolerance or 0) else ""
        return f"{above} of {len(nrmse)} nodes have a raw NRMSE above the tolerance of {self.tolerance:g}{own}"

    def above_floor(self) -> dict[str, list[str]]:
        """What differs by more than repeats of one device do, in words; a part that cannot be told is left out.

        All lists are empty for a device and itself.
        """
        said: dict[str, list[str]] = {}
        if self.nodes is not None:
            for kind in ("raw", "aligned"):
                above = self.nodes.above(kind)
                if above is not None:
                    count = np.count_nonzero(above)
                    said[f"nodes, {kind}"] = [f"{count} of {len(above)} nodes"] if count else []
        if self._measured_by_both():
            said["measures"] = [MEASURES[name] for name in self._measured_by_both() if self._measures_differ(name)]
        differences = None if self.task is None else self.task.differences()
        return said if differences is None else {**said, "task": differences}

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON: null for what is unknown."""
        return {
            **super().metrics,
            "folder": str(self.folder) if self.kept else None,
            "a": self.sides[0].name,
            "b": self.sides[1].name,
            "above_floor": self.above_floor(),
            "tolerance": self.tolerance,
            "nodes": None if self.nodes is None else self.nodes.as_dict(),
            "measures": {
                name: {
                    "above_floor": self._measures_differ(name) if name in self._measured_by_both() else None,
                    **{side.letter.lower(): _measure_of(side, name) for side in self.sides},
                }
                for name in self._names()
            },
            "task": None if self.task is None else self.task.as_dict(),
            "not_compared": self.reasons,
        }

    def tables(self) -> list[Table]:
        """The verdict, nodes, measures, and the task."""
        nodes = self.nodes.tables() if self.nodes is not None else []
        task = self.task.tables() if self.task is not None else []
        return [self._verdict(), *nodes, *([self._measures(), *self._remarks()] if self._names() else []), *task]

    def figures(self) -> dict[str, Figure]:
        """Responses, nodes, measures and the task. Needs the `report` extra."""
        from reservoir_hw.experiment.compare.figures import figures

        return figures(self.sides, self.nodes, self.task, self.washout)

    def _verdict(self) -> Table:
        said = {part: "; ".join(found) or "nothing" for part, found in self.above_floor().items()}
        said |= {part: f"not compared: {reason}" for part, reason in self.reasons.items()}
        tried = (("nodes, raw", self.nodes), ("nodes, aligned", self.nodes), ("task", self.task))
        unknown = "cannot be told: too few repeats"
        rows = [[p, said.get(p, unknown)] for p, found in tried if found is not None or p in said]
        rows += [[part, text] for part, text in said.items() if part in ("nodes", "measures")]
        repeats = ", ".join(f"{side.letter} {side.repeats}" for side in self.sides)
        note = (
            f"Repeats of the same drive: {repeats}. Between a device and itself, about 1 of 100 comparisons finds a "
            "difference by chance."
        )
        return Table(self.title, ["compared", "differs by more than repeats do"], sorted(rows), note)

    def _measures(self) -> Table:
        rows = []
        for name in self._names():
            both = name in self._measured_by_both()
            differ = ("yes" if self._measures_differ(name) else "no") if both else "cannot be told"
            rows.append([MEASURES[name], *(_shown(side, name) for side in self.sides), differ])
        note = (
            "With 95 % intervals. Measures differ where they are twice as far apart as both intervals together allow."
        )
        reasons = dict.fromkeys(f"{side.letter}: {reason}" for side in self.sides for reason in side.reasons.values())
        return Table("Measures", ["measure", "A", "B", "differ"], rows, " ".join([note, *(f"{r}." for r in reasons)]))

    def _remarks(self) -> list[Table]:
        """What the measures themselves remark, as `reservoir-hw measure` says it."""
        rows = [
            [MEASURES[name], side.letter, side.measured[name].note]
            for name in self._names()
            for side in self.sides
            if name in side.measured and side.measured[name].note
        ]
        return [Table("Remarks on the measures", ["measure", "of", "remark"], rows)] if rows else []

    def _names(self) -> list[str]:
        tried = {name for side in self.sides for name in (*side.measured, *side.reasons)}
        return [name for name in MEASURES if name in tried]

    def _measured_by_both(self) -> list[str]:
        return [name for name in self._names() if all(name in side.measured for side in self.sides)]

    def _measures_differ(self, name: str) -> bool:
        low, high = sorted((side.measured[name] for side in self.sides), key=lambda found: found.value)
        if math.isclose(low.value, high.value, rel_tol=_ROUNDING):
            return False
        margins = _margin(low.value, low.interval.high), _margin(high.value, high.interval.low)
        return high.value - low.value > _APART * math.hypot(*margins)


def _margin(value: float, end: float) -> float:
    """How far an interval reaches beyond its value: 0 where both are infinite."""
    return 0.0 if value == end else abs(end - value)


def _shown(side: Side, name: str) -> str:
    found = side.measured.get(name)
    return "not measured" if found is None else f"{number_text(found.value)} {interval_text(found.interval)}"


def _measure_of(side: Side, name: str) -> Any:
    found = side.measured.get(name)
    return {"not_measured": side.reasons.get(name, "not reached")} if found is None else plain(vars(found))
