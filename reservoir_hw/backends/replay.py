"""A trace played back: what a device once answered, given again to the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.core.store import Dataset, Region, StateStore

_REPLAYED = " (replayed)"
_KEPT_INPUTS = 4


class ReplayConfig(ReservoirConfig):
    """A trace of a device (recorded, harvested or imported) in the place of the device."""

    never = frozenset({"settable", "differentiable"})

    kind: Literal["replay"]
    trace: str = Field(description="the store: what `run.record` or a harvest wrote, or `reservoir-hw trace import`")

    @property
    def kind_name(self) -> str:
        """With the name of the trace."""
        return f"REPLAY({Path(self.trace).name})"

    @property
    def nodes(self) -> int:
        """Of the recorded device."""
        return recorded_spec(StateStore.open(self.trace)).nodes

    def for_inputs(self, inputs: int | Channels) -> Self:
        """As for every kind; without a mask the task must have as many channels as the trace."""
        config = super().for_inputs(inputs)
        recorded = recorded_spec(StateStore.open(self.trace)).inputs
        channels = Channels.of(inputs).count
        if not isinstance(self.input_mask, MaskConfig) and channels != recorded:
            raise ConfigurationError(
                f"the task has {channels} input channels, and a recording has no other inputs than its own: "
                f"{self.trace} was recorded with {recorded}"
            )
        return config

    def build(self) -> Replay:
        """Make the reservoir; the trace is opened by `open()`."""
        return Replay(self)


class Replay(Reservoir):
    """Answers the inputs that a trace holds with the states that it holds.

    After each reset every sequence of the batch is looked for among the recorded ones, from their first step on, by
    exact equality in the trace's dtype. If several agree so far, the one that was played least since `open()` is
    taken, the earlier before the later: driven as often as the device was, the replay repeats the repetitions in
    their order. If a sequence turns out to be another one that began alike, the replay goes on with that one.

    `run` raises `InputRangeError` for an input that was not recorded; it names the first step that differs.
    States are read chunk by chunk, so the trace may be larger than memory; one that still grows can be replayed as
    far as it was written when the replay was opened.
    """

    # The device refused or clipped what lay outside its range when it was recorded.
    inputs_are_limited = False

    def __init__(self, config: ReplayConfig) -> None:
        super().__init__(out_of_range=config.out_of_range)
        self._path = config.trace
        self._at = 0
        self._chosen = np.empty(0, np.int64)

    @property
    def in_process(self) -> bool:
        """Always: any number of processes may read a trace."""
        return True

    def known_inputs(self) -> np.ndarray:
        """Of the first recorded sequence."""
        return self._tape.inputs(0, 0, self._tape.length(0))

    def follow(self, u: np.ndarray) -> None:
        """As `run`, but without reading the states: raises `InputRangeError` for an input that was not recorded."""
        self.drive(u, self._followed)

    def _open(self) -> ReservoirSpec:
        self._store = StateStore.open(self._path)
        self._tape = Tape(self._store, from_rest=True)
        self._plays = np.zeros(self._tape.sequences, np.int64)
        return _replayed_spec(recorded_spec(self._store))

    def _reset(self, batch: int) -> None:
        self._at = 0
        self._chosen = np.full(batch, -1)

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        states = np.empty((*u.shape[:2], self.device_spec.nodes), u.dtype) if out is None else out
        begin = self._at
        self._followed(u)
        self._tape.read_states(self._chosen, begin, states)
        return states

    def _followed(self, u: np.ndarray) -> None:
        for sequence in range(len(u)):
            self._follow(sequence, u[sequence])
        self._at += u.shape[1]

    def _snapshot(self) -> dict[str, np.ndarray]:
        batch = len(self._chosen)
        return {
            "step": np.full(batch, self._at),
            "recording": self._chosen.copy(),
            "plays": np.tile(self._plays, (batch, 1)),
        }

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        if state["plays"].shape[1] != len(self._plays):
            raise ConfigurationError(f"restore: {self._path} held other sequences when the snapshot was taken")
        self._at = int(state["step"][0])
        self._chosen = state["recording"]
        self._plays = state["plays"][0]

    def _settings(self) -> dict[str, Any]:
        facts = self._store.facts
        return {"replayed": {"trace": self._path, "made_by": facts["made_by"], "provenance": facts["provenance"]}}

    def _follow(self, sequence: int, u: np.ndarray) -> None:
        """Choose the recording that goes on with `u` (time, inputs)."""
        current = int(self._chosen[sequence])
        if current >= 0 and self._tape.agreement(current, self._at, u) == len(u):
            return
        began = self._tape.first_inputs[current] if current >= 0 else u[0]
        nearest, agreed = current, -1
        for number in self._tape.beginning_with(began, self._plays):
            if current >= 0 and not self._tape.same_past(number, current, self._at):
                continue
            steps = self._tape.agreement(number, self._at, u)
            if steps == len(u):
                self._plays[number] += 1
                if current >= 0:
                    self._plays[current] -= 1
                self._chosen[sequence] = number
                return
            if steps > agreed:
                nearest, agreed = number, steps
        if nearest < 0:
            nearest, agreed = self._tape.nearest_beginning(began), 0
        raise InputRangeError(self._not_recorded(sequence, nearest, agreed, u))

    def _not_recorded(self, sequence: int, nearest: int, agreed: int, u: np.ndarray) -> str:
        recording = "data set {}, sequence {}".format(*self._tape.place(nearest))
        step, given = self._at + agreed, u[agreed]
        recorded = self._tape.inputs(nearest, step, step + 1)
        if not len(recorded):
            differs = f"step {step} was never recorded: the nearest recording ({recording}) ends after {step} steps"
        else:
            channel = int((given != recorded[0]).argmax())
            differs = (
                f"step {step} differs from the nearest recording ({recording}): channel {channel} is "
                f"{given[channel]:.9g}, recorded was {recorded[0, channel]:.9g}"
            )
        return (
            f"{self._path}: sequence {sequence}, {differs}. A replay needs the inputs of the recording from a reset "
            "on: the same task, seeds, lengths and training (a test without a reset before it: "
            "`training: {continuous: true}`)" + (f". {self._tape.reason_left_out}" if self._tape.left_out else "")
        )


class _Block:
    """The sequences of a data set that share their chunks on the disk; `first` is the number of the first one."""

    def __init__(self, dataset: Dataset, rows: slice, first: int) -> None:
        self.dataset, self.rows, self.first = dataset, rows, first
        # The last chunks by number: a replay step by step, or of many sequences, would read them again and again.
        # Functions and not methods: a cache that held its block would stay in memory together with it.
        self.inputs = lru_cache(_KEPT_INPUTS)(partial(_read_inputs, dataset, rows))
        self.states = lru_cache(1)(partial(_read_states, dataset, rows))

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
        """Chunk, where in it, and where in start..stop, as far as the recording goes."""
        size, stop = self.dataset.chunk_steps, min(stop, self.dataset.steps)
        begin = start
        while begin < stop:
            chunk = begin // size
            end = min(stop, (chunk + 1) * size)
            yield chunk, slice(begin - chunk * size, end - chunk * size), slice(begin - start, end - start)
            begin = end


def _read_inputs(dataset: Dataset, rows: slice, chunk: int) -> np.ndarray:
    """(sequences, time, inputs); NaN where nothing was recorded."""
    place = _place(dataset, rows, chunk)
    return dataset.read_inputs(rows, place.start, place.stop)


def _read_states(dataset: Dataset, rows: slice, chunk: int) -> np.ndarray:
    """(sequences, time, nodes)."""
    return dataset.read(_place(dataset, rows, chunk))[1]


def _place(dataset: Dataset, rows: slice, chunk: int) -> Region:
    size = dataset.chunk_steps
    return Region(rows, chunk * size, min((chunk + 1) * size, dataset.steps))


class Tape:
    """All sequences of a store, numbered in the order of data sets and rows; read chunk by chunk.

    With `from_rest` those alone that begin at rest; what is `left_out` has a past that nobody recorded.

    Raises `ConfigurationError` where there are none, or where a file is damaged.
    """

    def __init__(self, store: StateStore, *, from_rest: bool = False) -> None:
        self._blocks: list[_Block] = []
        self.sequences = 0
        written = [dataset for dataset in store.datasets.values() if dataset.steps]
        self.left_out = [dataset.name for dataset in written if from_rest and not dataset.facts.get("from_rest", True)]
        for dataset in (dataset for dataset in written if dataset.name not in self.left_out):
            for first in range(0, dataset.sequences, dataset.group):
                rows = slice(first, min(first + dataset.group, dataset.sequences))
                self._blocks.append(_Block(dataset, rows, self.sequences))
                self.sequences += rows.stop - rows.start
        if not self._blocks:
            why = f": {self.reason_left_out}" if self.left_out else ""
            raise ConfigurationError(f"{store.path} holds no states yet{why}")
        self._firsts = np.array([block.first for block in self._blocks])

    @property
    def reason_left_out(self) -> str:
        """A sentence about the data sets that do not begin at rest."""
        return (
            f"data set {', '.join(self.left_out)} does not begin at rest, and what came before it was not kept (a "
            "warm-up, a settling pass, a snapshot that was restored); record the whole drive with run.record"
        )

    @cached_property
    def first_inputs(self) -> np.ndarray:
        """The first step of every sequence: (sequences, inputs)."""
        return np.concatenate([block.dataset.read_inputs(block.rows, 0, 1)[:, 0] for block in self._blocks])

    def beginning_with(self, u: np.ndarray, plays: np.ndarray) -> list[int]:
        """Sequences whose first inputs are `u` (inputs,), the least played first."""
        numbers = np.flatnonzero((self.first_inputs == u).all(axis=1))
        return numbers[np.argsort(plays[numbers], kind="stable")].tolist()

    def nearest_beginning(self, u: np.ndarray) -> int:
        """The sequence whose first inputs come nearest to `u` (inputs,)."""
        distance = np.abs(self.first_inputs - u).max(axis=1)
        return int(np.where(np.isnan(distance), np.inf, distance).argmin())

    def length(self, number: int) -> int:
        """Steps that were recorded."""
        block, row = self._find(number)
        for chunk, inside, _ in reversed(list(block.pieces(0, block.dataset.steps))):
            written = np.flatnonzero(~np.isnan(block.inputs(chunk)[row, inside]).any(axis=1))
            if len(written):
                return chunk * block.dataset.chunk_steps + int(written[-1]) + 1
        return 0

    def agreement(self, number: int, start: int, u: np.ndarray, tolerance: float = 0.0) -> int:
        """How many steps of `u` (time, inputs) the recording has from step `start` on."""
        block, row = self._find(number)
        agreed = 0
        for chunk, inside, part in block.pieces(start, start + len(u)):
            same = np.all(np.abs(block.inputs(chunk)[row, inside] - u[part]) <= tolerance, axis=1)
            if not same.all():
                return agreed + int(same.argmin())
            agreed += len(same)
        return agreed

    def same_past(self, number: int, other: int, steps: int) -> bool:
        """Whether two recordings have the same first `steps` inputs."""
        block, row = self._find(other)
        return number == other or all(
            self.agreement(number, part.start, block.inputs(chunk)[row, inside]) == part.stop - part.start
            for chunk, inside, part in block.pieces(0, steps)
        )

    def inputs(self, number: int, start: int, stop: int) -> np.ndarray:
        """Inputs (time, inputs) of these steps, as far as they were recorded."""
        block, row = self._find(number)
        parts = [block.inputs(chunk)[row, inside] for chunk, inside, _ in block.pieces(start, stop)]
        found = np.concatenate(parts) if parts else self.first_inputs[:0]
        ended = np.isnan(found).any(axis=1)
        return found[: int(ended.argmax())] if ended.any() else found

    def read_states(self, numbers: np.ndarray, start: int, out: np.ndarray) -> None:
        """Fill `out` (batch, time, nodes) with the states of these sequences from step `start` on."""
        owners = self._owners(numbers)
        for index in np.unique(owners):
            block, wanted = self._blocks[index], np.flatnonzero(owners == index)
            rows = numbers[wanted] - block.first
            for chunk, inside, part in block.pieces(start, start + out.shape[1]):
                out[wanted, part] = block.states(chunk)[rows, inside]

    def place(self, number: int) -> tuple[str, int]:
        """Data set and row of a sequence."""
        block, row = self._find(number)
        return block.dataset.name, block.rows.start + row

    def _find(self, number: int) -> tuple[_Block, int]:
        block = self._blocks[int(self._owners(number))]
        return block, number - block.first

    def _owners(self, numbers: Any) -> Any:
        return np.searchsorted(self._firsts, numbers, side="right") - 1


def recorded_spec(store: StateStore) -> ReservoirSpec:
    """What the device declared when the trace was made."""
    return ReservoirSpec(**store.facts["spec"])


def _replayed_spec(spec: ReservoirSpec) -> ReservoirSpec:
    """What remains of the device's capabilities once it is a recording."""
    identity = spec.identity.model_dump()
    identity["model"] = identity["model"].removesuffix(_REPLAYED) + _REPLAYED
    return spec.model_copy(
        update={
            "identity": Identity(**identity),
            "continuity": "held",
            "held_for_s": None,
            "snapshot": True,
            "deterministic": True,
            "max_batch": None,
            "reset_time_s": 0.0,
            "settable": False,
            "programmable": False,
            "differentiable": False,
            "not_supported": {
                "settable": "a recording knows only the states that its device went through",
                "programmable": "a recording keeps the weights that its device had",
                "differentiable": "a recording has no gradient",
            },
        }
    )
