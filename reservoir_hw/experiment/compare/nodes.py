"""Two devices node by node, beside what each of them differs from itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.backends.replay import Tape, recorded_spec
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.traces.difference import Difference, compare, repeat_error
from reservoir_hw.tasks.task import Table

LEVEL = 0.002
"""A p-value that is not above this counts as a difference."""

FEWEST = 8
"""Repeats of each device that a p-value needs."""

_WAYS = 1000
# Below this, statistics between 0 and 1 differ by rounding alone.
_ROUNDING = 1e-9


def can_tell(first: int, second: int) -> bool:
    """Whether there are repeats enough of both."""
    return min(first, second) >= FEWEST


def ways_to_deal(first: int, second: int) -> np.ndarray:
    """The true way to deal `first` + `second` repeats into groups of these sizes, and 999 random ones.

    (ways, repeats), True: in the first group.
    """
    true = np.arange(first + second) < first
    random = generator(0, "ways to deal")
    return np.array([true, *(random.permutation(true) for _ in range(_WAYS - 1))])


def p_values(statistics: np.ndarray) -> np.ndarray:
    """For each item the p-value, adjusted for the number of items: (items,) from statistics (ways, items) in [0, 1].

    The chance that any item that does not differ gets a p-value of at most p is p, however the items depend on each
    other: the step-down procedure of Westfall & Young (1993), algorithm 2.8.
    """
    order = statistics[0].argsort()
    greatest = np.maximum.accumulate(statistics[:, order], axis=1)
    reached = (greatest >= statistics[0, order] - _ROUNDING).mean(axis=0)
    found = np.empty(len(order))
    found[order] = np.maximum.accumulate(reached[::-1])[::-1]
    return found


_BLOCK = 64
_OF_A_NODE = ("floor_a", "floor_b", "aligned_floor_a", "aligned_floor_b", "p_raw", "p_aligned")
_WORST = 10
# In units of the last digit of the largest state: less is rounding.
_DIGITS = 8


@dataclass(frozen=True, eq=False)
class NodeComparison:
    """Arrays are (nodes,).

    `difference` is that of single repeats of B and A, in the order in which they were driven. `floor_a` and `floor_b`
    are the same for two repeats of one device, both in standard deviations of A; `aligned_floor_a` and
    `aligned_floor_b` once the repeats were scaled and shifted towards each other; None where there are no repeats.
    `p_raw` and `p_aligned` are the p-values of the permutation test, None where there are too few repeats for one.
    `mean_a` and `mean_b` (time, nodes) are the mean responses.
    """

    difference: Difference
    repeats: tuple[int, int]
    floor_a: np.ndarray | None
    floor_b: np.ndarray | None
    aligned_floor_a: np.ndarray | None
    aligned_floor_b: np.ndarray | None
    p_raw: np.ndarray | None
    p_aligned: np.ndarray | None
    mean_a: np.ndarray
    mean_b: np.ndarray

    def above(self, kind: str) -> np.ndarray | None:
        """Which nodes differ by more than repeats do, "raw" or "aligned"; None where that cannot be told."""
        p = self.p_raw if kind == "raw" else self.p_aligned
        return None if p is None else p <= LEVEL

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; a floor that is not known is null."""
        found = self.difference.as_dict()
        more = {name: getattr(self, name) for name in _OF_A_NODE}
        for number, node in enumerate(found["nodes"]):
            node |= {name: None if values is None else float(values[number]) for name, values in more.items()}
        return {**found, "repeats": {"a": self.repeats[0], "b": self.repeats[1]}}

    def tables(self) -> list[Table]:
        """All nodes in a few numbers, and the worst ones."""
        found = self.difference
        rows = [
            ["raw", *_spread(found.nrmse), *_middle(self.floor_a, self.floor_b), self._count("raw")],
            ["aligned", *_spread(found.aligned), *_middle(self.aligned_floor_a, self.aligned_floor_b),
             self._count("aligned")],
        ]  # fmt: skip
        note = (
            "NRMSE of B against A, in standard deviations of the node in A; aligned: once each node of B was scaled "
            "and shifted to come nearest to A. floor: the same between two repeats of one device."
        )
        header = ["NRMSE of a node", "median", "worst", "floor of A (median)", "floor of B (median)", "above the floor"]
        worst = [
            [
                found.nodes[i],
                f"{found.nrmse[i]:.3g}",
                f"{found.aligned[i]:.3g}",
                "constant" if np.isnan(found.gain[i]) else f"{found.gain[i]:.3g}",
                f"{found.offset[i]:.3g}",
                *("unknown" if floor is None else f"{floor[i]:.3g}" for floor in (self.floor_a, self.floor_b)),
                self._said(i),
            ]
            for i in found.worst(_WORST)
        ]
        names = ["node", "raw", "aligned", "scale", "offset", "floor of A", "floor of B", "above the floor"]
        about = (
            "scale: by what B is multiplied to come nearest to A. offset: mean of B - A, in the units of the states."
        )
        return [Table("Nodes", header, rows, note), Table("Nodes that differ most", names, worst, about)]

    def _count(self, kind: str) -> str:
        above = self.above(kind)
        return "cannot be told" if above is None else f"{np.count_nonzero(above)} of {len(above)}"

    def _said(self, node: int) -> str:
        raw, aligned = self.above("raw"), self.above("aligned")
        if raw is None or aligned is None:
            return "cannot be told"
        return " and ".join(name for name, above in (("raw", raw), ("aligned", aligned)) if above[node]) or "no"


