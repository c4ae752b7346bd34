"""Where the responses come from that a measure needs, and the measures of such a source."""

from __future__ import annotations

import itertools
import math
from abc import ABC
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import NotSupported, ShapeError
from reservoir_hw.measures._capacity import (
    Distribution,
    MemoryCapacity,
    ProcessingCapacity,
    information_processing_capacity,
    memory_capacity,
)
from reservoir_hw.measures._drift import Drift, drift
from reservoir_hw.measures._lyapunov import (
    EchoStateIndex,
    LyapunovExponent,
    LyapunovSpectrum,
    echo_state_index,
    lyapunov_from_replicas,
)
from reservoir_hw.measures._measured import opened, windows
from reservoir_hw.measures._nodes import Nodes
from reservoir_hw.measures._rank import (
    EffectiveDimension,
    Rank,
    Streams,
    effective_dimension,
    generalisation_rank,
    kernel_rank,
)
from reservoir_hw.measures._repeats import (
    Consistency,
    NoiseBudget,
    SignalToNoise,
    consistency,
    noise_budget,
    signal_to_noise,
)

# Functions of each degree that the processing capacity tries by default.
_FUNCTIONS = 2000
_DEGREES = 5


MEASURES = {
    "memory_capacity": "linear memory capacity",
    "processing_capacity": "information processing capacity",
    "kernel_rank": "kernel rank",
    "generalisation_rank": "generalisation rank",
    "consistency": "consistency",
    "echo_state_index": "echo-state index",
    "lyapunov_exponent": "conditional Lyapunov exponent (per step)",
    "effective_dimension": "effective dimension",
    "signal_to_noise": "signal-to-noise ratio (dB)",
    "drift": "drift (standard deviations)",
}
"""What a source can be asked for, by the name of its method."""


