"""What casts doubt on states: clipped inputs, converters at their ends, nodes that never move, what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.spec import Counters, ReservoirSpec
from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.experiment.states.plan import DriveChunk

# Blocks of a drive, and steps of the first ones. When there are twice as many, neighbours become one.
_BLOCKS = 20
_SHORTEST = 32
# What is known of a step: inputs of so many steps, and squares of the last of them, of so many channels.
_DELAYS, _SQUARES, _CHANNELS = 8, 2, 4
_NODES = 64
# How often a steady device is warned of, and inputs that are alike are taken for others.
_FALSE_ALARMS, _OTHERS = 1e-3, 1e-3
# A node of whose answer the fit explains less has no gain.
_EXPLAINED = 0.1
# Smaller changes are no matter, however sure they are. Mean and noise are in standard deviations of a node.
_WORTH_SAYING = {"gain": 0.02, "mean": 0.05, "noise": 0.05}


class Steadiness:
    """Sums over inputs and states of a drive, in blocks, from which the answer to the inputs is fitted.

    `look` at chunks in the order of time; `warnings` compares the last tenth with the first. The slope of the line from
    the fit to the states is the gain, and what it leaves is noise. The mean is held against that of the fit. So other
    inputs are not taken for another device where the device is linear; where the inputs of the two ends are not alike,
    nothing is said. The blocks between tell what is chance. Of more nodes than 64, so many are looked at.
    """

    def __init__(self, nodes: int) -> None:
        self._chosen = np.unique(np.linspace(0, nodes - 1, min(nodes, _NODES)).astype(int))
        self._nodes = nodes
        self._blocks: list[np.ndarray] = []
        self._length = _SHORTEST

    def look(self, inputs: np.ndarray, states: Any) -> None:
        """Add inputs (batch, time, channels) and their states (batch, time, nodes)."""
        if inputs.shape[1] < _DELAYS:
            return
        seen = arrays.as_numpy(states)[:, _DELAYS - 1 :, self._chosen].astype(np.float64)
        rows = np.concatenate([_known(inputs), seen], axis=2)
        length = self._length
        for begin in range(0, rows.shape[1], length):
            piece = rows[:, begin : begin + length].reshape(-1, rows.shape[2])
            self._add(piece.T @ piece)

    def _add(self, sums: np.ndarray) -> None:
        if self._blocks and self._blocks[-1][0, 0] < self._length:
            self._blocks[-1] = self._blocks[-1] + sums
        elif len(self._blocks) < 2 * _BLOCKS:
            self._blocks.append(sums)
        else:
            self._blocks = [one + other for one, other in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
            self._length *= 2
            self._add(sums)

    def warnings(self) -> list[str]:
        """A sentence where gain, mean or noise of nodes changed from the first to the last tenth."""
        blocks = self._blocks[:-1] if self._blocks and self._blocks[-1][0, 0] < self._length else self._blocks
        if len(blocks) < _BLOCKS:
            return []
        sums, known = np.stack(blocks), len(blocks[0]) - len(self._chosen)
        channels = (known - 1) // (_DELAYS + _SQUARES)
        # Inputs of the step itself, and their squares.
        latest = [*range(1, 1 + channels), *range(1 + _DELAYS * channels, 1 + (_DELAYS + 1) * channels)]
        change, half = _ends(sums[:, 0, latest] / sums[:, 0, :1], _OTHERS / len(latest))
        if (np.abs(change) > half).any():
            return []
        found = []
        courses = _courses(sums, known)
        for what, values in courses.items():
            change, half = _ends(values, _FALSE_ALARMS / (len(courses) * values.shape[1]))
            changed = (np.abs(change) > half) & (np.abs(change) > _WORTH_SAYING[what])
            if changed.any():
                found.append(self._said(what, change, half, changed))
        if not found:
            return []
        return [
            f"the device drifts: from the first to the last tenth {', '.join(found)}. Let it warm up, drive "
            "it for a shorter time, or see what `reservoir-hw measure --only drift` says"
        ]

    def _said(self, what: str, change: np.ndarray, half: np.ndarray, changed: np.ndarray) -> str:
        most = int(np.where(changed, np.abs(change), -1.0).argmax())
        by = f"{change[most]:+.2g} ± {half[most]:.1g} standard deviations"
        if what == "gain":
            by = f"{100 * change[most]:+.2g} ± {100 * half[most]:.1g} %"
        of = f"of {len(change)} nodes" if len(change) == self._nodes else f"of the {len(change)} nodes looked at"
        return f"the {what} of {np.count_nonzero(changed)} {of} changed (node {self._chosen[most]} by {by})"


def _known(inputs: np.ndarray) -> np.ndarray:
    """What is known of each step from the first on that has all delays: (batch, time, features), the first is 1."""
    channels = np.unique(np.linspace(0, inputs.shape[2] - 1, min(inputs.shape[2], _CHANNELS)).astype(int))
    u = np.asarray(inputs)[..., channels].astype(np.float64)
    steps = u.shape[1] - _DELAYS + 1
    delayed = [u[:, _DELAYS - 1 - delay : _DELAYS - 1 - delay + steps] for delay in range(_DELAYS)]
    squares = [delayed[delay] ** 2 for delay in range(_SQUARES)]
    return np.concatenate([np.ones((len(u), steps, 1)), *delayed, *squares], axis=2)


def _courses(sums: np.ndarray, known: int) -> dict[str, np.ndarray]:
    """Gain of each node in each block, how far its mean is from the fit, and its noise, (blocks, nodes)."""
    whole = sums.sum(axis=0)
    fit = np.linalg.lstsq(whole[:known, :known], whole[:known, known:], rcond=1e-10)[0]
    count = sums[:, :1, 0]
    mean, fitted = sums[:, 0, known:] / count, sums[:, 0, :known] @ fit / count
    together = np.einsum("bfn,fn->bn", sums[:, :known, known:], fit) / count - mean * fitted
    of_fit = np.einsum("fn,bfg,gn->bn", fit, sums[:, :known, :known], fit, optimize=True) / count - fitted**2
    power = np.einsum("bnn->bn", sums[:, known:, known:]) / count - mean**2
    everything = np.diag(whole)[known:] / whole[0, 0] - (whole[0, known:] / whole[0, 0]) ** 2
    moves = everything > 1e-18 * np.diag(whole)[known:] / whole[0, 0]
    scale = np.sqrt(np.where(moves, everything, np.inf))
    explained = of_fit.mean(axis=0) > _EXPLAINED * scale**2
    gain = np.where(explained, together / np.maximum(of_fit, np.finfo(np.float64).tiny), 1.0)
    left = np.maximum(power - 2 * gain * together + gain**2 * of_fit, 0.0)
    return {"gain": gain, "mean": (mean - fitted) / scale, "noise": np.sqrt(left) / scale}


def _ends(values: np.ndarray, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Change of (blocks, ·) from the first to the last tenth, and how much of it may be chance, but for `probability`.

    Chance is the scatter of blocks about their line. Where neighbours are alike in it, there are fewer that count.
    """
    blocks, end = len(values), len(values) // 10
    change = values[-end:].mean(axis=0) - values[:end].mean(axis=0)
    time = np.arange(blocks) - (blocks - 1) / 2
    left = values - values.mean(axis=0) - time[:, None] * (time @ values / (time @ time))
    power = (left**2).sum(axis=0)
    alike = (left[1:] * left[:-1]).sum(axis=0) / np.maximum(power, np.finfo(np.float64).tiny)
    alike = np.clip(alike + 1 / blocks, 0.0, 0.9)
    scatter = np.sqrt(power / (blocks - 2) * (1 + alike) / (1 - alike))
    return change, t_quantile(1 - probability / 2, blocks - 2) * scatter * np.sqrt(2 / end) + 1e-9


