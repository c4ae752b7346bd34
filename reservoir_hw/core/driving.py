"""How a reservoir is driven: continuity, sequences in turn, replays, and what a fault leaves behind.

A `Reservoir` checks what callers give; a `Driving` carries it out by the hooks of the backend and knows where the
sequences are.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.channels import Inputs
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    DeviceFault,
    InputRangeError,
    NotSupported,
    ReservoirError,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.spec import Counters, Latency, ReservoirSpec, ResetByIdle, ResetPolicy

Ask = Callable[[Any], Any]
"""Gets native inputs (batch, time, inputs) and returns what the device answers in the place of states."""


class Observer(Protocol):
    """What is told about every drive."""

    def was_reset(self, *, from_rest: bool) -> None:
        """New sequences begin: at rest, or where a restored snapshot was taken."""

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        """(batch, time, inputs) gave (batch, time, nodes) within so many seconds. The arrays are the caller's.

        `states` is None where the device answered with something else than its states.
        """


class Device(Protocol):
    """What driving needs of a reservoir: its declaration and the hooks of its backend."""

    counters: Counters
    latency: Latency
    reset_policy: ResetPolicy
    checks_states: bool

    @property
    def spec(self) -> ReservoirSpec:
        """What it declares to its callers."""
        ...

    @property
    def device_spec(self) -> ReservoirSpec:
        """What the device itself declares, behind the mask."""
        ...

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def streams(self) -> bool:
        """Whether the backend has a `_stream`."""
        ...

    def refuse_stopped(self) -> None:
        """Raise `DeviceFault` after an emergency stop."""

    def look_at_monitors(self) -> None:
        """Read the monitors that are due."""

    def _run(self, u: Any, out: Any) -> Any: ...
    def _reset(self, batch: int) -> None: ...
    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]: ...
    def _snapshot(self) -> dict[str, np.ndarray]: ...
    def _restore(self, state: Mapping[str, np.ndarray]) -> None: ...


class Driving:
    """Where the sequences of a reservoir are, and the one place through which every drive passes."""

    def __init__(self, device: Device) -> None:
        self.batch = 1
        self.steps = 0
        """Time steps since the last reset."""
        self.lost: str | None = None
        """Why a drive lost the state, or None; `lost_by_now` knows of pauses, too."""
        self.observers: list[Observer] = []
        self._device = device
        self._inputs: Inputs
        # Counts resets, restores and closings: a stream that began before one of them has ended.
        self._epoch = 0
        # The step since the reset with which the next answer begins, for messages.
        self._first = 0
        self._at_rest = False
        # When the last drive ended, or a snapshot was put back.
        self._held_since = 0.0
        self._held_for_s: float | None = None
        self._frozen: list[dict[str, np.ndarray] | None] = []
        self._history: Any = None

    def open(self, inputs: Inputs) -> None:
        """Begin with a device that is connected, or has another declaration since an upload."""
        self._inputs, self._held_for_s = inputs, self._device.spec.held_for_s

    def turn(self, knobs: str) -> None:
        """Knobs are turned: what was driven before does not go on, and streams that are being read end."""
        self._epoch += 1
        self._history = None
        self.lost = f"{knobs} was turned since the last reset"

    def close(self) -> None:
        """Forget the sequences; streams that are being read end."""
        self._epoch += 1
        self._frozen, self._history, self._held_for_s = [], None, None

    # ---- at rest --------------------------------------------------------------------------------

    def reset(self, batch: int) -> None:
        """Bring the device to rest for `batch` sequences."""
        self.batch, self.steps = batch, 0
        self._epoch += 1
        self._history = None
        self._frozen = [None] * len(self.groups(batch))
        self.lost = "the last reset failed"
        self._to_rest(min(batch, self._device.spec.max_batch or batch))
        self.lost = None
        for observer in self.observers:
            observer.was_reset(from_rest=True)

    def groups(self, batch: int) -> list[slice]:
        """The sequences that are driven together."""
        size = self._device.spec.max_batch or max(batch, 1)
        return [slice(first, min(first + size, batch)) for first in range(0, batch, size)]

    def _to_rest(self, batch: int) -> None:
        device = self._device
        try:
            device.refuse_stopped()
            device._reset(batch)
            if isinstance(device.reset_policy, ResetByIdle):
                time.sleep(device.reset_policy.settle_s)
            if (waveform := device.reset_policy.waveform(device.device_spec)) is not None:
                if not np.isfinite(waveform).all():
                    raise InputRangeError("the reset waveform is not finite everywhere: correct reset.values")
                played = self._inputs.to_native(np.repeat(waveform[None], batch, axis=0), "waveform")
                device._run(self._inputs.within_limits(played), None)
                device.counters.steps += batch * len(waveform)
        except DeviceError as fault:
            # States that a reset waveform or washout returned before the fault are not part of the harvest.
            fault.steps_done, fault.states = 0, None
            fault.add_note("this happened while the device was being brought to rest")
            raise
        self._at_rest = True

    # ---- drives ---------------------------------------------------------------------------------

    def check_continuation(self) -> None:
        """Raise `StateLost` where a drive could not go on from where the sequences are."""
        device, spec = self._device, self._device.spec
        if lost := self.lost_by_now():
            raise StateLost(f"{device.name}: {lost}; call reset() to start again, or restore() a snapshot")
        if self.steps == 0:
            return
        if spec.continuity == "free_running":
            why = "it went on while nobody drove it"
            if spec.latency_steps:
                why = f"it was driven {spec.latency_steps} steps further until its late answers were there"
            raise StateLost(
                f"{device.name} is free running: {why}. After reset() one run() or stream() is valid; put everything "
                "into that one"
            )
        if spec.continuity == "held" and len(self._frozen) > 1 and not spec.snapshot:
            raise StateLost(
                f"{device.name} drove {self.batch} sequences {spec.max_batch} at a time and cannot snapshot them, "
                "so it cannot go on with all of them: put each whole sequence into one run()"
            )

    def lost_by_now(self) -> str | None:
        """Why the device does not hold the state, or None."""
        if self.lost or self.steps == 0 or self._held_for_s is None:
            return self.lost
        paused = time.monotonic() - self._held_since
        if paused <= self._held_for_s:
            return None
        return f"nothing was driven for {paused:.3g} s, and it holds its state for {self._held_for_s:g} s (held_for_s)"

    def run(self, given: Any, u: Any, out: Any = None, ask: Ask | None = None) -> Any:
        """Drive the device with `u`, of which `given` is what the caller sees; returns states, or what `ask` returns.

        `out`, if given, may be filled. After any failure nothing goes on as if nothing had happened.
        """
        if not self.observers:
            return self._guarded(u, out, ask)
        inputs, started = arrays.as_numpy(given), time.perf_counter()
        try:
            answer = self._guarded(u, out, ask)
        except DeviceError as fault:
            self._tell_fault(inputs, fault, time.perf_counter() - started)
            raise
        self._tell(inputs, None if ask else arrays.as_numpy(answer), time.perf_counter() - started)
        return answer

    def _tell(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        for observer in self.observers:
            observer.was_driven(inputs, states, seconds)

    def _tell_fault(self, inputs: np.ndarray, fault: DeviceError, seconds: float) -> None:
        """Tell the observers what was harvested before a fault, if anything was."""
        if fault.states is not None and fault.states.shape[1]:
            self._tell(inputs[:, : fault.states.shape[1]], arrays.as_numpy(fault.states), seconds)

    def _guarded(self, u: Any, out: Any, ask: Ask | None) -> Any:
        self.lost = "the last run was interrupted"
        try:
            answer = self._drive(u, out, ask)
        except ReservoirError as error:
            self.lost = f"the last run failed ({type(error).__name__})"
            if isinstance(error, DeviceError):
                self._device.counters.faults += 1
                good = self.steps + error.steps_done
                self.lost += f", the last good step is {good - 1}" if good else ", before its first step"
            raise
        self.steps += u.shape[1]
        self._held_since = time.monotonic()
        self.lost = None
        return answer

    def _drive(self, u: Any, out: Any, ask: Ask | None) -> Any:
        answer = self._drive_group(0, u, out, ask) if len(self._frozen) == 1 else self._drive_in_turn(u, out)
        if self._device.spec.continuity == "replayed":
            kept = u if self._history is None else arrays.concatenate([self._history, u], 1)
            last = kept[:, -self._device.spec.memory_steps :]
            # A copy: the caller may use the buffer of the inputs again.
            self._history = last.clone() if arrays.is_tensor(last) else last.copy()
        return answer

    def _drive_in_turn(self, u: Any, out: Any) -> Any:
        spec, groups = self._device.spec, self.groups(self.batch)
        parts: list[Any] = []
        for index, rows in enumerate(groups):
            try:
                parts.append(self._drive_group(index, u[rows], None if out is None else out[rows], None))
            except DeviceError as fault:
                harvested = np.full((*u.shape[:2], spec.nodes), np.nan, spec.numpy_dtype)
                for done, part in zip(groups, parts, strict=False):
                    harvested[done] = arrays.like(part, harvested)
                if fault.states is not None:
                    harvested[rows, : fault.states.shape[1]] = arrays.like(fault.states, harvested)
                fault.add_note(
                    f"sequences {rows.start} to {rows.stop - 1} of {self.batch} were being driven; "
                    "`states` is (batch, time, nodes) with NaN where nothing was harvested"
                )
                fault.states, fault.steps_done = harvested, 0
                raise
        return arrays.concatenate(parts, 0)

    def _drive_group(self, index: int, u: Any, out: Any, ask: Ask | None) -> Any:
        device, spec = self._device, self._device.spec
        batch = u.shape[0]
        in_turn = len(self._frozen) > 1
        replay = 0
        if spec.continuity == "replayed":
            if not self._at_rest:
                self._to_rest(batch)
            if self._history is not None:
                replay = self._history.shape[1]
                u = arrays.concatenate([self._history[self.groups(self.batch)[index]], u], 1)
                out = None
        elif in_turn:
            frozen = self._frozen[index]
            if frozen is not None:
                device._restore(frozen)
            elif not self._at_rest:
                self._to_rest(batch)
        self._at_rest, self._first = False, self.steps - replay
        started = time.perf_counter()
        try:
            device.refuse_stopped()
            device.look_at_monitors()
            answer = self.checked(device._run(u, out), u.shape[:2])[:, replay:] if ask is None else ask(u)
            # What a call returns because it was stopped is no state.
            device.refuse_stopped()
        except DeviceError as fault:
            device.counters.steps += batch * int(fault.steps_done)
            fault.steps_done = max(0, int(fault.steps_done) - replay)
            if fault.states is not None and getattr(fault.states, "ndim", None) != 3:
                fault.add_note("the states in this fault were dropped: they are not an array (batch, time, nodes)")
                fault.steps_done, fault.states = 0, None
            fault.states = None if fault.states is None else fault.states[:, replay : replay + fault.steps_done]
            raise
        device.latency.record(time.perf_counter() - started)
        device.counters.steps += batch * u.shape[1]
        if in_turn and spec.snapshot and spec.continuity == "held":
            self._frozen[index] = device._snapshot()
        return answer

    def refuse_several_drives(self, purpose: str) -> None:
        """Raise `NotSupported` where one call takes several drives of the device."""
        spec = self._device.spec
        if spec.continuity == "replayed" or len(self._frozen) > 1:
            raise NotSupported(
                f"{self._device.name} needs several drives for one run (replayed, or {self.batch} sequences on a "
                f"device for {spec.max_batch}), which {purpose} does not serve: use run()"
            )

    # ---- states that came back ------------------------------------------------------------------

    def checked(self, states: Any, driven: Any) -> Any:
        """What the device returned for (batch, time), refused if it cannot be true."""
        device, spec = self._device, self._device.spec
        states = states if arrays.is_tensor(states) else arrays.as_numpy(states)
        shape, expected = tuple(getattr(states, "shape", ())), (*driven, spec.nodes)
        if shape != expected:
            raise DeviceFault(f"{device.name} returned states {shape} instead of {expected}")
        if not arrays.is_tensor(states) and states.dtype != spec.numpy_dtype:
            if states.dtype.kind not in "fiub":
                raise DeviceFault(f"{device.name} returned {states.dtype} states; they must be real numbers")
            states = states.astype(spec.numpy_dtype)
        if not device.checks_states:
            self.refuse_not_finite(states)
        return states

    def refuse_not_finite(self, states: Any, first: int = 0) -> None:
        """Raise `DeviceFault` if a state (batch, time, nodes) is no number: NaN, infinite, or 9e37 and more.

        `first` is the number of its first step in this drive; the message counts from the reset. The fault carries the
        steps of `states` before it.
        """
        if arrays.all_finite(states, arrays.NO_NUMBER):
            return
        bad = arrays.not_finite(states, arrays.NO_NUMBER)
        step = int(bad.any(axis=(0, 2)).argmax())
        sequence, node = arrays.first_true(bad[:, step])
        simulated = self._device.spec.identity.simulated
        cause = "a simulation that diverges" if simulated else "a broken channel, or a failed read-out"
        value = float(states[sequence, step, node])
        what = f"{value:g}" if np.isfinite(value) else "not finite"
        if np.isfinite(value) and not simulated:
            cause = 'instruments say "over range" by 9.9e37: set a wider range, or drive the device less'
        raise DeviceFault(
            f"{self._device.name} returned a state that is {what} (sequence {sequence}, step "
            f"{self._first + first + step}, node {node}): {cause}",
            steps_done=step,
            states=states[:, :step],
        )

    # ---- streams --------------------------------------------------------------------------------

    def stream(self, chunks: Iterable[Any], run: Callable[[Any], Any]) -> Iterator[Any]:
        """The states of each chunk; chunk by chunk through `run` where the device has no pipelined stream."""
        self.check_continuation()
        device, spec = self._device, self._device.spec
        in_turn = len(self._frozen) > 1
        if spec.continuity == "free_running" and (in_turn or not device.streams):
            raise NotSupported(
                f"{device.name} is free running and cannot be fed chunk by chunk without a gap: drive it with one run()"
            )
        if spec.continuity == "held" and in_turn and not spec.snapshot:
            raise NotSupported(
                f"{device.name} drives {self.batch} sequences {spec.max_batch} at a time and cannot snapshot them, "
                "so it cannot be fed chunk by chunk: drive it with one run()"
            )
        if spec.continuity == "replayed" or in_turn or not device.streams:
            return self._run_each(chunks, run, self._epoch)
        return self._streaming(chunks, self._epoch)

    def _check_epoch(self, epoch: int) -> None:
        if self._epoch != epoch:
            raise StateLost(
                "this stream has ended: the reservoir was reset, restored, turned or closed while it was being read"
            )

    def _run_each(self, chunks: Iterable[Any], run: Callable[[Any], Any], epoch: int) -> Iterator[Any]:
        for chunk in chunks:
            self._check_epoch(epoch)
            yield run(chunk)

    def _streaming(self, chunks: Iterable[Any], epoch: int) -> Iterator[Any]:
        device, given = self._device, deque[tuple[Any, int, Any]]()

        def prepared() -> Iterator[Any]:
            for chunk in chunks:
                shaped = self._inputs.shaped(chunk, self.batch)
                native = self._inputs.for_device(shaped)
                if arrays.share_memory(native, chunk):
                    # The device may read ahead, and the caller may use the buffer of the chunk again.
                    native = native.clone() if arrays.is_tensor(native) else native.copy()
                given.append((chunk, native.shape[1], arrays.as_numpy(shaped).copy() if self.observers else None))
                # From here on the device may have been driven, even if the stream fails.
                self.steps += native.shape[1]
                yield native

        self._check_epoch(epoch)
        self.check_continuation()
        self.lost = "the last stream was not read to its end"
        self._at_rest, self._first = False, self.steps
        started = time.perf_counter()
        try:
            for states in device._stream(prepared()):
                device.refuse_stopped()
                self._check_epoch(epoch)
                chunk, steps, inputs = given.popleft()
                seconds = time.perf_counter() - started
                device.latency.record(seconds)
                device.counters.steps += self.batch * steps
                self._held_since = time.monotonic()
                states = self.checked(states, (self.batch, steps))
                self._first += steps
                if inputs is not None:
                    self._tell(inputs, arrays.as_numpy(states), seconds)
                yield arrays.like(states, chunk)
                self._check_epoch(epoch)
                started = time.perf_counter()
            if given:
                raise DeviceFault(f"{device.name} returned no states for the last {len(given)} chunks")
        except DeviceError as fault:
            device.counters.faults += 1
            if given and given[0][2] is not None:
                self._tell_fault(given[0][2], fault, time.perf_counter() - started)
            raise
        self.lost = None

    # ---- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, np.ndarray]:
        """Where the sequences are, as named arrays; the first axis of each is the sequence."""
        device, spec = self._device, self._device.spec
        if lost := self.lost_by_now():
            raise StateLost(f"{device.name}: {lost}; call reset() before taking a snapshot")
        state: dict[str, np.ndarray] = {
            "contract.steps": np.full(self.batch, self.steps, dtype=np.int64),
            "contract.device": _as_rows(spec.identity.fingerprint, self.batch),
        }
        if spec.continuity == "replayed":
            history = self._history
            if history is None:
                history = np.empty((self.batch, 0, device.device_spec.inputs), spec.numpy_dtype)
            state["contract.history"] = np.array(arrays.as_numpy(history))
            parts: list[dict[str, np.ndarray]] = [{}]
        elif len(self._frozen) == 1:
            parts = [device._snapshot()]
        else:
            parts = [self._frozen_state(index) for index in range(len(self._frozen))]
        for name in parts[0]:
            state[f"device.{name}"] = np.concatenate([np.asarray(part[name]) for part in parts])
        for name, array in state.items():
            if array.ndim < 1 or array.shape[0] != self.batch:
                raise ConfigurationError(
                    f"{type(device).__name__}._snapshot: {name!r} has shape {array.shape}; "
                    f"the first axis must be the {self.batch} sequences"
                )
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a snapshot."""
        batch = len(state.get("contract.steps", ()))
        self._check_snapshot(state, batch)
        # Copies, so that later changes by the caller do not reach the device.
        device = {
            name.removeprefix("device."): np.array(array) for name, array in state.items() if name.startswith("device.")
        }
        history = state.get("contract.history")
        replayed = None if history is None else self._inputs.to_native(np.array(history), "history")
        groups = self.groups(batch)
        if len(groups) == 1 and history is None:
            try:
                self._device._restore(device)
            except (ConfigurationError, ShapeError):
                raise
            except BaseException:
                self.lost = "the last restore failed"
                raise
        self.batch = batch
        self._epoch += 1
        self._frozen = [{name: array[rows] for name, array in device.items()} for rows in groups]
        self._history = replayed
        self.steps = int(np.max(state["contract.steps"]))
        self._at_rest, self._held_since = False, time.monotonic()
        self.lost = None
        for observer in self.observers:
            observer.was_reset(from_rest=False)

    def _check_snapshot(self, state: Mapping[str, np.ndarray], batch: int) -> None:
        device, inputs = self._device, self._device.device_spec.inputs
        if "contract.steps" not in state:
            raise ConfigurationError("restore needs a state that came from snapshot(): 'contract.steps' is missing")
        if not np.array_equal(state.get("contract.device", ()), _as_rows(device.spec.identity.fingerprint, batch)):
            raise ConfigurationError(
                f"restore: the snapshot was taken on another device than this {device.name}, or with other weights"
            )
        for name, array in state.items():
            if np.ndim(array) < 1 or len(array) != batch:
                raise ShapeError(f"restore: {name!r} has shape {np.shape(array)}, not one row for each of {batch}")
        history = state.get("contract.history")
        if (device.spec.continuity == "replayed") != (history is not None):
            raise ConfigurationError("restore: the snapshot was taken on a device of another continuity")
        if history is not None and (np.ndim(history) != 3 or np.shape(history)[2] != inputs):
            raise ShapeError(f"restore: 'contract.history' has shape {np.shape(history)} for {inputs} inputs")

    def _frozen_state(self, index: int) -> dict[str, np.ndarray]:
        """The state of one group; a group that was never driven is at rest."""
        state = self._frozen[index]
        if state is None:
            rows = self.groups(self.batch)[index]
            self._to_rest(rows.stop - rows.start)
            self._at_rest = False
            state = self._frozen[index] = self._device._snapshot()
        return state


def _as_rows(fingerprint: str, batch: int) -> np.ndarray:
    """A fingerprint as bytes, the same for each sequence: (batch, 32) uint8."""
    digest = hashlib.sha256(fingerprint.encode()).digest()
    return np.tile(np.frombuffer(digest, np.uint8), (batch, 1))


def reset_residual(
    reset: Callable[[], None], run: Callable[[np.ndarray], Any], spec: ReservoirSpec, steps: int
) -> float:
    """How far two resets are apart: RMS difference of the first response to the same probe of `steps` steps.

    Relative to the standard deviation of the probe's whole response. Between the two resets the device is
    driven with something else. The noise of the device is part of the figure.
    """
    low, high = spec.input_range or (-1.0, 1.0)
    responses = []
    for name in ("probe", "disturbance", "probe"):
        reset()
        responses.append(np.asarray(run(generator(0, name).uniform(low, high, (1, steps, spec.inputs)))))
    reset()
    first, _, second = responses
    spread = float(first.std())
    difference = float(np.sqrt(np.mean((first[:, 0] - second[:, 0]) ** 2)))
    return difference / spread if spread else difference
