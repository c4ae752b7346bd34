"""Measures of states that were recorded: a state matrix, or a trace of a device."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import NotSupported, ShapeError
from reservoir_hw.measures._drift import Drift, drift
from reservoir_hw.measures._echo_state_index import EchoStateIndex, echo_state_index
from reservoir_hw.measures._lyapunov_exponent import LyapunovExponent, lyapunov_from_replicas
from reservoir_hw.measures._rank import Streams
from reservoir_hw.measures._source import Source
from reservoir_hw.measures._states_on_disk import opened, windows

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

    def read(self, count: int | None = None, steps: int | None = None) -> np.ndarray:
        """States (repeats, time, nodes) of the first `count` repeats and `steps` steps."""
        chosen = self.sequences[:count]
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