def compare_nodes(a: StateStore, b: StateStore, *, washout: int) -> NodeComparison:
    """Compare recordings of one drive, repeated by both devices; the first `washout` steps do not count.

    Both have the same inputs and the same number of nodes.
    """
    difference = compare(a, b, washout=washout, input_tolerance=_input_rounding(a, b))
    own_a, own_b = (repeat_error(store, washout=washout) for store in (a, b))
    states_a, states_b = _repeats(a, washout), _repeats(b, washout)
    p_raw = p_aligned = None
    if can_tell(len(states_a), len(states_b)):
        p_raw, p_aligned = _tested(states_a, states_b)
    return NodeComparison(
        difference=difference,
        repeats=(len(states_a), len(states_b)),
        floor_a=None if own_a is None else own_a.nrmse,
        floor_b=None if own_b is None else own_b.nrmse * own_b.scale / difference.scale,
        aligned_floor_a=None if own_a is None else own_a.aligned,
        aligned_floor_b=None if own_b is None else own_b.aligned,
        p_raw=p_raw,
        p_aligned=p_aligned,
        mean_a=states_a.mean(axis=0, dtype=np.float64),
        mean_b=states_b.mean(axis=0, dtype=np.float64),
    )


def _input_rounding(a: StateStore, b: StateStore) -> float:
    """How far the same inputs are apart where one device has them in fewer digits."""
    dtypes = [recorded_spec(store).numpy_dtype for store in (a, b)]
    if dtypes[0] == dtypes[1]:
        return 0.0
    largest = max(float(np.abs(run.read_inputs(slice(0, 1), 0, run.steps)).max()) for run in a.datasets.values())
    return largest * max(float(np.finfo(dtype).eps) for dtype in dtypes)


def _repeats(store: StateStore, washout: int) -> np.ndarray:
    """States (repeats, time, nodes) of a recording whose sequences are all repeats."""
    tape = Tape(store)
    states = next(iter(store.datasets.values())).states
    found = np.empty((tape.sequences, tape.length(0) - washout, states.shape[2]), states.dtype)
    tape.read_states(np.arange(tape.sequences), washout, found)
    return found


def _tested(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p-values of all nodes, as they are and aligned."""
    ways = ways_to_deal(len(a), len(b))
    raw, aligned = [], []
    for first in range(0, a.shape[2], _BLOCK):
        block = slice(first, first + _BLOCK)
        x = np.concatenate([a[:, :, block], b[:, :, block]]).astype(np.float64)
        resolution = _DIGITS * max(np.finfo(one.dtype).eps for one in (a, b)) * np.abs(x).max(axis=(0, 1))
        z, scale = _aligned(x)
        for values, shares, limit in ((x, raw, resolution), (z, aligned, resolution / scale)):
            share, distance = _between(values, ways)
            # A difference that is rounding is none.
            shares.append(np.where(distance > limit, share, 0.0))
    return p_values(np.concatenate(raw, axis=1)), p_values(np.concatenate(aligned, axis=1))


def _between(x: np.ndarray, ways: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which share of the variance over repeats (repeats, time, nodes) lies between the groups, (ways, nodes).

    Also the root mean square over time of the difference of the groups' means, for the true way (nodes,).
    """
    moved = np.moveaxis(x - x.mean(axis=0), 2, 0)
    products = moved @ moved.transpose(0, 2, 1)  # (nodes, repeats, repeats)
    sizes = ways.sum(axis=1, keepdims=True)
    contrast = np.where(ways, 1 / sizes, -1 / (ways.shape[1] - sizes))
    distance = np.einsum("wr,nrs,ws->wn", contrast, products, contrast, optimize=True).clip(0)
    total = np.trace(products, axis1=1, axis2=2)
    weight = sizes[0, 0] * (1 - sizes[0, 0] / ways.shape[1])
    share = np.divide(weight * distance, total, out=np.zeros_like(distance), where=total > 0)
    return share, np.sqrt(distance[0] / x.shape[1])


def _aligned(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each repeat (time, nodes) shifted and scaled to the mean of all others; and by how much at least, (nodes,).

    Scaled by its slope on that mean, not by its standard deviation, to which its own noise would add.
    """
    moved = x - x.mean(axis=1, keepdims=True)
    spread = moved.std(axis=1, keepdims=True)
    z = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0)
    turned = z * np.where((z * z[:1]).sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    others = (turned.sum(axis=0) - turned) / (len(x) - 1)
    power = (others**2).sum(axis=1, keepdims=True)
    slope = np.divide((moved * others).sum(axis=1, keepdims=True), power, out=np.zeros_like(power), where=power > 0)
    smallest = np.where(slope != 0, np.abs(slope), np.inf).min(axis=(0, 1))
    scaled = np.divide(moved, slope, out=np.zeros_like(moved), where=slope != 0)
    return scaled, np.where(np.isfinite(smallest), smallest, 1.0)


def _spread(values: np.ndarray) -> list[str]:
    return [f"{np.median(values):.3g}", f"{values.max():.3g}"]


def _middle(*floors: np.ndarray | None) -> Sequence[str]:
    return ["unknown" if floor is None else f"{np.median(floor):.3g}" for floor in floors]