class Source(ABC):
    """Something to be measured. Its hooks give responses, or say in a `NotSupported` why they cannot.

    `washout` first steps of `recording` and `repeats` belong to no result. `max_delay` is the longest delay of a
    capacity, None for a choice by the number of nodes and steps.
    """

    washout: int = 0
    max_delay: int | None = None
    nodes: int
    channels: int
    distribution: Distribution = "empirical"
    input_range: tuple[float, float] | None = None

    # ---- what a source gives --------------------------------------------------------------------

    def recording(self) -> tuple[Any, Any]:
        """Inputs (sequences, time, channels) and states (sequences, time, nodes)."""
        raise NotSupported("it gives no states")

    def repeats(self) -> np.ndarray:
        """States (repeats, time, nodes) of drives with the same inputs, in the order of time."""
        raise NotSupported("it gives no repeated drives")

    def repeated_drive(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (time, channels) that were driven several times, and states (repeats, time, nodes)."""
        raise NotSupported("it gives no repeated drives")

    def replicas(self) -> tuple[np.ndarray, float]:
        """States (initial, time, nodes) under one drive from different initial states, and the noise between two runs.

        The noise is the root mean square difference of a node between two drives from the same initial state.
        """
        raise NotSupported("it gives no responses from different initial states")

    def streams(self, kind: Streams) -> tuple[np.ndarray, np.ndarray | None]:
        """States (sets, streams, nodes) at the ends of input streams, and the noise of each node (nodes,) if known."""
        raise NotSupported("it gives no responses to many input streams")

    def planned_steps(self, names: Collection[str]) -> int:
        """Steps that the measures `names` will drive; 0 for what was driven already."""
        return 0

    def nodes_seen(self) -> Nodes | None:
        """What each node did in repeated drives, where there were any; nothing is driven for it."""
        return None

    def latency_seen(self) -> int | None:
        """How many steps late the states are, as far as what was driven tells; nothing is driven for it."""
        return None

    # ---- the measures ---------------------------------------------------------------------------

    def memory_capacity(self) -> MemoryCapacity:
        """Linear memory capacity."""
        inputs, states = self.recording()
        return memory_capacity(inputs, states, max_delay=self._longest(states), washout=self.washout)

    def processing_capacity(self) -> ProcessingCapacity:
        """Information processing capacity, of up to 2000 functions of each degree from 2 to 5."""
        inputs, states = self.recording()
        return information_processing_capacity(inputs, states, **self._functions(states))

    def kernel_rank(self) -> Rank:
        """Rank of the states that different input streams lead to."""
        states, noise = self.streams("different")
        return kernel_rank(states, noise=noise)

    def generalisation_rank(self) -> Rank:
        """Rank of the states that similar input streams lead to."""
        states, noise = self.streams("similar")
        return generalisation_rank(states, noise=noise)

    def consistency(self) -> Consistency:
        """Correlation between the responses to repeated drives."""
        return consistency(self.repeats(), washout=self.washout)

    def echo_state_index(self) -> EchoStateIndex:
        """Number of different responses to one drive."""
        states, noise = self.replicas()
        return echo_state_index(states, noise=noise)

    def lyapunov_exponent(self) -> LyapunovExponent:
        """Largest conditional Lyapunov exponent."""
        raise NotSupported("it gives no responses after different pasts")

    def lyapunov_spectrum(self) -> LyapunovSpectrum:
        """Lyapunov spectrum of the driven system."""
        raise NotSupported("a Lyapunov spectrum needs a device whose state can be set")

    def effective_dimension(self) -> EffectiveDimension:
        """Participation ratio of the variances of the states."""
        return effective_dimension(self.recording()[1], washout=self.washout)

    def signal_to_noise(self) -> SignalToNoise:
        """Signal-to-noise ratio from repeated drives."""
        return signal_to_noise(self.repeats(), washout=self.washout)

    def noise_budget(self) -> NoiseBudget:
        """Rank of the states as linear capacity, nonlinear capacity, and what is lost to noise."""
        inputs, states = self.repeated_drive()
        return noise_budget(inputs, states, **self._functions(states))

    def drift(self) -> Drift:
        """Trend of means and spreads from repeat to repeat."""
        return drift(self.repeats(), washout=self.washout)

    def _longest(self, states: Any) -> int:
        if self.max_delay is not None:
            return self.max_delay
        return max(0, min(2 * self.nodes, (states.shape[1] - self.washout) // 10))

    def _functions(self, states: Any) -> dict[str, Any]:
        """What is tried: for each degree the longest delay that keeps the functions few."""
        longest = self._longest(states)
        delays = [longest]
        for degree in range(2, _DEGREES + 1):
            variables = self.channels
            while math.comb(variables + self.channels + degree - 1, degree) <= _FUNCTIONS:
                variables += self.channels
            if math.comb(variables + degree - 1, degree) > _FUNCTIONS:
                break
            delays.append(min(longest, variables // self.channels - 1))
        given = {"washout": self.washout, "distribution": self.distribution, "input_range": self.input_range}
        return {"max_delays": delays, **given}


# ---- Measures of states that were recorded: a state matrix, or a trace of a device.


# Without knowing the noise, responses that differ by less than this share of their spread pass for the same.
_TOLERANCE = 0.2

# Numbers of repeated drives that are held in memory; longer ones are cut.
_MOST = 20_000_000


@dataclass(frozen=True)
class _SequenceStates:
    """One sequence among the recordings: states (time, nodes). Only slices of it are read."""

    states: Any
    number: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.states.shape[1:]

    def __getitem__(self, steps: slice) -> np.ndarray:
        return self.states[self.number, steps]


@dataclass(frozen=True)
class _RepeatedDrive:
    """Sequences with the same inputs (time, channels) from step `start` on."""

    inputs: np.ndarray
    sequences: list[_SequenceStates]
    start: int

    @property
    def steps(self) -> int:
        return self.sequences[0].shape[0] - self.start

    def read(self, steps: int | None = None) -> np.ndarray:
        """States (repeats, time, nodes) of the first `steps` steps."""
        chosen = self.sequences
        nodes = chosen[0].shape[1]
        steps = min(steps or self.steps, max(1, _MOST // (len(chosen) * nodes)))
        found = np.empty((len(chosen), steps, nodes), np.result_type(*(sequence.states.dtype for sequence in chosen)))
        for _, members in itertools.groupby(enumerate(chosen), key=lambda member: id(member[1].states)):
            members = list(members)
            for window in windows(members[0][1].states, self.start, self.start + steps):
                for repeat, sequence in members:
                    found[repeat, window.start - self.start : window.stop - self.start] = sequence[window]
        return found


class Recorded(Source):
    """Recordings of one device: pairs of inputs (sequences, time, channels) and states (sequences, time, nodes).

    Two axes stand for one sequence. Only slices are read of the states, so they may lie on disk. Capacities and
    dimension are taken from the largest recording. Sequences of equal length in which at least the last quarter of the
    inputs is the same, and not constant, are repeated drives, from the step on at which the inputs agree; echo-state
    index and Lyapunov
    exponent mean something only if their pasts, or the states they began in, differed.

    `washout` and `max_delay` are as for the measures. Raises `ShapeError` for recordings that do not fit together.
    """

    def __init__(self, *recordings: tuple[Any, Any], washout: int = 0, max_delay: int | None = None) -> None:
        if not recordings:
            raise ShapeError("nothing was recorded: give at least one pair of inputs and states")
        pairs = [_three_axes(inputs, states) for inputs, states in recordings]
        widths = {(inputs.shape[2], states.shape[2]) for inputs, states in pairs}
        if len(widths) > 1:
            raise ShapeError(f"the recordings are of different devices: (channels, nodes) are {sorted(widths)}")
        ((self.channels, self.nodes),) = widths
        self.washout, self.max_delay = washout, max_delay
        self._largest = max(pairs, key=lambda pair: pair[0].shape[0] * pair[0].shape[1])
        self._groups = _repeated_drives(pairs)

    def recording(self) -> tuple[Any, Any]:
        """The largest recording."""
        return self._largest

    def repeats(self) -> np.ndarray:
        """The drive that was repeated most often."""
        return self._most_repeated().read()

    def repeated_drive(self) -> tuple[np.ndarray, np.ndarray]:
        """The drive that was repeated most often, with its inputs; where none was, the longest sequence alone."""
        most = max(self._groups, key=lambda group: (len(group.sequences), group.steps))
        states = most.read()
        return most.inputs[most.start :][: states.shape[1]], states

    def streams(self, kind: Streams) -> tuple[np.ndarray, np.ndarray | None]:
        """The ends of sequences with different inputs, where there are enough."""
        if kind == "similar":
            raise NotSupported("a recording does not tell which input streams were meant to be similar")
        if len(self._groups) < self.nodes:
            raise NotSupported(
                f"a kernel rank needs as many different input sequences as nodes, {self.nodes}; there are "
                f"{len(self._groups)}"
            )
        return np.stack([group.sequences[0][slice(-1, None)][0] for group in self._groups])[None], None

    def echo_state_index(self) -> EchoStateIndex:
        """Number of different responses to the drive that was repeated most often."""
        return echo_state_index(self.repeats(), tolerance=_TOLERANCE)

    def lyapunov_exponent(self) -> LyapunovExponent:
        """From pairs of responses to the same drive, which began in different states."""
        pasts = len(self._most_repeated().sequences)
        drives = [group for group in self._groups if len(group.sequences) == pasts]
        steps = min(drive.steps for drive in drives)
        return lyapunov_from_replicas(np.stack([drive.read(steps=steps) for drive in drives]))

    def drift(self) -> Drift:
        """From repeat to repeat where there are three or more, else along one sequence of the largest recording."""
        repeated = max(self._groups, key=lambda group: len(group.sequences))
        if len(repeated.sequences) > 2:
            return drift(repeated.read(), washout=self.washout)
        return drift(_SequenceStates(self._largest[1], 0), washout=self.washout)

    def _most_repeated(self) -> _RepeatedDrive:
        most = max(self._groups, key=lambda group: len(group.sequences))
        if len(most.sequences) < 2:
            raise NotSupported("it has no repeated drives: no two of its sequences had the same inputs")
        return most


def _three_axes(inputs: Any, states: Any) -> tuple[np.ndarray, Any]:
    inputs = np.asarray(as_numpy(inputs[:]))
    if inputs.ndim == 2:
        inputs = inputs[None]
    states = np.asarray(as_numpy(states))[None] if np.ndim(states) == 2 else opened(states)
    if inputs.ndim != 3 or np.ndim(states) != 3 or inputs.shape[:2] != np.shape(states)[:2] or 0 in inputs.shape:
        raise ShapeError(
            "a recording has inputs (sequences, time, channels) and states (sequences, time, nodes) of the same "
            f"sequences and steps, not {inputs.shape} and {np.shape(states)}"
        )
    return inputs, states


def _repeated_drives(pairs: list[tuple[np.ndarray, Any]]) -> list[_RepeatedDrive]:
    """All sequences, those together that were driven alike at the end."""
    alike: dict[tuple[int, bytes], list[tuple[np.ndarray, _SequenceStates]]] = {}
    for inputs, states in pairs:
        for number, u in enumerate(inputs):
            tail = u[-(-3 * len(u) // 4) :]
            # A pause at the end (padding, an input that was switched off) does not count as a repeated drive.
            varies = (tail[len(tail) // 2 :] != tail[-1]).any()
            key = len(u), tail.tobytes() if varies else f"{id(inputs)}, {number}".encode()
            alike.setdefault(key, []).append((u, _SequenceStates(states, number)))
    groups = []
    for members in alike.values():
        first = members[0][0]
        different = np.any([(u != first).any(axis=1) for u, _ in members], axis=0)
        start = int(np.flatnonzero(different)[-1]) + 1 if different.any() else 0
        groups.append(_RepeatedDrive(first, [sequence for _, sequence in members], start))
    return groups