_SHOWN = 8
# Of the samples of a node: so many exactly at its largest or smallest value are no chance.
_RAILED = 0.01
# States so close to an end of the declared range, as a share of it, hardly answer any more; and which share of all may.
_CLOSE, _MAY_BE_CLOSE = 0.005, 0.25
# Of the steps, every so many is looked at for that.
_EVERY = 8
_OF_COUNTERS = {
    "saturations": "samples{over} lay beyond the range of a converter: lower the gain, or widen its range (`range_v` "
    "of an input of an instrument, `limit` or `range` of `nonidealities` of a simulation)",
    "lost": "samples were lost: drive more slowly, or in shorter bursts",
    "underruns": "times inputs were not there when they were due: send larger chunks, or drive more slowly",
    "overruns": "times states were not taken in time: send smaller chunks, or drive more slowly",
    "retries": "drives were tried again: look at the cables, and at the log of the device",
}


class StateWatch:
    """Looks at all states of a drive as they pass.

    A node is railed if it lies at an end of the declared `state_range`, or, on a device without a declared range, if
    more than 1 % of its samples are exactly its largest or smallest value. Simulations may do so by their equations.
    Of what is no simulation, the last tenth of the training is compared with the first (`Steadiness`).
    """

    def __init__(self, spec: ReservoirSpec) -> None:
        self._spec = spec
        self._lowest, self._highest = np.full(spec.nodes, np.inf), np.full(spec.nodes, -np.inf)
        self._at_lowest, self._at_highest = np.zeros(spec.nodes), np.zeros(spec.nodes)
        self._samples = self._close = self._looked_at = 0
        self._steadiness = None if spec.identity.simulated else Steadiness(spec.nodes)

    def passing(self, states: Iterable[tuple[DriveChunk, Any]]) -> Iterator[tuple[DriveChunk, Any]]:
        """The same chunks and states, which are looked at; tensors where they are."""
        for chunk, answer in states:
            self.look(chunk, answer)
            yield chunk, answer

    def look(self, chunk: DriveChunk, states: Any) -> None:
        """Look at the states (batch, time, nodes) of a chunk."""
        if chunk.place is None or 0 in states.shape:
            return
        # A test may have other inputs.
        if self._steadiness is not None and chunk.split == "train":
            self._steadiness.look(chunk.inputs, states)
        lowest, highest = arrays.node_limits(states)
        if self._spec.state_range is not None:
            low, high = self._spec.state_range
            self._at_lowest += _times(states <= low)
            self._at_highest += _times(states >= high)
            some, close = states[:, ::_EVERY], _CLOSE * (high - low)
            self._close += int(_times((some <= low + close) | (some >= high - close)).sum())
            self._looked_at += int(np.prod(some.shape))
        elif not self._spec.identity.simulated:
            for count, extreme, known, beyond in (
                (self._at_lowest, lowest, self._lowest, lowest < self._lowest),
                (self._at_highest, highest, self._highest, highest > self._highest),
            ):
                count[beyond] = 0
                count += _times(states == arrays.like(np.where(beyond, extreme, known), states))
        self._lowest, self._highest = np.minimum(self._lowest, lowest), np.maximum(self._highest, highest)
        self._samples += states.shape[0] * states.shape[1]

    def warnings(self) -> list[str]:
        """One for nodes that never moved, one for nodes that are railed, and one for a device that drifts."""
        found = []
        still = self._lowest == self._highest
        if self._samples > 1 and still.any():
            wiring = (
                "a readout gains nothing by them"
                if self._spec.identity.simulated
                else "look at their wiring, or leave them out"
            )
            found.append(f"{_nodes(still)} never moved: {wiring}")
        share = np.maximum(self._at_lowest, self._at_highest) / max(self._samples, 1)
        # The largest of a few samples is there once.
        railed = (share > (0 if self._spec.state_range else max(_RAILED, 1 / max(self._samples, 1)))) & ~still
        if railed.any():
            found.append(
                f"{_nodes(railed)} lay at the end of the converter's range in up to {share[railed].max():.2g} of the "
                "samples: lower the gain, or widen the range"
            )
        if self._close > _MAY_BE_CLOSE * self._looked_at and not railed.any():
            found.append(
                f"{self._close / self._looked_at:.0%} of the states lie at an end of their range, where they hardly "
                "answer to an input any more: scale the inputs (task.scale, input_scaling of the reservoir)"
            )
        return found if self._steadiness is None else found + self._steadiness.warnings()


