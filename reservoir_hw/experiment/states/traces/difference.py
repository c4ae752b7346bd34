"""How far two traces are apart, where both devices were driven with the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reservoir_hw.backends.replay import Tape, recorded_spec
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.plan import slices
from reservoir_hw.experiment.states.progress import Progress, StepCounter
from reservoir_hw.tasks.task import Table

_AT_ONCE = 64
_PIECE_BYTES = 16 << 20
_WORST = 10
_OF_ALL = ("a", "b", "identical", "tolerance", "within_tolerance", "washout", "steps")
_OF_A_NODE = ("nrmse", "aligned", "gain", "consistency", "offset", "largest")


@dataclass(frozen=True)
class Pair:
    """A sequence of each trace: (data set, row), with the number of first steps in which their inputs agree."""

    a: tuple[str, int]
    b: tuple[str, int]
    steps: int


@dataclass(frozen=True)
class Divergence:
    """The first step at which a node differs by more than the tolerance; `deviations` are standard deviations."""

    a: tuple[str, int]
    b: tuple[str, int]
    step: int
    node: int
    deviations: float


@dataclass(frozen=True)
class Difference:
    """What `compare` found. Arrays are (nodes,).

    `nrmse` is the root mean square of b - a over the standard deviation of the node in a, pooled over all pairs (for
    a node that is constant in a, over that of all nodes). `scale` is what it was divided by. `aligned` is the NRMSE
    that is left once b was multiplied by `gain` and shifted so that it comes nearest to a: sqrt(1 - r²) with the
    correlation r, and 1 where only one of them moves (`gain` is then NaN). `consistency` is the correlation of a and b,
    NaN where one of them is constant. `offset` is the mean of b - a, `largest` the greatest |b - a|. `overall` is the
    NRMSE of all finite nodes together: total squared difference over total variance, rooted. A node that is NaN or
    infinite somewhere, in a or b, counts as different.
    """

    a: str
    b: str
    nodes: Sequence[str]
    pairs: Sequence[Pair]
    alone_a: int
    alone_b: int
    tolerance: float
    washout: int
    steps: int
    nrmse: np.ndarray
    aligned: np.ndarray
    gain: np.ndarray
    consistency: np.ndarray
    scale: np.ndarray
    offset: np.ndarray
    largest: np.ndarray
    overall: float
    divergence: Divergence | None

    @property
    def identical(self) -> bool:
        """Whether no number differs."""
        return not self.largest.any()

    @property
    def within_tolerance(self) -> bool:
        """Whether the NRMSE of no node is above the tolerance."""
        return bool((self.nrmse <= self.tolerance).all())

    @property
    def not_finite(self) -> list[int]:
        """Numbers of the nodes that are NaN or infinite somewhere, in a or b."""
        return np.flatnonzero(~np.isfinite(self.largest)).tolist()

    def worst(self, count: int = _WORST) -> list[int]:
        """The nodes with the greatest NRMSE, before them those that are not finite."""
        return np.argsort(np.where(np.isfinite(self.largest), -self.nrmse, -np.inf), kind="stable")[:count].tolist()

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        first = self.divergence
        return {
            **{name: getattr(self, name) for name in _OF_ALL},
            "nrmse": _known(self.overall),
            "consistency": _middle(self.consistency),
            "not_finite": [self.nodes[i] for i in self.not_finite],
            "pairs": [asdict(pair) for pair in self.pairs],
            "alone": {"a": self.alone_a, "b": self.alone_b},
            "divergence": None if first is None else {**asdict(first), "deviations": _known(first.deviations)},
            "nodes": [
                {"name": name, **{key: _known(getattr(self, key)[i]) for key in _OF_A_NODE}}
                for i, name in enumerate(self.nodes)
            ],
        }

    def facts(self) -> list[tuple[str, str]]:
        """A summary, for people."""
        first, diverges = self.divergence, "nowhere"
        if first is not None:
            size = f"{first.deviations:.3g} standard deviations" if np.isfinite(first.deviations) else "not finite"
            place = "step {} of data set {}, sequence {}".format(first.step, *first.a)
            diverges = f"{place}: node {self.nodes[first.node]}, {size}"
        alone = f"only in a: {self.alone_a}, only in b: {self.alone_b}"
        finite = np.isfinite(self.largest)
        nrmse = self.nrmse[finite]
        return [
            ("a", self.a),
            ("b", self.b),
            ("sequences", f"{len(self.pairs)} with the same inputs; {alone}"),
            ("compared", f"{self.steps:,} steps of {len(self.nodes):,} nodes"),
            ("NRMSE", "0, identical" if self.identical else f"{self.overall:.3g}"),
            *([("NRMSE of a node", f"median {np.median(nrmse):.3g}, worst {nrmse.max():.3g}")] if len(nrmse) else []),
            ("consistency", _shown(self.consistency[finite])),
            *([] if finite.all() else [("not finite", self.names_not_finite())]),
            ("first difference" + (f" above {self.tolerance:g}" if self.tolerance else ""), diverges),
        ]

    def names_not_finite(self) -> str:
        """Which nodes are not finite, for people."""
        names = [self.nodes[i] for i in self.not_finite]
        more = f" and {len(names) - _WORST} more" if len(names) > _WORST else ""
        return f"node{'s' * (len(names) > 1)} {', '.join(names[:_WORST])}{more}"

    def table(self) -> Table:
        """The worst nodes, for people."""
        moving = ["constant" if np.isnan(value) else f"{value:.4f}" for value in self.consistency]
        for i in self.not_finite:
            moving[i] = "not finite"
        rest = (self.aligned, self.offset, self.largest)
        worst = [
            [self.nodes[i], f"{self.nrmse[i]:.3g}", moving[i], *(f"{one[i]:.3g}" for one in rest)] for i in self.worst()
        ]
        note = (
            "NRMSE: root mean square of b - a over the node's standard deviation in a. consistency: correlation of a "
            "and b. aligned: the NRMSE that is left once b was scaled and shifted to come nearest to a. offset: mean "
            "of b - a; largest: greatest |b - a|, both in the units of the states."
        )
        return Table("Worst nodes", ["node", "NRMSE", "consistency", "aligned", "offset", "largest"], worst, note)


def compare(
    a: StateStore,
    b: StateStore,
    *,
    tolerance: float = 0.0,
    washout: int = 0,
    input_tolerance: float = 0.0,
    progress: Progress | None = None,
) -> Difference:
    """Compare the states of two traces wherever both devices were driven with the same inputs from a reset on.

    Every sequence of `a` is paired with the first sequence of `b` not yet taken whose inputs are the same over the
    length of the shorter one: repetitions are paired in their order. The first `washout` steps of every pair
    are left out. `input_tolerance` is by how much inputs may differ (measured ones never agree exactly). `progress` is
    called with (what is being done, steps done, steps in all).

    Raises `ConfigurationError` if the nodes differ in number, or no sequence has a partner.
    """
    spec_a, spec_b = recorded_spec(a), recorded_spec(b)
    for what in ("inputs", "nodes"):
        if getattr(spec_a, what) != getattr(spec_b, what):
            raise ConfigurationError(
                f"{a.path} has {getattr(spec_a, what)} {what}, {b.path} has {getattr(spec_b, what)}: they cannot be "
                "compared"
            )
    tapes = Tape(a), Tape(b)
    matched = _matched(*tapes, input_tolerance)
    if not matched:
        raise ConfigurationError(
            f"no sequence of {a.path} has the inputs of one of {b.path}; where inputs were measured, say by how much "
            "they may differ: --input-tolerance"
        )
    if max(steps for _, _, steps in matched) <= washout:
        raise ConfigurationError(f"washout {washout}: no pair of sequences is longer")
    return _difference(a, b, *tapes, matched, tolerance=tolerance, washout=washout, progress=progress)


def repeat_error(store: StateStore, *, washout: int = 0) -> Difference | None:
    """How far the repeats of a drive are apart in one trace: each sequence against the next with the same inputs.

    None where no two sequences have the same inputs, or only in the `washout`.
    """
    tape = Tape(store)
    lengths = [tape.length(number) for number in range(tape.sequences)]
    matched = []
    for number, length in enumerate(lengths):
        begin = tape.first_inputs[number]
        for other in range(number + 1, tape.sequences):
            alike = length == lengths[other] > washout and (tape.first_inputs[other] == begin).all()
            if alike and _agree(tape, number, tape, other, length, 0.0):
                matched.append((number, other, length))
                break
    return _difference(store, store, tape, tape, matched, washout=washout) if matched else None


@np.errstate(invalid="ignore", over="ignore")  # what is not finite is a result here
def _difference(
    a: StateStore,
    b: StateStore,
    tape_a: Tape,
    tape_b: Tape,
    matched: Sequence[tuple[int, int, int]],
    *,
    tolerance: float = 0.0,
    washout: int = 0,
    progress: Progress | None = None,
) -> Difference:
    """Of the pairs that were matched: (sequence of a, sequence of b, steps)."""
    tapes, spec = (tape_a, tape_b), recorded_spec(a)
    compared = sum(max(0, steps - washout) for _, _, steps in matched)
    counter = StepCounter(progress, 2 * compared)
    counter.say("measuring")
    sums = _Sums(spec.nodes)
    for _, _, x, _ in _pieces(tapes, matched, washout, spec.nodes):
        sums.add_reference(x)
        counter.add(x.shape[0] * x.shape[1])
    sums.fix_scale()
    counter.say("comparing")
    first: tuple[int, int, int, float] | None = None
    for numbers, start, x, y in _pieces(tapes, matched, washout, spec.nodes):
        sums.add(x, y)
        counter.add(x.shape[0] * x.shape[1])
        if first is None or start < first[1]:
            found = _first_above(x, y, sums.scale, tolerance)
            if found is not None and (first is None or start + found[1] < first[1]):
                first = int(numbers[found[0]]), start + found[1], found[2], found[3]
    pairs = {number: Pair(tape_a.place(number), tape_b.place(other), s) for number, other, s in matched}
    return Difference(
        a=a.path,
        b=b.path,
        nodes=spec.node_names or tuple(map(str, range(spec.nodes))),
        pairs=list(pairs.values()),
        alone_a=tape_a.sequences - len(matched),
        alone_b=tape_b.sequences - len(matched),
        tolerance=tolerance,
        washout=washout,
        steps=compared,
        **sums.results(),
        divergence=None if first is None else Divergence(pairs[first[0]].a, pairs[first[0]].b, *first[1:]),
    )


def _matched(a: Tape, b: Tape, tolerance: float) -> list[tuple[int, int, int]]:
    """(sequence of a, sequence of b, steps) with the same inputs."""
    matched: list[tuple[int, int, int]] = []
    lengths = [b.length(number) for number in range(b.sequences)]
    free = [number for number in range(b.sequences) if lengths[number]]
    for number in range(a.sequences):
        length = a.length(number)
        begin = a.first_inputs[number]
        for other in free:
            steps = min(length, lengths[other])
            alike = steps and (np.abs(b.first_inputs[other] - begin) <= tolerance).all()
            if alike and _agree(a, number, b, other, steps, tolerance):
                matched.append((number, other, steps))
                free.remove(other)
                break
    return matched


def _agree(a: Tape, number: int, b: Tape, other: int, steps: int, tolerance: float) -> bool:
    pieces = ((one.start, a.inputs(number, one.start, one.stop)) for one in slices(steps, 4096))
    return all(b.agreement(other, start, u, tolerance) >= len(u) for start, u in pieces)


def _pieces(
    tapes: tuple[Tape, Tape], matched: Sequence[tuple[int, int, int]], washout: int, nodes: int
) -> Iterator[tuple[np.ndarray, int, np.ndarray, np.ndarray]]:
    """Numbers in a, first step, and the states of both, (sequences, time, nodes), in bounded memory."""
    by_length: dict[int, list[tuple[int, int]]] = {}
    for number, other, steps in matched:
        by_length.setdefault(steps, []).append((number, other))
    for steps, pairs in by_length.items():
        for at in range(0, len(pairs), _AT_ONCE):
            numbers = np.array(pairs[at : at + _AT_ONCE]).T
            size = max(1, _PIECE_BYTES // (8 * nodes * numbers.shape[1]))
            for start in range(washout, steps, size):
                x, y = (np.empty((numbers.shape[1], min(size, steps - start), nodes)) for _ in tapes)
                for tape, which, states in zip(tapes, numbers, (x, y), strict=True):
                    tape.read_states(which, start, states)
                yield numbers[0], start, x, y


class _Sums:
    """Moments per node, in float64 and about the mean of a."""

    def __init__(self, nodes: int) -> None:
        self.count = 0
        self.mean, self.variance, self.scale = np.zeros(nodes), np.zeros(nodes), np.ones(nodes)
        self.largest = np.zeros(nodes)
        self._low, self._high = np.full((2, nodes), np.inf), np.full((2, nodes), -np.inf)
        self._b, self._bb, self._ab, self._dd = (np.zeros(nodes) for _ in range(4))

    def add_reference(self, x: np.ndarray) -> None:
        """Mean and variance of a, merged piece by piece (Chan, Golub & LeVeque 1979)."""
        rows = x.reshape(-1, x.shape[-1])
        count, mean = len(rows), rows.mean(axis=0)
        away = mean - self.mean
        total = self.count + count
        self.variance += ((rows - mean) ** 2).sum(axis=0) + away**2 * (self.count * count / total)
        self.mean += away * (count / total)
        self.count = total
        self._widen(0, rows)

    def _widen(self, which: int, rows: np.ndarray) -> None:
        self._low[which] = np.minimum(self._low[which], rows.min(axis=0))
        self._high[which] = np.maximum(self._high[which], rows.max(axis=0))

    def fix_scale(self) -> None:
        """What differences of each node are measured in."""
        self.variance /= self.count
        self.variance[self._low[0] == self._high[0]] = 0.0
        known = self.variance[np.isfinite(self.variance)]
        together = (float(np.sqrt(known.mean())) if len(known) else 0.0) or 1.0
        moving = np.isfinite(self.variance) & (self.variance > 0)
        self.scale = np.where(moving, np.sqrt(self.variance), together)

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Both, of the same steps."""
        rows, others = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        difference, away = others - rows, others - self.mean
        self.largest = np.maximum(self.largest, np.abs(difference).max(axis=0))
        self._dd += (difference**2).sum(axis=0)
        self._b += away.sum(axis=0)
        self._bb += (away**2).sum(axis=0)
        self._ab += (away * (rows - self.mean)).sum(axis=0)
        self._widen(1, others)

    def results(self) -> dict[str, Any]:
        """The arrays of `Difference`, and the NRMSE of all nodes."""
        square, offset = self._dd / self.count, self._b / self.count
        nrmse = np.sqrt(square) / self.scale
        moves = self._low < self._high
        moving, variance_b = moves.all(axis=0), self._bb / self.count - offset**2
        both = np.where(moving, self.variance, 1.0) * np.where(moving, variance_b, 1.0)
        consistency = np.where(moving, self._ab / self.count / np.sqrt(both), np.nan).clip(-1, 1)
        # Scaled and shifted by least squares. The correlation is known to 1e-16, its root to 1e-8 only.
        left = np.where(moving, np.sqrt(1 - consistency**2), moves.any(axis=0))
        finite = np.isfinite(self.largest)
        total = float(self.variance[finite].sum())
        overall = float("nan")
        if finite.any():
            overall = float(np.sqrt(square[finite].sum() / total if total else np.mean(nrmse[finite] ** 2)))
        return {
            "nrmse": nrmse,
            "aligned": np.minimum(left, nrmse),
            "gain": consistency * np.sqrt(self.variance / np.where(moves[1], variance_b, 1.0)),
            "consistency": consistency,
            "scale": self.scale,
            "offset": offset,
            "largest": self.largest,
            "overall": overall,
        }


def _first_above(
    x: np.ndarray, y: np.ndarray, scale: np.ndarray, tolerance: float
) -> tuple[int, int, int, float] | None:
    """Sequence, step, node and size of the earliest difference above the tolerance, or that is not finite."""
    deviations = np.abs(y - x) / scale
    above = ~(deviations <= tolerance)
    if not above.any():
        return None
    step = int(above.any(axis=(0, 2)).argmax())
    sequence, node = np.unravel_index(int(deviations[:, step].argmax()), deviations[:, step].shape)
    return int(sequence), step, int(node), float(deviations[sequence, step, node])


def _known(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return float(value) if np.isfinite(value) else None


def _middle(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _shown(consistency: np.ndarray) -> str:
    known = consistency[~np.isnan(consistency)]
    if not len(known):
        return "no node moves in both"
    constant = len(consistency) - len(known)
    text = f"median {np.median(known):.4f}, lowest {known.min():.4f}"
    return text + (f"; {constant} nodes are constant in one of them" if constant else "")
