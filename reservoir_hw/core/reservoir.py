"""The contract: one class that simulations, boards and benches all implement."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, Self

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.arrays import Array
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    DeviceFault,
    InputRangeError,
    NotOpen,
    NotSupported,
    ReservoirError,
    ShapeError,
    StateLost,
    text_of,
)
from reservoir_hw.core.hostlock import HostLock
from reservoir_hw.core.reset import ResetByCommand, ResetByIdle, ResetPolicy
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.signal import Mask, MaskConfig
from reservoir_hw.core.spec import Counters, Identity, Latency, ReservoirSpec

OutOfRange = Literal["error", "clip"]


class Observer(Protocol):
    """What is told about every drive."""

    def was_reset(self, *, from_rest: bool) -> None:
        """New sequences begin: at rest, or where a restored snapshot was taken."""

    def was_driven(self, inputs: np.ndarray, states: np.ndarray, seconds: float) -> None:
        """(batch, time, inputs) gave (batch, time, nodes) within so many seconds. The arrays are the caller's."""


class Reservoir(ABC):
    """A driven dynamical system that nobody trains.

    Use it as a context manager, or call `open()` and `close()`. Public methods validate once per call and
    hand over to hooks. A backend writes `_run`; `_reset` too if its device holds state; the other hooks
    where the device has the capability.

    Parameters
    ----------
    spec
        What the device declares. A device that tells it by itself returns it from `_open` instead.
    reset
        How the device is brought to rest; by default it has a command of its own (`_reset`).
    out_of_range
        "error" refuses inputs outside `spec.input_range`; "clip" clips them and counts each value.
    resource
        What only one process may use at a time (an address, a port). None: nothing to protect.
    """

    native: Literal["numpy", "torch"] = "numpy"
    device: str = "cpu"
    checks_states: bool = False
    """Whether `_run` and `_stream` themselves refuse states that are not finite, by `_refuse_not_finite`."""
    vouches: bool = True
    """Whether somebody looks for states that are not finite: this class, the backend, or the device as it says."""
    observer: Observer | None = None
    """Is told what crosses the contract, for instance a recorder."""

    def __init__(
        self,
        spec: ReservoirSpec | None = None,
        *,
        reset: ResetPolicy | None = None,
        out_of_range: OutOfRange = "error",
        resource: str | None = None,
    ) -> None:
        self.counters = Counters()
        self.latency = Latency()
        self.reset_policy: ResetPolicy = reset or ResetByCommand()
        self.reset_duration_s: float | None = None
        self.reset_residual: float | None = None
        self.closing = False
        """Whether the device is being brought to its safe state, which nothing should interrupt."""
        self.unsafe: str | None = None
        """Why the device is not in its safe state: what the last `close` failed with, until one succeeds."""
        self._given_spec = spec
        self._out_of_range = out_of_range
        self._resource = resource
        self._lock: HostLock | None = None
        self._connected = False
        self._spec: ReservoirSpec | None = None
        self._device_spec: ReservoirSpec | None = None
        self._mask_config: tuple[MaskConfig, int, int] | None = None
        self._mask: Mask | None = None
        self._batch = 1
        self._steps = 0
        # Counts resets, restores and closings: a stream that began before one of them has ended.
        self._epoch = 0
        self._fresh = False
        self._half_programmed = False
        self._lost: str | None = None
        self._frozen: list[dict[str, np.ndarray] | None] = []
        self._history: Any = None

    # ---- for the caller -------------------------------------------------------------------------

    @property
    def spec(self) -> ReservoirSpec:
        """What the device declares. Raises `NotOpen` before `open()`."""
        if self._spec is None:
            raise NotOpen(f"{type(self).__name__} is not open: use it in a `with` block or call open() first")
        return self._spec

    def spread_inputs(self, mask: MaskConfig, channels: int, *, seed: int = 0) -> None:
        """Take `channels` inputs and let a seeded matrix spread them over the inputs that the device has.

        To be called before `open()`. The spec then declares the channels; the limits of the device's own inputs
        are checked behind the mask. `seed` draws a mask that has no seed of its own.
        """
        if self.is_open:
            raise ConfigurationError("spread_inputs must be called before open()")
        self._mask_config = (mask, channels, seed)

    @property
    def state_lost(self) -> str | None:
        """Why the next `run` would raise `StateLost` until `reset` or `restore`, or None."""
        return self._lost

    @property
    def at_rest(self) -> bool:
        """Whether nothing was driven since the last reset."""
        return self._steps == 0

    @property
    def streams(self) -> bool:
        """Whether `stream` drives chunks without a pause between them (the backend has a `_stream`)."""
        return self._has("_stream")

    @property
    def is_open(self) -> bool:
        """Whether the device is connected."""
        return self._spec is not None

    def open(self) -> Self:
        """Take the device and bring it to rest for one sequence. Idempotent.

        Raises `DeviceBusy` naming the owner if another process has it, and the device's own errors.
        """
        if self.is_open:
            return self
        if self._resource is not None:
            self._lock = HostLock(self._resource)
            self._lock.acquire()
        try:
            self.counters = Counters()
            self.latency = Latency()
            self._half_programmed = False
            self._connected = True
            spec = self._open() or self._given_spec
            if spec is None:
                raise ConfigurationError(
                    f"{type(self).__name__} has no spec: pass one to Reservoir.__init__ or return one from _open"
                )
            self._accept_spec(spec)
            self.reset(1)
            if self.reset_policy.probe_steps:
                self.reset_residual = self._measure_reset(self.reset_policy.probe_steps)
        except BaseException as error:
            try:
                self.close()
            except Exception as closing:
                error.add_note(f"closing the device failed too: {type(closing).__name__}: {closing}")
            raise
        return self

    def close(self) -> None:
        """Leave the device in its safe state and give it back. Idempotent."""
        self.closing = True
        try:
            if self._connected:
                self._close()
                self.unsafe = None
        except BaseException as error:
            self.unsafe = f"{type(error).__name__}: {text_of(error)}"
            raise
        finally:
            self._connected = False
            self._epoch += 1
            self._spec = None
            self._frozen = []
            self._history = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None
            self.closing = False

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        # What went wrong first is what the caller must learn.
        try:
            self.close()
        except Exception as closing:
            error.add_note(f"closing the device failed too: {type(closing).__name__}: {closing}")

    def reset(self, batch: int = 1) -> None:
        """Bring the device to its rest state, for `batch` sequences side by side."""
        spec = self.spec
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
            raise ShapeError(f"reset needs a whole number of sequences, at least 1, not {batch!r}")
        self._refuse_half_programmed()
        self._batch = int(batch)
        self._steps = 0
        self._epoch += 1
        self._history = None
        self._frozen = [None] * len(self._groups(self._batch))
        self._lost = "the last reset failed"
        started = time.perf_counter()
        self._to_rest(min(self._batch, spec.max_batch or self._batch))
        self.reset_duration_s = time.perf_counter() - started
        self._lost = None
        if self.observer is not None:
            self.observer.was_reset(from_rest=True)

    def step(self, u: Array) -> Array:
        """One step of a closed loop: inputs (batch, inputs) -> states (batch, nodes)."""
        if getattr(u, "ndim", None) != 2:
            u = u if arrays.is_tensor(u) else np.asarray(u)
            if u.ndim != 2:
                raise ShapeError(f"step takes inputs (batch, inputs), not {tuple(u.shape)}")
        return self.run(u[:, None, :])[:, 0]

    def run(self, u: Array, out: Array | None = None) -> Array:
        """Drive the reservoir with `u` (batch, time, inputs); return the states (batch, time, nodes).

        Row t of the states is the response after u[:, t] was applied for one full period. The state goes
        on from the last call as `spec.continuity` says. `out`, if given, is filled and returned.

        Raises
        ------
        NotOpen, ShapeError, InputRangeError, StateLost
            Before anything is sent.
        DeviceError
            With `steps_done` and `states`, what was harvested before the fault.
        """
        native = self._shaped(u)
        self._check_out(out, native.shape)
        self._check_continuation()
        given, native = native, self._in_range(native)
        if native.shape[1] == 0:
            empty = native.new_empty if arrays.is_tensor(native) else np.empty
            states = empty((*native.shape[:2], self.spec.nodes), dtype=native.dtype)
        else:
            direct = self._is_native(out) and self.spec.continuity != "replayed" and not _overlap(out, native)
            states = self._observed(given, native, out if direct else None)
        if out is None:
            return arrays.like(states, u)
        if states is not out:
            out[...] = arrays.like(states, out)
        return out

    def stream(self, chunks: Iterable[Array]) -> Iterator[Array]:
        """A run over chunks (batch, time, inputs), with bounded memory; yields the states of each.

        The state rules are checked at once, the chunks as they are taken.
        """
        self._check_continuation()
        spec, in_turn = self.spec, len(self._groups(self._batch)) > 1
        if spec.continuity == "free_running" and (in_turn or not self.streams):
            raise NotSupported(
                f"{self._name()} is free running and cannot be fed chunk by chunk without a gap: "
                "drive it with one run()"
            )
        if spec.continuity == "held" and in_turn and not spec.snapshot:
            raise NotSupported(
                f"{self._name()} drives {self._batch} sequences {spec.max_batch} at a time and cannot snapshot them, "
                "so it cannot be fed chunk by chunk: drive it with one run()"
            )
        if spec.continuity == "replayed" or in_turn or not self.streams:
            return self._run_each(chunks, self._epoch)
        return self._streaming(chunks, self._epoch)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The whole state as named arrays (copies); the first axis of each is the sequence."""
        spec = self.spec
        self._require(spec.snapshot, "snapshot")
        if self._lost:
            raise StateLost(f"{self._name()}: {self._lost}; call reset() before taking a snapshot")
        state: dict[str, np.ndarray] = {
            "contract.steps": np.full(self._batch, self._steps, dtype=np.int64),
            "contract.device": self._fingerprint(self._batch),
        }
        if spec.continuity == "replayed":
            state["contract.history"] = self._history_array()
        groups = self._groups(self._batch)
        if spec.continuity == "replayed":
            parts: list[dict[str, np.ndarray]] = [{}]
        elif len(groups) == 1:
            parts = [self._snapshot()]
        else:
            parts = [self._frozen_state(index) for index in range(len(groups))]
        for name in parts[0]:
            state[f"device.{name}"] = np.concatenate([np.asarray(part[name]) for part in parts])
        for name, array in state.items():
            if array.ndim < 1 or array.shape[0] != self._batch:
                raise ConfigurationError(
                    f"{type(self).__name__}._snapshot: {name!r} has shape {array.shape}; "
                    f"the first axis must be the {self._batch} sequences"
                )
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `snapshot()`; the number of sequences becomes that of the snapshot."""
        spec = self.spec
        self._require(spec.snapshot, "snapshot")
        self._refuse_half_programmed()
        if "contract.steps" not in state:
            raise ConfigurationError("restore needs a state that came from snapshot(): 'contract.steps' is missing")
        batch = len(state["contract.steps"])
        if not np.array_equal(state.get("contract.device", ()), self._fingerprint(batch)):
            raise ConfigurationError(
                f"restore: the snapshot was taken on another device than this {self._name()}, or with other weights"
            )
        for name, array in state.items():
            if np.ndim(array) < 1 or len(array) != batch:
                raise ShapeError(f"restore: {name!r} has shape {np.shape(array)}, not one row for each of {batch}")
        history = state.get("contract.history")
        if (spec.continuity == "replayed") != (history is not None):
            raise ConfigurationError("restore: the snapshot was taken on a device of another continuity")
        if history is not None and (np.ndim(history) != 3 or np.shape(history)[2] != self._device().inputs):
            raise ShapeError(
                f"restore: 'contract.history' has shape {np.shape(history)} for {self._device().inputs} inputs"
            )
        # Copies: what the caller does with the arrays afterwards is no business of the device.
        device = {
            name.removeprefix("device."): np.array(array) for name, array in state.items() if name.startswith("device.")
        }
        replayed = None if history is None else self._to_native(np.array(history), "history")
        groups = self._groups(batch)
        if len(groups) == 1 and history is None:
            try:
                self._restore(device)
            except (ConfigurationError, ShapeError):
                raise
            except BaseException:
                self._lost = "the last restore failed"
                raise
        self._batch = batch
        self._epoch += 1
        self._frozen = [{name: array[rows] for name, array in device.items()} for rows in groups]
        self._history = replayed
        self._steps = int(np.max(state["contract.steps"]))
        self._fresh = False
        self._lost = None
        if self.observer is not None:
            self.observer.was_reset(from_rest=False)

    def transition(self, u: Array, states: Array) -> Array:
        """One step from *given* node states: (batch, inputs), (batch, nodes) -> (batch, nodes).

        The reservoir's own state stays as it is.
        """
        spec = self.spec
        self._require(spec.settable, "settable")
        native = self._to_native(u, "inputs")
        given = self._to_native(states, "states")
        if native.ndim != 2 or native.shape[1] != spec.inputs:
            raise ShapeError(f"transition takes inputs (batch, {spec.inputs}), not {tuple(native.shape)}")
        if tuple(given.shape) != (native.shape[0], spec.nodes):
            raise ShapeError(f"transition takes states ({native.shape[0]}, {spec.nodes}), not {tuple(given.shape)}")
        if not arrays.all_finite(given):
            raise InputRangeError("transition: the given states are not all finite")
        driven = self._in_range(native[:, None])[:, 0]
        rows = self._groups(native.shape[0]) or [slice(0, 0)]
        result = arrays.concatenate([self._transition(driven[part], given[part]) for part in rows], 0)
        return arrays.like(self._checked(result[:, None], (native.shape[0], 1))[:, 0], u)

    def upload(self, weights: Mapping[str, np.ndarray]) -> None:
        """Program the device with new weights; it is reset, and its fingerprint changes."""
        self._require(self.spec.programmable, "programmable")
        try:
            spec = self._upload(weights) or self._device()
        except (ConfigurationError, ShapeError):
            # Refused for what they are: these weights never reached the device.
            raise
        except BaseException:
            self._lost, self._half_programmed = "the last upload failed", True
            raise
        self._half_programmed = True
        self._accept_spec(spec)
        if self._given_spec is not None:
            # It keeps its weights when it is closed; whoever opens it next must learn which.
            self._given_spec = spec
        self._half_programmed = False
        self.reset(self._batch)

    def provenance(self) -> dict[str, Any]:
        """What must be known to believe the states: identity, reset, counters, latency, settings."""
        spec = self.spec
        return {
            **self._settings(),
            "identity": spec.identity.model_dump(),
            "spec": spec.model_dump(mode="json", exclude={"identity"}),
            "reset": {
                "policy": self.reset_policy.model_dump(mode="json"),
                "duration_s": self.reset_duration_s,
                "residual": self.reset_residual,
            },
            "input_mask": None if self._mask is None else self._mask.digest(),
            "counters": self.counters.as_dict(),
            "latency": self.latency.summary(),
        }

    # ---- for the backend ------------------------------------------------------------------------

    @abstractmethod
    def _run(self, u: Any, out: Any) -> Any:
        """Drive the device with `u` and return the states (batch, time, nodes).

        `u` is a C-contiguous numpy array of `spec.dtype` (batch, time, inputs), or a tensor on
        `self.device` where `native` is "torch". `out` is None or an array that may be filled and returned;
        any other array belongs to the caller from then on, so its memory must not be used for the next states.
        A `DeviceError` raised here should carry `steps_done` and `states`.
        """

    def _open(self) -> ReservoirSpec | None:
        """Connect; return the spec if the device tells it by itself."""

    def _close(self) -> None:
        """Leave the device in its safe state and disconnect. Also called after a failed `_open`."""

    def _reset(self, batch: int) -> None:
        """Bring the device to its rest state for `batch` sequences."""

    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Pipelined `_run` over chunks, for devices that gain from it."""
        raise NotImplementedError

    def _snapshot(self) -> dict[str, np.ndarray]:
        """The device's state, noise positions included; the first axis of each array is the sequence."""
        return {}

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put a state of `_snapshot` back; the number of sequences is that of its arrays."""

    def _transition(self, u: Any, states: Any) -> Any:
        """One step from given node states, both native arrays."""
        raise NotImplementedError

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec | None:
        """Program the device; return its new spec."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """More for the provenance: settings read back, calibration id and age, the engine that computed."""
        return {}

    # ---- how calls are checked and carried out --------------------------------------------------

    def _name(self) -> str:
        identity = self.spec.identity
        return f"{identity.vendor} {identity.model} {identity.serial}".strip()

    def _has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Reservoir, hook)

    def _accept_spec(self, spec: ReservoirSpec) -> None:
        for capability, hooks in (
            ("settable", ["_transition"]),
            ("programmable", ["_upload"]),
            ("snapshot", [] if spec.continuity == "replayed" else ["_snapshot", "_restore"]),
        ):
            missing = [hook for hook in hooks if getattr(spec, capability) and not self._has(hook)]
            if missing:
                raise ConfigurationError(
                    f"{type(self).__name__} declares {capability} but does not implement {', '.join(missing)}"
                )
        if spec.differentiable and self.native != "torch":
            raise ConfigurationError(f"{type(self).__name__} declares differentiable, which needs native = 'torch'")
        self._device_spec, self._mask = spec, None
        if self._mask_config is not None:
            config, channels, seed = self._mask_config
            self._mask = config.build(spec.inputs, channels, seed=seed)
            content = f"{spec.identity.fingerprint} behind mask {self._mask.digest()}"
            identity = Identity(**spec.identity.model_dump(exclude={"fingerprint", "content"}), content=content)
            outward = {"inputs": channels, "input_range": None, "input_names": (), "identity": identity}
            spec = spec.model_copy(update=outward)
        self._spec = spec

    def _device(self) -> ReservoirSpec:
        """What the device itself declares, behind the mask if there is one."""
        assert self._device_spec is not None
        return self._device_spec

    def _refuse_half_programmed(self) -> None:
        if self._half_programmed:
            raise StateLost(
                f"{self._name()}: the last upload failed half-way, so nobody knows its weights; upload() again, "
                "or close() and open() it"
            )

    def _require(self, declared: bool, capability: str) -> None:
        if not declared:
            reason = self.spec.not_supported.get(capability, "the device does not declare it")
            raise NotSupported(f"{self._name()} has no {capability}: {reason}")

    def _groups(self, batch: int) -> list[slice]:
        """The sequences that are driven together."""
        size = self.spec.max_batch or max(batch, 1)
        return [slice(first, min(first + size, batch)) for first in range(0, batch, size)]

    def _to_native(self, value: Any, name: str) -> Any:
        spec = self.spec
        if not spec.differentiable:
            arrays.refuse_gradient(value)
        if self.native == "torch":
            return arrays.to_tensor(value, spec.numpy_dtype, self.device, name)
        return arrays.to_numpy(value, spec.numpy_dtype, name)

    def _is_native(self, out: Any) -> bool:
        if out is None or arrays.is_tensor(out) != (self.native == "torch"):
            return False
        if arrays.is_tensor(out):
            return str(out.device) == self.device and out.is_contiguous()
        return out.flags.c_contiguous

    def _shaped(self, u: Any) -> Any:
        """The inputs as the backend wants them, (batch, time, inputs), or a `ShapeError`."""
        spec = self.spec
        native = self._to_native(u, "inputs")
        if native.ndim != 3:
            raise ShapeError(
                f"inputs must be (batch, time, inputs), not {tuple(native.shape)}; "
                "one sequence (time, inputs) is u[None]"
            )
        if native.shape[2] != spec.inputs:
            raise ShapeError(
                f"inputs have {native.shape[2]} channels, {self._name()} takes {spec.inputs} "
                f"(inputs are (batch, time, inputs) = {tuple(native.shape)})"
            )
        if native.shape[0] != self._batch:
            raise ShapeError(
                f"inputs hold {native.shape[0]} sequences, but the reservoir was reset for {self._batch}: "
                f"call reset({native.shape[0]}) first"
            )
        return native

    def _in_range(self, u: Any) -> Any:
        """Check (batch, time, inputs) values, spread them by the mask; clip and count if that was asked for."""
        if not arrays.all_finite(u):
            where = _first(_not_finite(u))
            raise InputRangeError(f"input at (sequence, step, channel) = {where} is {_value(u, where)}, not a number")
        return self._within_limits(u if self._mask is None else _masked(self._mask, u))

    def _within_limits(self, u: Any) -> Any:
        """What the device's own inputs are about to get, checked or clipped."""
        limits = self._device().input_range
        if limits is None or u.shape[1] == 0:
            return u
        # The limits as this dtype has them: a float32 0.1 lies within [-0.1, 0.1].
        low, high = (float(self.spec.numpy_dtype.type(limit)) for limit in limits)
        smallest, largest = arrays.limits_of(u)
        if low <= smallest and largest <= high:
            return u
        outside = _numpy((u < low) | (u > high))
        if self._out_of_range == "clip":
            self.counters.clipped += int(outside.sum())
            return u.clip(low, high)
        where = _first(outside)
        raise InputRangeError(
            f"input at (sequence, step, channel) = {where} is {_value(u, where):g}, outside the range "
            f"[{low:g}, {high:g}] of {self._name()} ({int(outside.sum())} values are); scale the inputs, or set "
            "out_of_range: clip to have them clipped and counted"
        )

    def _check_out(self, out: Any, shape: Any) -> None:
        if out is None:
            return
        expected = (*shape[:2], self.spec.nodes)
        # The names of numpy's dtypes are made anew each time, which takes longer than the rest of a call.
        known = type(out) is np.ndarray and out.dtype == self.spec.numpy_dtype
        dtype = self.spec.dtype if known else str(getattr(out, "dtype", None)).removeprefix("torch.")
        if tuple(getattr(out, "shape", ())) != expected or dtype != self.spec.dtype:
            raise ShapeError(
                f"out must be {expected} of {self.spec.dtype}, not {tuple(getattr(out, 'shape', ()))} of {dtype}"
            )
        given: Any = out
        if given.requires_grad if arrays.is_tensor(out) else not given.flags.writeable:
            raise ShapeError("out cannot be written to: it is read-only, or a tensor that requires a gradient")

    def _check_continuation(self) -> None:
        spec = self.spec
        if self._lost:
            raise StateLost(f"{self._name()}: {self._lost}; call reset() to start again, or restore() a snapshot")
        if self._steps == 0:
            return
        if spec.continuity == "free_running":
            raise StateLost(
                f"{self._name()} is free running: it went on while nobody drove it. After reset() one run() or "
                "stream() is valid; put everything into that one"
            )
        if spec.continuity == "held" and len(self._frozen) > 1 and not spec.snapshot:
            raise StateLost(
                f"{self._name()} drove {self._batch} sequences {spec.max_batch} at a time and cannot snapshot them, "
                "so it cannot go on with all of them: put each whole sequence into one run()"
            )

    def _observed(self, given: Any, u: Any, out: Any) -> Any:
        if self.observer is None:
            return self._guarded(u, out)
        inputs, started = _numpy(given), time.perf_counter()
        try:
            states = self._guarded(u, out)
        except DeviceError as fault:
            self._observe_fault(inputs, fault, time.perf_counter() - started)
            raise
        self.observer.was_driven(inputs, _numpy(states), time.perf_counter() - started)
        return states

    def _observe_fault(self, inputs: np.ndarray, fault: DeviceError, seconds: float) -> None:
        """Tell the observer what was harvested before a fault, if anything was."""
        if self.observer is not None and fault.states is not None and fault.states.shape[1]:
            self.observer.was_driven(inputs[:, : fault.states.shape[1]], _numpy(fault.states), seconds)

    def _guarded(self, u: Any, out: Any) -> Any:
        """Drive, and after any failure forbid going on as if nothing had happened."""
        reason: str | None = "the last run was interrupted"
        try:
            states = self._drive(u, out)
        except ReservoirError as error:
            reason = f"the last run failed ({type(error).__name__})"
            if isinstance(error, DeviceError):
                self.counters.faults += 1
                good = self._steps + error.steps_done
                reason += f", the last good step is {good - 1}" if good else ", before its first step"
            raise
        else:
            self._steps += u.shape[1]
            reason = None
        finally:
            self._lost = reason
        return states

    def _drive(self, u: Any, out: Any) -> Any:
        if len(self._frozen) == 1:
            states = self._drive_group(0, u, out)
        else:
            states = self._drive_in_turn(self._groups(self._batch), u, out)
        if self.spec.continuity == "replayed":
            kept = u if self._history is None else arrays.concatenate([self._history, u], 1)
            last = kept[:, -self.spec.memory_steps :]
            # A copy: the caller may use the buffer of the inputs again.
            self._history = last.clone() if arrays.is_tensor(last) else last.copy()
        return states

    def _drive_in_turn(self, groups: list[slice], u: Any, out: Any) -> Any:
        parts: list[Any] = []
        for index, rows in enumerate(groups):
            try:
                parts.append(self._drive_group(index, u[rows], None if out is None else out[rows]))
            except DeviceError as fault:
                harvested = np.full((*u.shape[:2], self.spec.nodes), np.nan, self.spec.numpy_dtype)
                for done, part in zip(groups, parts, strict=False):
                    harvested[done] = arrays.like(part, harvested)
                if fault.states is not None:
                    harvested[rows, : fault.states.shape[1]] = arrays.like(fault.states, harvested)
                fault.add_note(
                    f"sequences {rows.start} to {rows.stop - 1} of {self._batch} were being driven; "
                    "`states` is (batch, time, nodes) with NaN where nothing was harvested"
                )
                fault.states, fault.steps_done = harvested, 0
                raise
        return arrays.concatenate(parts, 0)

    def _drive_group(self, index: int, u: Any, out: Any) -> Any:
        spec = self.spec
        batch = u.shape[0]
        in_turn = len(self._frozen) > 1
        replay = 0
        if spec.continuity == "replayed":
            if not self._fresh:
                self._to_rest(batch)
            if self._history is not None:
                replay = self._history.shape[1]
                u = arrays.concatenate([self._history[self._groups(self._batch)[index]], u], 1)
                out = None
        elif in_turn:
            frozen = self._frozen[index]
            if frozen is not None:
                self._restore(frozen)
            elif not self._fresh:
                self._to_rest(batch)
        self._fresh = False
        started = time.perf_counter()
        try:
            states = self._checked(self._run(u, out), u.shape[:2])
        except DeviceError as fault:
            self.counters.steps += batch * int(fault.steps_done)
            fault.steps_done = max(0, int(fault.steps_done) - replay)
            if fault.states is not None and getattr(fault.states, "ndim", None) != 3:
                fault.add_note("the states in this fault were dropped: they are no array (batch, time, nodes)")
                fault.steps_done, fault.states = 0, None
            fault.states = None if fault.states is None else fault.states[:, replay : replay + fault.steps_done]
            raise
        self.latency.record(time.perf_counter() - started)
        self.counters.steps += batch * u.shape[1]
        states = states[:, replay:]
        if in_turn and spec.snapshot and spec.continuity == "held":
            self._frozen[index] = self._snapshot()
        return states

    def _checked(self, states: Any, driven: Any) -> Any:
        """What the device returned, refused if it cannot be true."""
        spec = self.spec
        expected = (*driven, spec.nodes)
        if tuple(getattr(states, "shape", ())) != expected:
            raise DeviceFault(
                f"{self._name()} returned states {tuple(getattr(states, 'shape', ()))} instead of {expected}"
            )
        if not arrays.is_tensor(states) and states.dtype != spec.numpy_dtype:
            if states.dtype.kind not in "fiub":
                raise DeviceFault(f"{self._name()} returned {states.dtype} states; they must be real numbers")
            states = states.astype(spec.numpy_dtype)
        if not self.checks_states:
            self._refuse_not_finite(states)
        return states

    def _refuse_not_finite(self, states: Any, first: int = 0) -> None:
        """Raise `DeviceFault` if a state (batch, time, nodes) is not finite; `first` is the number of its first step.

        The fault carries the steps of `states` before it.
        """
        if arrays.all_finite(states):
            return
        bad = _not_finite(states)
        step = int(bad.any(axis=(0, 2)).argmax())
        sequence, node = _first(bad[:, step])
        simulated = self.spec.identity.simulated
        cause = "a simulation that diverges" if simulated else "a broken channel, or a failed read-out"
        raise DeviceFault(
            f"{self._name()} returned a state that is not finite (sequence {sequence}, step {first + step}, node "
            f"{node}): {cause}",
            steps_done=step,
            states=states[:, :step],
        )

    def _to_rest(self, batch: int) -> None:
        try:
            self._rest(batch)
        except DeviceError as fault:
            # What a reset waveform or washout returned before the fault is no harvest.
            fault.steps_done, fault.states = 0, None
            fault.add_note("this happened while the device was being brought to rest")
            raise

    def _rest(self, batch: int) -> None:
        self._reset(batch)
        if isinstance(self.reset_policy, ResetByIdle):
            time.sleep(self.reset_policy.settle_s)
        waveform = self.reset_policy.waveform(self._device())
        if waveform is not None:
            if not np.isfinite(waveform).all():
                raise InputRangeError("the reset waveform is not finite everywhere: correct reset.values")
            self._run(self._within_limits(self._tiled(waveform, batch)), None)
            self.counters.steps += batch * len(waveform)
        self._fresh = True

    def _tiled(self, waveform: np.ndarray, batch: int) -> Any:
        return self._to_native(np.repeat(waveform[None], batch, axis=0), "waveform")

    def _measure_reset(self, steps: int) -> float:
        """How far two resets are apart: RMS difference of the first response to the same probe.

        Relative to the standard deviation of the probe's whole response. Between the two the device is
        driven with something else. The noise of the device is part of the figure.
        """
        low, high = self.spec.input_range or (-1.0, 1.0)
        responses = []
        for name in ("probe", "disturbance", "probe"):
            drive = generator(0, name).uniform(low, high, (1, steps, self.spec.inputs))
            self.reset(1)
            responses.append(np.asarray(arrays.like(self.run(drive), drive)))
        self.reset(1)
        first, _, second = responses
        spread = float(first.std())
        difference = float(np.sqrt(np.mean((first[:, 0] - second[:, 0]) ** 2)))
        return difference / spread if spread else difference

    def _check_epoch(self, epoch: int) -> None:
        if self._epoch != epoch:
            raise StateLost(
                "this stream has ended: the reservoir was reset, restored or closed while it was being read"
            )

    def _run_each(self, chunks: Iterable[Any], epoch: int) -> Iterator[Any]:
        for chunk in chunks:
            self._check_epoch(epoch)
            yield self.run(chunk)

    def _streaming(self, chunks: Iterable[Any], epoch: int) -> Iterator[Any]:
        given: deque[tuple[Any, int, Any]] = deque()

        def prepared() -> Iterator[Any]:
            for chunk in chunks:
                shaped = self._shaped(chunk)
                native = self._in_range(shaped)
                if arrays.share_memory(native, chunk):
                    # The device may read ahead, and the caller may use the buffer of the chunk again.
                    native = native.clone() if arrays.is_tensor(native) else native.copy()
                given.append((chunk, native.shape[1], None if self.observer is None else _numpy(shaped).copy()))
                # From here on the device may be moving, whatever becomes of the stream.
                self._steps += native.shape[1]
                yield native

        self._check_epoch(epoch)
        self._check_continuation()
        self._lost = "the last stream was not read to its end"
        self._fresh = False
        started = time.perf_counter()
        try:
            for states in self._stream(prepared()):
                self._check_epoch(epoch)
                chunk, steps, inputs = given.popleft()
                seconds = time.perf_counter() - started
                self.latency.record(seconds)
                self.counters.steps += self._batch * steps
                states = self._checked(states, (self._batch, steps))
                if self.observer is not None and inputs is not None:
                    self.observer.was_driven(inputs, _numpy(states), seconds)
                yield arrays.like(states, chunk)
                self._check_epoch(epoch)
                started = time.perf_counter()
            if given:
                raise DeviceFault(f"{self._name()} returned no states for the last {len(given)} chunks")
        except DeviceError as fault:
            self.counters.faults += 1
            if given and given[0][2] is not None:
                self._observe_fault(given[0][2], fault, time.perf_counter() - started)
            raise
        self._lost = None

    def _fingerprint(self, batch: int) -> np.ndarray:
        """The fingerprint as bytes, (batch, 32) uint8."""
        digest = hashlib.sha256(self.spec.identity.fingerprint.encode()).digest()
        return np.tile(np.frombuffer(digest, np.uint8), (batch, 1))

    def _history_array(self) -> np.ndarray:
        if self._history is None:
            return np.empty((self._batch, 0, self._device().inputs), self.spec.numpy_dtype)
        return np.array(arrays.like(self._history, np.empty(0)))

    def _frozen_state(self, index: int) -> dict[str, np.ndarray]:
        """The state of one group; a group that was never driven is at rest."""
        state = self._frozen[index]
        if state is None:
            rows = self._groups(self._batch)[index]
            self._to_rest(rows.stop - rows.start)
            self._fresh = False
            state = self._frozen[index] = self._snapshot()
        return state


def _masked(mask: Mask, u: Any) -> Any:
    if not arrays.is_tensor(u):
        return mask.apply(u)
    matrix, bias = (arrays.import_torch("this reservoir").tensor(a).to(u) for a in (mask.matrix, mask.bias))
    masked = bias
    for k in range(mask.inputs):
        # Channel after channel: a matrix product would round by the number of rows.
        masked = masked + u[..., k, None] * matrix[:, k]
    return masked


def _overlap(out: Any, u: Any) -> bool:
    """Whether writing the states would overwrite inputs that are still to be read."""
    return isinstance(out, np.ndarray) and isinstance(u, np.ndarray) and np.may_share_memory(out, u)


def _numpy(mask: Any) -> np.ndarray:
    return mask.detach().cpu().numpy() if arrays.is_tensor(mask) else mask


def _not_finite(array: Any) -> np.ndarray:
    return ~_numpy(array.isfinite() if arrays.is_tensor(array) else np.isfinite(array))


def _first(mask: np.ndarray) -> tuple[int, ...]:
    """Index of the first true element."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def _value(array: Any, index: tuple[int, ...]) -> float:
    return float(array.detach()[index] if arrays.is_tensor(array) else array[index])