def counted(records: Iterable[Mapping[str, Any]]) -> Counters:
    """The sum of the counters in the records of a device, one for each time that it was opened."""
    total = Counters()
    for record in records:
        for name, value in record.get("counters", {}).items():
            if hasattr(total, name) and isinstance(value, int):
                setattr(total, name, getattr(total, name) + value)
    return total


def about_counters(counters: Counters, spec: ReservoirSpec) -> list[str]:
    """One sentence for each kind of event that was counted."""
    found = []
    if counters.clipped:
        within = "" if spec.input_range is None else " {:g} to {:g}".format(*spec.input_range)
        found.append(
            f"{counters.clipped:,} of {counters.steps * spec.inputs:,} input values were clipped to the range{within} "
            "of the device: scale the inputs, or let out_of_range: error refuse them"
        )
    named = ((getattr(counters, name), what) for name, what in _OF_COUNTERS.items())
    over = f" in {counters.steps:,} steps of {spec.nodes} nodes"
    return [*found, *(f"{count:,} {what.format(over=over)}" for count, what in named if count)]


def _times(true: Any) -> np.ndarray:
    """How often, for each node."""
    return arrays.as_numpy(true.sum(axis=(0, 1)))


def _nodes(which: np.ndarray) -> str:
    numbers = np.flatnonzero(which)
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} of {len(which)} nodes ({shown})"
