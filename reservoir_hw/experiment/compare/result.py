"""What a comparison found: its verdict, tables, numbers and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.figure_style import panels, whole_numbers
from reservoir_hw.experiment.compare.nodes import NodeComparison
from reservoir_hw.experiment.compare.sides import Side
from reservoir_hw.experiment.compare.transfer import CELLS, Transfer
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
        if self.nodes is None or self.tolerance is None:
            return True
        return bool((self.nodes.difference.nrmse <= self.tolerance).all())

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
        if both := self._measured_by_both():
            said["measures"] = [MEASURES[name] for name in both if self._measures_differ(name)]
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
        found = {}
        if self.nodes is not None:
            found["responses"] = responses_figure(self.nodes, self.washout)
            found["nodes"] = nodes_figure(self.nodes)
        both = self._measured_by_both()
        drawable = [name for name in both if all(np.isfinite(side.measured[name].value) for side in self.sides)]
        if drawable:
            found["measures"] = measures_figure(self.sides, drawable)
        if self.task is not None:
            found["task"] = task_figure(self.task)
        return found

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


# ---- Figures of a comparison. They need the `report` extra.


_A, _B, _QUIET = "#26547c", "#d1495b", "0.6"
_STEPS = 80


def responses_figure(nodes: NodeComparison, washout: int) -> Figure:
    """What three nodes of both devices answer: the most alike, the middle one, the least alike."""
    order = np.argsort(nodes.difference.nrmse)
    chosen = [("most alike", order[0]), ("median", order[len(order) // 2]), ("least alike", order[-1])]
    figure, grid = panels(10.0, 6.5, 3, 2, width_ratios=[3, 1])
    count = min(_STEPS, len(nodes.mean_a))
    at = np.arange(washout, washout + count)
    for (name, node), (over_time, against) in zip(chosen, grid, strict=True):
        a, b = nodes.mean_a[:, node], nodes.mean_b[:, node]
        over_time.plot(at, a[:count], "-", color=_A, linewidth=4, alpha=0.35, label="A")
        over_time.plot(at, b[:count], "o-", color=_B, markersize=2.5, linewidth=0.9, label="B")
        raw, aligned = nodes.difference.nrmse[node], nodes.difference.aligned[node]
        title = f"Node {nodes.difference.nodes[node]} ({name}): NRMSE {raw:.2g}, aligned {aligned:.2g}"
        over_time.set_title(title, loc="left", fontsize=10)
        over_time.set_ylabel("state")
        over_time.margins(x=0.01)
        against.plot(a, b, ".", color=_QUIET, markersize=2, rasterized=True)
        ends = np.array([min(a.min(), b.min()), max(a.max(), b.max())])
        against.plot(ends, ends, color="black", linewidth=0.8, linestyle="--", label="B = A")
        against.set(xlabel="state of A", ylabel="state of B")
    lines = [line for axes in grid[0] for line in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=lines, frameon=False, ncols=3, loc="outside lower center", fontsize=9)
    grid[-1, 0].set_xlabel("step since the reset")
    figure.suptitle(
        "The same inputs to both: mean responses over the repeats (NRMSE: of single repeats)",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    return figure


def nodes_figure(nodes: NodeComparison) -> Figure:
    """NRMSE of each node, as it is and aligned, over the repeat error."""
    figure, grid = panels(10.0, 4.0, 1, 2, sharey=True)
    found = nodes.difference
    order = np.argsort(found.nrmse)
    kinds: list[tuple[str, str, np.ndarray, tuple[Any, Any]]] = [
        ("raw", "as it is (raw)", found.nrmse, (nodes.floor_a, nodes.floor_b)),
        ("aligned", "aligned in scale and offset", found.aligned, (nodes.aligned_floor_a, nodes.aligned_floor_b)),
    ]
    at = np.arange(len(order))
    shown = np.concatenate([v for _, _, v, floors in kinds for v in (v, *(f for f in floors if f is not None))])
    positive = shown[shown > 0]
    logarithmic = len(positive) > 0 and positive.max() > 20 * positive.min()
    # A floor of 0 has no place on a logarithmic scale: it lies below everything that is drawn.
    least = positive.min() / 3 if logarithmic else 0.0
    for axes, (kind, title, values, floors) in zip(grid, kinds, strict=True):
        for floor, letter, colour in zip(floors, "AB", (_A, _B), strict=True):
            if floor is None:
                label = f"floor of {letter}: unknown, no repeats"
                axes.plot([], [], color=colour, linewidth=1, label=label)
            else:
                exact = "" if floor.any() else ": 0, repeats are equal"
                label = f"floor: two repeats of {letter}{exact}"
                axes.plot(at, np.maximum(floor[order], least), color=colour, linewidth=1, label=label)
        points, above = np.maximum(values[order], least), nodes.above(kind)
        more = np.zeros(len(order), bool) if above is None else above[order]
        unknown = ", too few repeats to say more" if above is None else ", no more than repeats differ"
        axes.plot(
            at[~more], points[~more], "o", color="black", mfc="white", markersize=3, label=f"B against A{unknown}"
        )
        axes.plot(at[more], points[more], "o", color="black", markersize=3, label="B against A, above the floor")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("nodes, in the order of the raw NRMSE")
        whole_numbers(axes.xaxis)
        if logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    grid[0].set_ylabel("NRMSE of the node\n(standard deviations of A)")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    figure.suptitle("How far B is from A, node by node", x=0.01, ha="left", fontsize=11)
    return figure


def measures_figure(sides: Sequence[Side], names: Sequence[str]) -> Figure:
    """Each measure of both devices with its interval."""
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, grid = panels(3.2 * columns, 0.6 + 1.5 * rows, rows, columns, squeeze=False)
    for axes, name in zip(grid.flat, names, strict=False):
        for place, (side, colour) in enumerate(zip(sides, (_A, _B), strict=True)):
            found = side.measured[name]
            ends = [found.interval.low, found.interval.high]
            reach = [abs(found.value - end) if np.isfinite(end) else 0.0 for end in ends]
            axes.errorbar(found.value, -place, xerr=[[reach[0]], [reach[1]]], fmt="o", color=colour, capsize=3)
        axes.set_yticks([0, -1], ["A", "B"])
        axes.set_ylim(-1.6, 0.6)
        axes.margins(x=0.2)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.locator_params(axis="x", nbins=4)
        axes.set_title(MEASURES[name], loc="left", fontsize=10)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    figure.suptitle("Measures with 95 % intervals", x=0.01, ha="left", fontsize=11)
    return figure


def task_figure(task: Transfer) -> Figure:
    """Every metric of readouts that were trained on A or B and judged on A or B."""
    metrics = list(task.values)
    figure, grid = panels(max(5.5, 4.2 * len(metrics)), 3.6, 1, len(metrics), squeeze=False)
    for axes, metric in zip(grid.flat, metrics, strict=True):
        cells = [task.cell(metric, trained, judged) for trained, judged in CELLS]
        for place, (values, (trained, _)) in enumerate(zip(cells, CELLS, strict=True)):
            if np.isnan(values).any():
                axes.text(place, 0.5, "other\nnodes", transform=axes.get_xaxis_transform(), ha="center", color=_QUIET)
                continue
            spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(1)
            colour = _A if trained == "A" else _B
            axes.plot(place + spread, values, ".", color=colour, alpha=0.4, markersize=5)
            axes.plot([place - 0.25, place + 0.25], [values.mean()] * 2, color=colour, linewidth=2)
            text = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "color": colour}
            axes.annotate(f"{values.mean():.3g}", (place, values.max()), **text)
        everything = np.concatenate([values for values in cells if not np.isnan(values).any()])
        if everything.min() > 0 and everything.max() > 20 * everything.min():
            axes.set_yscale("log")
        axes.axvline(1.5, color=_QUIET, linewidth=0.8)
        axes.set_xticks(range(4), [f"trained on {trained}" for trained, _ in CELLS], fontsize=9)
        for place, judged in ((0.5, "A"), (2.5, "B")):
            axes.text(place, 1.0, f"judged on {judged}", transform=axes.get_xaxis_transform(), ha="center", va="bottom")
        axes.set(ylabel=metric, xlim=(-0.5, 3.5))
        axes.margins(y=0.12)
    figure.suptitle("Task: each dot a repeat, each line the mean", x=0.01, ha="left", fontsize=11)
    return figure
