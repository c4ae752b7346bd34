"""The contract of every kind of reservoir, as one machine that does anything in any order.

The model is "the inputs since rest": whatever was called before, the states are those of one whole run from rest with
these inputs, or a named error says why there are none. What the device counts adds up. After a fault only a reset or
a restored snapshot goes on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    InputRangeError,
    NotOpen,
    NotSupported,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir

from .kinds import KINDS, Kind, Sequences

SEEDS = st.integers(0, 1000)
BATCHES = st.integers(1, 3)
STEPS = st.integers(0, 4)
LENGTHS = st.lists(st.integers(0, 3), min_size=1, max_size=4)
FORMS = st.sampled_from(["array", "step", "out", "fortran", "backwards", "wide", "one"])
BEYOND = 4.0
"""Inputs that are so many times larger lie beyond the limits of devices that have some."""


class Unrelated(Exception):
    """Comes from the caller's own source of chunks."""


class Contract(RuleBasedStateMachine):
    """A reservoir, and what must be true of it."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.lost = False
        self.setting = kind.settings[0]
        self.snapshots: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[Sequences]]] = []
        # What was returned, and what it was then.
        self.returned: list[tuple[np.ndarray, np.ndarray]] = []
        self.observing = contextlib.ExitStack()
        self.seen: list[tuple[np.ndarray, np.ndarray | None]] = []

    # ---- what is observed -----------------------------------------------------------------------

    def was_reset(self, *, from_rest: bool) -> None:
        self.seen.clear()

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        self.seen.append((inputs.copy(), None if states is None else states.copy()))

    # ---- open and closed ------------------------------------------------------------------------

    @initialize(out_of_range=st.sampled_from(["error", "clip"]))
    def begins(self, out_of_range: str) -> None:
        self.clips = out_of_range == "clip"
        self.device: Reservoir = self.kind.build(out_of_range)
        self.observing.enter_context(self.device.observed_by(self))
        self._opens()
        if self.kind.shared and self.kind.keeps_setting:
            # Whoever had it before may have left another.
            self.is_changed(0)

    def _opens(self) -> None:
        assert self.device.open() is self.device
        if not self.kind.keeps_setting:
            self.setting = self.kind.settings[0]
        self.counts = {"steps": 0, "clipped": 0, "faults": 0}
        self.since: list[Sequences] = []
        self._is_at_rest(1)
        spec, kind = self.device.spec, self.kind
        assert (spec.inputs, spec.continuity, spec.max_batch) == (kind.inputs, kind.continuity, kind.most)
        assert (spec.snapshot, spec.settable, spec.dtype) == (kind.snapshot, kind.settable, kind.dtype)
        assert self.device.streams == kind.streams

    @rule(batch=BATCHES, seed=SEEDS)
    def resets(self, batch: int, seed: int) -> None:
        self.device.reset(batch)
        self._is_at_rest(batch)
        self.runs(steps=seed % 3, seed=seed, beyond=False, form="array")

    # ---- drives ---------------------------------------------------------------------------------

    @rule(steps=STEPS, seed=SEEDS, beyond=st.booleans(), form=FORMS)
    def runs(self, steps: int, seed: int, beyond: bool, form: str) -> None:
        steps = 1 if form == "step" else steps
        u = self._drawn(self._batch, steps, seed, beyond=beyond)
        given, out, run = u, None, self.device.run
        match form:
            case "step":
                given, run = u[:, 0], self._stepped
            case "out":
                out = np.empty((self._batch, steps, self.device.spec.nodes), self.kind.dtype)
            case "fortran":
                given = np.asfortranarray(u)
            case "backwards":
                given = u[::-1].copy()[::-1]
            case "wide":
                given = u.astype(np.float64)
            case "one" if self._batch == 1:
                given = u[0]
        if refusal := self._refusal() or self._out_of_range(u):
            with pytest.raises(refusal):
                run(given, out)
            return
        as_given = given.copy()
        states = np.asarray(run(given, out))
        assert out is None or states is out
        assert np.array_equal(given, as_given)
        self._counts_drive(steps)
        nodes = self.device.spec.nodes
        assert states.shape == (*given.shape[:-1], nodes)
        self._went_on(u, states.reshape((*u.shape[:2], nodes)))

    def _stepped(self, u: np.ndarray, out: Any) -> Any:
        return self.device.step(u)

    @rule(
        lengths=LENGTHS, seed=SEEDS, beyond=st.booleans(), at=st.integers(0, 3),
        end=st.sampled_from(["read", "read", "left", "reset", "no number", "source"]),
    )  # fmt: skip
    def streams(self, lengths: list[int], seed: int, beyond: bool, at: int, end: str) -> None:
        """Read to its end, or up to the chunk `at`: left there, reset there, or broken by what the caller gives."""
        if sum(lengths) == 0:
            return
        u = self._drawn(self._batch, sum(lengths), seed, beyond=beyond and self.clips)
        if refusal := self._refusal("stream"):
            with pytest.raises(refusal):
                self.device.stream([u])
            return
        at = min(at, len(lengths) - 1)
        if self.kind.shared and self.kind.late:
            # A server that waits for the rest of a run may refuse the reset that follows.
            end = "read"
        if end == "read":
            at = len(lengths)
        pipelined = self._pipelined
        stream = self.device.stream(self._chunks(u, lengths, at, end))
        counted, read = self.counts["steps"], 0
        broken: type[Exception] | None = {"no number": InputRangeError, "source": Unrelated}.get(end)
        with pytest.raises(broken) if broken else contextlib.nullcontext():
            for states in stream if end == "read" or broken else self._first(stream, at):
                steps, first = lengths[read], sum(lengths[:read])
                if not pipelined:
                    self._counts_drive(steps)
                self._went_on(u[:, first : first + steps], np.asarray(states))
                read += 1
        assert broken or read == at
        if not pipelined:
            assert read == at
        elif end == "read":
            self.counts["steps"] = counted + self._batch * (sum(lengths) + self.kind.late)
        elif at or broken:
            # Chunks may be under way.
            self._count_anew()
            self.lost = True
        if end == "reset" and at:
            self.device.reset(2)
            self._is_at_rest(2)
            with pytest.raises(StateLost):
                next(stream)
        stream.close()  # type: ignore[attr-defined]

    @precondition(lambda self: self.kind.poison is not None or self.kind.strikes is not None)
    @rule(steps=st.integers(1, 5), at=st.integers(0, 4), row=st.integers(0, 2), seed=SEEDS, streamed=st.booleans())
    def fails(self, steps: int, at: int, row: int, seed: int, streamed: bool) -> None:
        if self._refusal() or (streamed and self._refusal("stream")):
            return
        at, row, kind = min(at, steps - 1), min(row, self._batch - 1), self.kind
        u = self._drawn(self._batch, steps, seed)
        if kind.poison is not None:
            u[row, at, 0] = kind.poison
        before, faults = self.device.counters.steps, self.counts["faults"]
        came: list[int] = []
        if kind.strikes is not None:
            at, row, kind.strikes[0] = 0, 0, True
        self.seen.clear()
        with pytest.raises(kind.fault) as caught:
            self._drive_until_it_fails(u, came, streamed=streamed)
        if kind.strikes is not None:
            kind.strikes[0] = False
        self.lost = True
        if isinstance(caught.value, DeviceError):
            faults += 1
            self._harvest_is_right(caught.value, u, sum(came), at, row)
        # A second chunk may replay the first.
        most = self._batch * (2 * steps + self._replay + kind.late)
        assert 0 <= self.device.counters.steps - before <= most
        assert self.device.counters.faults == faults
        self._count_anew()

    def _drive_until_it_fails(self, u: np.ndarray, came: list[int], *, streamed: bool) -> None:
        if not streamed:
            self.device.run(u)
        half = u.shape[1] // 2
        for states in self.device.stream(self._chunks(u, [half, u.shape[1] - half])):
            first = sum(came)
            came.append(states.shape[1])
            self._matches(np.asarray(states), self._whole(u[:, : sum(came)])[:, self._steps + first :])

    # ---- frozen, given, turned ------------------------------------------------------------------

    @rule(number=st.integers(0, 5))
    def goes_back(self, number: int) -> None:
        """To one of the snapshots; where there are not so many, another is taken."""
        if number < len(self.snapshots):
            self._is_restored(*self.snapshots[number])
            return
        refusal = StateLost if self.lost else None
        if not self.kind.snapshot:
            refusal = NotSupported
        if refusal:
            with pytest.raises(refusal):
                self.device.snapshot()
            return
        state = self.device.snapshot()
        assert all(len(array) == self._batch for array in state.values())
        self.snapshots.append((state, {name: array.copy() for name, array in state.items()}, [*self.since]))

    def _is_restored(
        self, state: dict[str, np.ndarray], as_taken: dict[str, np.ndarray], since: list[Sequences]
    ) -> None:
        for name, array in state.items():
            assert np.array_equal(array, as_taken[name]), name
        given = {name: array.copy() for name, array in state.items()}
        if since[-1].setting != self.setting:
            with pytest.raises(ConfigurationError, match="another device"):
                self.device.restore(given)
            return
        self.device.restore(given)
        # It is the caller's again.
        for array in given.values():
            array.view(np.uint8)[...] = 0x55
        self.since, self.lost = [*since], False
        self.runs(steps=2, seed=0, beyond=False, form="array")

    @precondition(lambda self: self.kind.settable and self._steps and not self.lost)
    @rule(seed=SEEDS)
    def is_given_states(self, seed: int) -> None:
        """One step from where the sequences are, in another order, leaves them there."""
        order = [*reversed(range(self._batch)), 0]
        before = self.kind.states(self.since)[order, -1]
        u = self._drawn(self._batch, 1, seed)
        after = self.device.transition(u[order, 0], before)
        self._matches(np.asarray(after), self._whole(u)[order, -1])

    @precondition(lambda self: self.kind.change is not None)
    @rule(number=st.integers(0, 2))
    def is_changed(self, number: int) -> None:
        kind = self.kind
        # Weights that were drawn have another fingerprint than the same weights uploaded.
        choices = kind.settings[1:] if kind.keeps_setting else kind.settings
        setting = choices[number % len(choices)]
        assert kind.change is not None
        kind.change(self.device, setting)
        self.setting = setting
        if kind.is_reset_by_change:
            self._is_at_rest(self._batch)
        else:
            self.lost = True

    # ---- what is refused ------------------------------------------------------------------------

    @precondition(lambda self: not self.lost)
    @rule(seed=SEEDS, data=st.data())
    def is_given_what_it_cannot_take(self, seed: int, data: st.DataObject) -> None:
        call, expected = data.draw(st.sampled_from(self._wrong(self._drawn(self._batch, 2, seed))))
        if self._refusal() and expected is InputRangeError and call.func == self.device.run:
            expected = StateLost
        with pytest.raises(expected):
            call()

    def _wrong(self, u: np.ndarray) -> list[tuple[functools.partial[Any], type[Exception]]]:
        device, kind, call = self.device, self.kind, functools.partial
        no_number, infinite = u.astype(np.float64), u.astype(np.float64)
        no_number[-1, 1, 0], infinite[0, 0, -1] = np.nan, np.inf
        states = np.zeros((len(u), 2, device.spec.nodes), kind.dtype)
        read_only = states.copy()
        read_only.flags.writeable = False
        other = np.float32 if kind.dtype == "float64" else np.float64
        wrong: list[tuple[functools.partial[Any], type[Exception]]] = [
            (call(device.run, np.concatenate([u, u[..., :1]], 2)), ShapeError),
            (call(device.run, np.concatenate([u, u[:1]])), ShapeError),
            (call(device.run, u[:, :, :, None]), ShapeError),
            (call(device.run, u[0, 0]), ShapeError),
            (call(device.run, u * 1j), ShapeError),
            (call(device.run, u.astype(str)), ShapeError),
            (call(device.run, no_number), InputRangeError),
            (call(device.run, infinite), InputRangeError),
            (call(device.step, u), ShapeError),
            (call(device.step, u[0, 0]), ShapeError),
            (call(device.run, u, states[:, :1]), ShapeError),
            (call(device.run, u, states.astype(other)), ShapeError),
            (call(device.run, u, read_only), ShapeError),
            *((call(device.reset, cast(Any, batch)), ShapeError) for batch in (0, -1, 1.5, True, "two")),
            (call(device.set, nonsense=1.0), NotSupported),
            (call(device.get, "nonsense"), NotSupported),
        ]
        if kind.settable:
            wrong += [
                (call(device.transition, u, states[:, 0]), ShapeError),
                (call(device.transition, u[:, 0], states[:, 0, :-1]), ShapeError),
                (call(device.transition, u[:, 0], np.full_like(states[:, 0], np.nan)), InputRangeError),
            ]
        else:
            wrong.append((call(device.transition, u[:, 0], states[:, 0]), NotSupported))
        if kind.change is not None and not kind.is_reset_by_change:
            wrong += [
                (call(device.set, gain=cast(Any, value)), InputRangeError) for value in (np.nan, 99.0, "much", True)
            ]
        if not kind.snapshot:
            wrong.append((call(device.restore, {}), NotSupported))
            return wrong
        wrong.append((call(device.restore, {}), ConfigurationError))
        for state, _, _ in self.snapshots[-1:]:
            foreign = {**state, "contract.device": state["contract.device"] ^ 1}
            shorter = {**state, "contract.device": state["contract.device"][:-1]}
            wrong += [(call(device.restore, foreign), ConfigurationError), (call(device.restore, shorter), Exception)]
        return wrong

    # ---- what must hold always ------------------------------------------------------------------

    @invariant()
    def adds_up(self) -> None:
        device = self.device
        counters = {name: getattr(device.counters, name) for name in self.counts}
        assert counters == self.counts
        assert (device.state_lost is not None) == self.lost
        assert device.batch == self._batch
        if not self.lost:
            assert device.steps_driven == self._steps
            assert device.at_rest == (self._steps == 0)
        for array, as_returned in self.returned:
            assert np.array_equal(array, as_returned)

    def teardown(self) -> None:
        if hasattr(self, "device"):
            self.device.close()
        self.observing.close()

    @rule(closed=st.booleans())
    def is_opened_again(self, closed: bool) -> None:
        """What is open stays as it is; what was closed does nothing until then."""
        device = self.device
        if not closed:
            assert device.open() is device
            return
        u = self._drawn(1, 1, 0)
        device.close()
        device.close()
        assert not device.is_open
        for call in (
            functools.partial(device.run, u),
            functools.partial(device.step, u[:, 0]),
            functools.partial(device.stream, [u]),
            functools.partial(device.reset, 1),
            device.snapshot,
        ):
            with pytest.raises(NotOpen):
                call()
        self._opens()

    # ---- how ------------------------------------------------------------------------------------

    @property
    def _batch(self) -> int:
        return len(self.since[-1].u)

    @property
    def _steps(self) -> int:
        return self.since[-1].u.shape[1]

    @property
    def _in_turn(self) -> bool:
        return self.kind.most is not None and self._batch > self.kind.most

    @property
    def _pipelined(self) -> bool:
        return self.kind.streams and not self._in_turn and self.kind.continuity != "replayed"

    @property
    def _replay(self) -> int:
        return min(self._steps, self.kind.memory) if self.kind.continuity == "replayed" else 0

    def _is_at_rest(self, batch: int) -> None:
        mask = self.kind.mask
        width = self.kind.inputs if mask is None else mask.nodes
        self.since.append(Sequences(np.empty((batch, 0, width), self.kind.dtype), self.setting))
        self.lost = False

    def _drawn(self, batch: int, steps: int, seed: int, *, beyond: bool = False) -> np.ndarray:
        kind = self.kind
        if kind.draw is not None:
            return kind.draw(batch, self._steps, steps).copy()
        u = np.random.default_rng(seed).uniform(kind.low, kind.high, (batch, steps, kind.inputs))
        return (u * BEYOND if beyond and kind.limits else u).astype(kind.dtype)

    def _limits(self) -> tuple[Any, Any]:
        dtype = np.dtype(self.kind.dtype).type
        low, high = self.kind.limits or (-np.inf, np.inf)
        return dtype(low), dtype(high)

    def _out_of_range(self, u: np.ndarray) -> type[Exception] | None:
        low, high = self._limits()
        inner = self.kind.inner(u)
        if self.clips or not ((inner < low) | (inner > high)).any():
            return None
        return InputRangeError

    def _refusal(self, call: str = "run") -> type[Exception] | None:
        """What the contract says of a drive that begins now."""
        continuity = self.kind.continuity
        not_frozen = continuity == "held" and self._in_turn and not self.kind.snapshot
        if self.lost or (self._steps and (continuity == "free_running" or not_frozen)):
            return StateLost
        if call == "stream" and (
            not_frozen or (continuity == "free_running" and (self._in_turn or not self.kind.streams))
        ):
            return NotSupported
        return None

    def _chunks(self, u: np.ndarray, lengths: list[int], at: int = 0, end: str = "") -> Iterator[np.ndarray]:
        """The chunks of `u` in one buffer, which is used again for each. `end`, at one of them: see `streams`."""
        buffer, first = np.empty_like(u), 0
        for number, steps in enumerate(lengths):
            if end == "source" and number == at:
                raise Unrelated
            chunk = buffer[:, : max(1, steps)] if end == "no number" and number == at else buffer[:, :steps]
            chunk[...] = np.nan
            if not (end == "no number" and number == at):
                chunk[...] = u[:, first : first + steps]
            yield chunk
            first += steps

    @staticmethod
    def _first(stream: Iterator[Any], number: int) -> Iterator[Any]:
        for _ in range(number):
            yield next(stream)

    def _whole(self, u: np.ndarray) -> np.ndarray:
        """One run from rest with the inputs so far and `u`."""
        last = self.since[-1]
        inner = self.kind.inner(u).clip(*self._limits())
        return self.kind.states([*self.since[:-1], last._replace(u=np.concatenate([last.u, inner], 1))])

    def _matches(self, states: np.ndarray, expected: np.ndarray) -> None:
        assert states.dtype == self.kind.dtype
        assert states.shape == expected.shape
        np.testing.assert_allclose(states, expected, rtol=self.kind.tolerance, atol=self.kind.tolerance)

    def _went_on(self, u: np.ndarray, states: np.ndarray) -> None:
        """The states are those of the whole, and the sequences are so much farther."""
        steps, last = u.shape[1], self.since[-1]
        inner = self.kind.inner(u)
        low, high = self._limits()
        if self.clips:
            self.counts["clipped"] += int(((inner < low) | (inner > high)).sum())
        self.since[-1] = last._replace(u=np.concatenate([last.u, inner.clip(low, high)], 1))
        assert states.shape == (*u.shape[:2], self.device.spec.nodes)
        if steps:
            self._matches(states, self.kind.states(self.since)[:, -steps:])
            inputs, observed = self.seen[-1]
            assert np.array_equal(inputs, u)
            assert observed is not None
            assert np.array_equal(observed, states)
        self.returned = [*self.returned[-3:], (states, states.copy())]

    def _counts_drive(self, steps: int) -> None:
        if steps:
            self.counts["steps"] += self._batch * (steps + self._replay + self.kind.late)

    def _count_anew(self) -> None:
        self.counts = {name: getattr(self.device.counters, name) for name in self.counts}

    def _harvest_is_right(self, fault: DeviceError, u: np.ndarray, came: int, at: int, row: int) -> None:
        """What a fault brings with it is true, and is what the observers were told."""
        states = fault.states
        if states is None:
            assert fault.steps_done == 0
            return
        if self._in_turn:
            assert fault.steps_done == 0
            expected = self._whole(u[:, : came + states.shape[1]])[:, self._steps + came :]
            there = ~np.isnan(states)
            assert there[:row].all()
            self._matches(np.where(there, states, expected.astype(states.dtype)), expected)
            return
        done = states.shape[1]
        assert done == fault.steps_done
        if self.kind.keeps:
            assert came + done == max(0, at - self.kind.late)
        assert came + done <= at
        self._matches(states, self._whole(u[:, : came + done])[:, self._steps + came :])
        if done:
            inputs, observed = self.seen[-1]
            assert np.array_equal(inputs, u[:, came : came + done])
            assert observed is not None
            assert np.array_equal(observed, states)


def search(kind: Kind, examples: int, calls: int) -> None:
    """Sequences of so many calls, always the same ones."""
    chosen = settings(
        max_examples=max(2, examples // kind.cost),
        stateful_step_count=calls,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(cast(Any, lambda: Contract(kind)), settings=chosen)


@pytest.mark.parametrize("name", KINDS)
def test_states_are_those_of_one_run_from_rest(name: str, tmp_path: Path) -> None:
    with KINDS[name](tmp_path) as kind:
        search(kind, 12, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_long_sequences_of_calls(name: str, tmp_path: Path) -> None:
    with KINDS[name](tmp_path) as kind:
        search(kind, 20, 40)
