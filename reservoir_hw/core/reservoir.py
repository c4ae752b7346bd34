"""The contract: one class that simulations, boards and benches all implement."""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, Self
from weakref import WeakSet

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.arrays import Array
from reservoir_hw.core.channels import Channels, Inputs, OutOfRange, about_mask, box_within, chosen_mask
from reservoir_hw.core.driving import Ask, Driving, Observer, reset_residual
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    DeviceFault,
    InputRangeError,
    NotOpen,
    NotSupported,
    ShapeError,
    StateLost,
    text_of,
)
from reservoir_hw.core.interrupts import HeldInterrupts
from reservoir_hw.core.knobs import Knob, Monitor, closed
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.signal import Mask, MaskConfig
from reservoir_hw.core.spec import Counters, Latency, ReservoirSpec, ResetByCommand, ResetPolicy


class Reservoir(ABC):
    """A driven dynamical system that nobody trains.

    Use it as a context manager, or call `open()` and `close()`. Public methods validate once per call and
    hand over to hooks. A backend writes `_run`; `_reset` too if its device holds state; the other hooks
    where the device has the capability.

    Parameters
    ----------
    spec
        What the device declares. A device that reports its spec returns it from `_open` instead.
    reset
        How the device is brought to rest; by default it has a command of its own (`_reset`).
    out_of_range
        "error" refuses inputs outside `spec.input_range`; "clip" clips them and counts each value.
    resource
        What only one process may use at a time: an address, a port, or several of them (a bench is several
        instruments). All are locked, or none. None: nothing to protect.
    knobs, monitors
        Settings that are turned while the device is open, and what is read beside its states.
    """

    native: Literal["numpy", "torch"] = "numpy"
    device: str = "cpu"
    inputs_are_limited: bool = True
    """Whether inputs are held against the device's range. A recording took its own already."""
    checks_states: bool = False
    """Whether `_run` and `_stream` themselves refuse states that are no numbers, by `refuse_not_finite`."""
    states_are_checked: bool = True
    """Whether somebody looks for states that are no numbers: this class, the backend, or the device as it says."""

    def __init__(
        self,
        spec: ReservoirSpec | None = None,
        *,
        reset: ResetPolicy | None = None,
        out_of_range: OutOfRange = "error",
        resource: str | Iterable[str] | None = None,
        knobs: Sequence[Knob] = (),
        monitors: Sequence[Monitor] = (),
    ) -> None:
        self.counters = Counters()
        self.latency = Latency()
        self.reset_policy: ResetPolicy = reset or ResetByCommand()
        self.reset_duration_s: float | None = None
        self.reset_residual: float | None = None
        self.out_of_range: OutOfRange = out_of_range
        self.label = ""
        """What tables and figures call it; a configuration gives it."""
        self.configuration: Any = None
        """The `ReservoirConfig` that it was built from, if it was."""
        self.closing = False
        """Whether the device is being brought to its safe state, which nothing should interrupt."""
        self.emergency_stopped = False
        """Whether `emergency_stop` was called since `open`: nothing drives the device any more."""
        self.unsafe: str | None = None
        """Why the device is not in its safe state: what the last `close` failed with, until one succeeds."""
        self.honours_reservations = True
        """Whether `open` is refused while another user has the device reserved. A server looks after that itself."""
        self._knobs = {knob.name: knob for knob in knobs}
        self._monitors = {monitor.name: monitor for monitor in monitors}
        self.given_spec = spec and self._with_knobs(spec)
        """What the device itself declares, open or not; None for one that reports it whenever it is opened."""
        self._locks = HostLocks([resource] if isinstance(resource, str) else resource or ())
        self._connected = False
        self._spec: ReservoirSpec | None = None
        self._device_spec: ReservoirSpec | None = None
        self.mask_config: MaskConfig | None = None
        """How the mask in front of the open device was drawn, whoever asked for it."""
        self._asked_mask: tuple[MaskConfig | Literal["none"] | None, Channels, int, MaskConfig | None] | None = None
        self._input_path: Inputs
        self._driving = Driving(self)
        self._unknown: str | None = None
        """Why nobody knows which device this is: an upload or a knob that failed half-way, until one succeeds."""
        # In a forked process: the one that has the device.
        self._left_to: int | None = None

    def __repr__(self) -> str:
        if self._spec is None:
            return f"<{type(self).__name__}, not open>"
        spec = self._spec
        what = "simulation" if spec.identity.simulated else "hardware"
        return f"<{type(self).__name__} {self.name} ({what}): {spec.inputs} inputs -> {spec.nodes} nodes, open>"

    def __deepcopy__(self, memo: object) -> Self:
        """The same reservoir: a device exists once, whatever is copied around it."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raises `NotSupported`: `torch.save` and pickle would hold a connection, or half of a device."""
        raise NotSupported(
            f"{self!r} cannot be pickled or saved with a model: save the weights (`state_dict()`), and open the "
            "reservoir from its configuration"
        )

    # ---- for the caller -------------------------------------------------------------------------

    @property
    def spec(self) -> ReservoirSpec:
        """What the device declares. Raises `NotOpen` before `open()`."""
        if self._spec is None:
            why = "is not open: use it in a `with` block or call open() first"
            if self._left_to is not None:
                why = f"was opened by process {self._left_to}: open it here, or start workers with spawn"
            raise NotOpen(f"{type(self).__name__} {why}")
        return self._spec

    @property
    def device_spec(self) -> ReservoirSpec:
        """What the device itself declares: behind the mask, where there is one."""
        return self.spec if self._device_spec is None else self._device_spec

    @property
    def name(self) -> str:
        """Vendor, model and serial number, for messages."""
        return self.spec.identity.name

    def played_steps(self, steps: int) -> int:
        """How many steps the device is driven for one run of so many: more where it takes several bursts, or a mean."""
        return steps

    def seconds_for(self, steps: int, period_s: float) -> float:
        """How long a run of so many steps takes where one takes `period_s`."""
        return self.played_steps(steps) * period_s

    @property
    def input_mask(self) -> Mask | None:
        """What spreads the inputs over those of the device, if anything does."""
        return self._input_path.mask

    @property
    def resources(self) -> tuple[str, ...]:
        """What only one process of this host may use at a time, sorted."""
        return self._locks.resources

    @property
    def in_process(self) -> bool:
        """Whether it is computed in this process, and locks nothing."""
        return self.given_spec is not None and self.given_spec.identity.simulated and not self.resources

    @property
    def state_lost(self) -> str | None:
        """Why the next `run` would raise `StateLost` until `reset` or `restore`, or None."""
        return self._driving.lost_by_now()

    @property
    def at_rest(self) -> bool:
        """Whether nothing was driven since the last reset."""
        return self.steps_driven == 0

    @property
    def steps_driven(self) -> int:
        """Time steps since the last reset."""
        return self._driving.steps

    @property
    def batch(self) -> int:
        """Sequences side by side since the last reset."""
        return self._driving.batch

    @property
    def streams(self) -> bool:
        """Whether `stream` drives chunks without a pause between them (the backend has a `_stream`)."""
        return self._has("_stream")

    @property
    def is_open(self) -> bool:
        """Whether the device is connected."""
        return self._spec is not None

    def known_inputs(self) -> np.ndarray | None:
        """Inputs (time, inputs), from rest, of a device that answers no others, such as a recording; else None."""
        return None

    def read_back(self) -> dict[str, Any]:
        """What the device says of its settings, by name. A harvest goes on only where it says the same again."""
        return {}

    @property
    def knobs(self) -> dict[str, float]:
        """What the knobs of the open device were asked for, by name."""
        return dict(self.spec.identity.knobs)

    @property
    def tolerances(self) -> Mapping[str, float]:
        """How far a setting that is read back may differ from one time to another, by name."""
        return {}

    @property
    def safe_range(self) -> tuple[float, float]:
        """Between these, inputs on all channels are sure to be taken; (-1, 1) where the device knows no limits.

        Raises `ConfigurationError` where a mask leaves no such inputs, and what lies beyond is not clipped.
        """
        return self.known_range or (-1.0, 1.0)

    @property
    def known_range(self) -> tuple[float, float] | None:
        """`safe_range`, or None where no limits are declared, or a mask that clips leaves no such inputs.

        Raises `ConfigurationError` as `safe_range`.
        """
        declared, mask = self.device_spec.input_range, self.input_mask
        if declared is None or mask is None:
            return self.spec.input_range
        found = box_within(mask, declared)
        if found is None and self.out_of_range == "error":
            low, high = declared
            raise ConfigurationError(
                f"behind input_mask, no inputs are sure to stay within the range of {self.name}, [{low:g}, {high:g}]: "
                f"bring them there (input_mask.offset: {(low + high) / 2:g}, and a small input_mask.scaling)"
            )
        return found

    @property
    def about_mask(self) -> str | None:
        """A sentence about the mask in front of the open device, where nobody asked for it."""
        if self.mask_config is None or self._asked_mask is None or self._asked_mask[0] is not None:
            return None
        return about_mask(self.mask_config, self.spec.inputs, self.device_spec.inputs, self.name)

    def spread_inputs(
        self,
        mask: MaskConfig | Literal["none"] | None,
        channels: int | Channels,
        *,
        seed: int = 0,
        kept: MaskConfig | None = None,
    ) -> None:
        """Take `channels` inputs and let a seeded matrix spread them over the inputs that the device has.

        To be called before `open()`. The spec then declares the channels; the limits of the device's own inputs
        are checked behind the mask. `seed` draws a mask that has no seed of its own. Where `mask` is None there is one
        only where the channels do not meet the device as they are (`core.channels.meeting`): that which was `kept` of a
        training, if there is one. Where it is "none" that is a `ConfigurationError`.
        """
        if self.is_open:
            raise ConfigurationError("spread_inputs must be called before open()")
        self._asked_mask = (mask, Channels.of(channels), seed, kept)

    def open(self) -> Self:
        """Take the device and bring it to rest for one sequence. Idempotent.

        Raises `DeviceBusy` naming the owner if another process has it, or another user has reserved it, and the
        device's own errors. It waits for the device as long as RESERVOIR_HW_WAIT_S of the environment says.
        """
        if self.is_open:
            return self
        self._locks.acquire(honour_reservations=self.honours_reservations)
        try:
            self.counters = Counters()
            self.latency = Latency()
            self._unknown = None
            self.emergency_stopped = False
            self._connected, self._left_to = True, None
            _OPEN.add(self)
            self._begin_monitors()
            spec = self._open() or self.given_spec
            if spec is None:
                raise ConfigurationError(
                    f"{type(self).__name__} has no spec: pass one to Reservoir.__init__ or return one from _open"
                )
            for knob in self._knobs.values():
                knob.turn(knob.config.value)
            self._accept_spec(self._with_knobs(spec))
            self.reset(1)
            if steps := self.reset_policy.probe_steps:
                self.reset_residual = reset_residual(self.reset, self._probed, self.device_spec, steps)
        except BaseException as error:
            Reservoir.__exit__(self, type(error), error, None)
            raise
        return self

    def close(self) -> None:
        """Leave the device in its safe state and give it back. Idempotent. Ctrl-C acts afterwards."""
        with HeldInterrupts():
            self.closing = True
            try:
                if self._connected:
                    try:
                        self._close_knobs()
                    finally:
                        self._close()
                    self.unsafe = None
            except BaseException as error:
                self.unsafe = f"{type(error).__name__}: {text_of(error)}"
                raise
            finally:
                self._forget()
                self._locks.release()
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
        except BaseException as closing:
            if self.unsafe:
                error.add_note(f"closing the device failed too: {self.unsafe}")
            if isinstance(error, Exception) and not isinstance(closing, Exception):
                raise

    def set(self, /, **values: float) -> None:
        """Turn knobs of the open device: `reservoir.set(bias_mT=5)`. A `reset` must follow before it is driven.

        It then has another identity, so that states of two settings are never taken for the same.

        Raises
        ------
        NotSupported
            The device has no such knob.
        InputRangeError
            A value is not finite, beyond the limits or between two steps of the knob. Nothing was turned.
        DeviceFault
            A value is not read back.
        """
        spec = self.device_spec
        for name, value in values.items():
            if name not in spec.knobs:
                raise NotSupported(f"{self.name} has no knob {name!r}; it has: {', '.join(spec.knobs) or 'none'}")
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise InputRangeError(f"knob {name}: {value!r} is no number")
            if problem := spec.knobs[name].problem_of(float(value)):
                raise InputRangeError(f"knob {name}: {problem}; nothing was turned")
        if not values:
            return
        self._driving.turn(", ".join(values))
        self._unknown = f"{', '.join(values)} could not be turned, so nobody knows its setting; set() it again"
        self._accept_spec(self._set({name: float(value) for name, value in values.items()}))
        self._unknown = None

    def get(self, *names: str) -> dict[str, float | None]:
        """Where knobs are, and what monitors read now, by name; by default all. None: nothing can be read.

        Raises `NotSupported` for a name that the device does not have.
        """
        spec = self.device_spec
        known = [*spec.knobs, *spec.monitors]
        if unknown := [name for name in names if name not in known]:
            raise NotSupported(
                f"{self.name} has no knob or monitor {unknown[0]!r}; it has: {', '.join(known) or 'none'}"
            )
        return self._get(names or known) if known else {}

    def reset(self, batch: int = 1) -> None:
        """Bring the device to its rest state, for `batch` sequences side by side."""
        self.spec  # noqa: B018 - raises NotOpen
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
            raise ShapeError(f"reset needs a whole number of sequences, at least 1, not {batch!r}")
        self._refuse_unknown()
        started = time.perf_counter()
        self._driving.reset(int(batch))
        self.reset_duration_s = time.perf_counter() - started

    def step(self, u: Array) -> Array:
        """One step of a closed loop: inputs (batch, inputs) -> states (batch, nodes)."""
        if getattr(u, "ndim", None) != 2:
            u = u if arrays.is_tensor(u) else np.asarray(u)
            if u.ndim != 2:
                raise ShapeError(f"step takes inputs (batch, inputs), not {tuple(u.shape)}")
        return self.run(u[:, None, :])[:, 0]

    def run(self, u: Array, out: Array | None = None) -> Array:
        """Drive the reservoir with `u` (batch, time, inputs); return the states (batch, time, nodes).

        After `reset(1)` one series (time, inputs) may come alone; its states, and `out`, are (time, nodes).

        Row t of the states is the response after u[:, t] was applied for one full period. The state goes
        on from the last call as `spec.continuity` says. `out`, if given, is filled and returned.

        Raises
        ------
        NotOpen, ShapeError, InputRangeError, StateLost
            Before anything is sent.
        DeviceError
            With `steps_done` and `states`, what was harvested before the fault.
        """
        spec, inputs = self.spec, self._input_path
        if getattr(u, "ndim", 3) == 2 and self._driving.batch == 1:
            series = u if arrays.is_tensor(u) else np.asarray(u)
            states = self.run(series[None], None if out is None else out[None])[0]
            return states if out is None else out
        given = inputs.shaped(u, self._driving.batch)
        inputs.check_out(out, given.shape)
        self._driving.check_continuation()
        native = inputs.for_device(given)
        if native.shape[1] == 0:
            empty = native.new_empty if arrays.is_tensor(native) else np.empty
            states = empty((*native.shape[:2], spec.nodes), dtype=native.dtype)
        else:
            direct = inputs.is_native(out) and spec.continuity != "replayed" and not arrays.share_memory(out, native)
            states = self._driving.run(given, native, out if direct else None)
        if out is None:
            return arrays.like(states, u)
        if states is not out:
            out[...] = arrays.like(states, out)
        return out

    def stream(self, chunks: Iterable[Array]) -> Iterator[Array]:
        """A run over chunks (batch, time, inputs), with bounded memory; yields the states of each.

        The state rules are checked at once, the chunks as they are taken.
        """
        return self._driving.stream(chunks, self.run)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The whole state as named arrays (copies); the first axis of each is the sequence."""
        self._require(self.spec.snapshot, "snapshot")
        return self._driving.snapshot()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `snapshot()`; the number of sequences becomes that of the snapshot."""
        self._require(self.spec.snapshot, "snapshot")
        self._refuse_unknown()
        self._driving.restore(state)

    def transition(self, u: Array, states: Array) -> Array:
        """One step from *given* node states: (batch, inputs), (batch, nodes) -> (batch, nodes).

        The reservoir's own state stays as it is.
        """
        spec = self.spec
        self._require(spec.settable, "settable")
        native = self._input_path.to_native(u, "inputs")
        given = self._input_path.to_native(states, "states")
        if native.ndim != 2 or native.shape[1] != spec.inputs:
            raise ShapeError(f"transition takes inputs (batch, {spec.inputs}), not {tuple(native.shape)}")
        if tuple(given.shape) != (native.shape[0], spec.nodes):
            raise ShapeError(f"transition takes states ({native.shape[0]}, {spec.nodes}), not {tuple(given.shape)}")
        if not arrays.all_finite(given):
            raise InputRangeError("transition: the given states are not all finite")
        driven = self._input_path.for_device(native[:, None])[:, 0]
        rows = self._driving.groups(native.shape[0]) or [slice(0, 0)]
        result = arrays.concatenate([self._transition(driven[part], given[part]) for part in rows], 0)
        return arrays.like(self._driving.checked(result[:, None], (native.shape[0], 1))[:, 0], u)

    def upload(self, weights: Mapping[str, np.ndarray]) -> None:
        """Program the device with new weights; it is reset, and its fingerprint changes."""
        self._require(self.spec.programmable, "programmable")
        try:
            spec = self._upload(weights) or self.device_spec
        except (ConfigurationError, ShapeError):
            # Refused for what they are: these weights never reached the device.
            raise
        except BaseException:
            self._driving.lost = "the last upload failed"
            self._unknown = "the last upload failed half-way, so nobody knows its weights; upload() again"
            raise
        self._unknown = "its new weights were refused; upload() others"
        self._accept_spec(spec)
        if self.given_spec is not None:
            # It keeps its weights when it is closed; whoever opens it next must learn which.
            self.given_spec = spec
        self._unknown = None
        self.reset(self._driving.batch)

    @contextlib.contextmanager
    def observed_by(self, *observers: Observer) -> Iterator[None]:
        """Tell these about every reset and every drive meanwhile, in this order, after those that look on already."""
        self._driving.observers = [*self._driving.observers, *observers]
        try:
            yield
        finally:
            left = list(self._driving.observers)
            for observer in observers:
                left.remove(observer)
            self._driving.observers = left

    def emergency_stop(self) -> None:
        """Stop the device at once, from another thread, while a call that drives it does not return.

        The call raises `DeviceFault` when it returns, and nothing drives the device until it is closed and opened.
        Raises `NotSupported` where the backend has no `_emergency_stop`.
        """
        self.emergency_stopped = True
        if not self._has("_emergency_stop"):
            raise NotSupported(f"{type(self).__name__} has no emergency stop")
        self._emergency_stop()

    def provenance(self) -> dict[str, Any]:
        """What must be known to believe the states: identity, reset, counters, latency, settings."""
        spec = self.spec
        return {
            **self._settings(),
            "label": self.label,
            "identity": spec.identity.model_dump(),
            "spec": spec.model_dump(mode="json", exclude={"identity"}),
            "reset": {
                "policy": self.reset_policy.model_dump(mode="json"),
                "duration_s": self.reset_duration_s,
                "residual": self.reset_residual,
            },
            "input_mask": spec.input_mask,
            **({"monitors": self.monitored()} if spec.monitors else {}),
            "counters": self.counters.as_dict(),
            "latency": self.latency.summary(),
        }

    def monitored(self) -> dict[str, dict[str, Any]]:
        """What monitors have read since the device was opened, or since `begin_record`: see `Monitor.series`."""
        return {name: monitor.series for name, monitor in self._monitors.items()}

    def begin_record(self) -> None:
        """Counters, latency and monitors begin anew: another point of an experiment is driven on the open device."""
        vars(self.counters).update(vars(Counters()))
        self.latency = Latency()
        self._begin_monitors()

    # ---- for the backend: what it can call --------------------------------------------------------

    def look_at_monitors(self, states: np.ndarray | None = None) -> None:
        """Read the monitors that are due; a backend that drives in pieces calls it between them, too.

        Raises `DeviceFault` where one is beyond its limits and the file says `outside: stop`. It carries the `states`
        (batch, time, nodes) that came before.
        """
        for monitor in self._monitors.values():
            if monitor.is_due():
                try:
                    monitor.refuse_outside(monitor.read())
                except DeviceError as fault:
                    fault.steps_done, fault.states = (0, None) if states is None else (states.shape[1], states)
                    raise

    def refuse_stopped(self, states: np.ndarray | None = None) -> None:
        """Raise `DeviceFault` after an emergency stop, with the `states` (batch, time, nodes) that came before.

        A backend that drives in pieces asks before each of them.
        """
        if self.emergency_stopped:
            done = 0 if states is None else states.shape[1]
            said = f"{self.name}: its emergency stop was called; close() and open() it"
            raise DeviceFault(said, steps_done=done, states=states)

    def drive(self, u: Array, ask: Ask) -> Any:
        """As `run`, but for what the device answers in the place of states, such as the outputs of its own readout.

        `ask` gets the inputs as `_run` does and returns the answer; it is not called for an input without steps.
        Observers are told of the drive, without states. Raises `NotSupported` where one run takes several drives.
        """
        given = self._input_path.shaped(u, self._driving.batch)
        self._driving.check_continuation()
        self._driving.refuse_several_drives("what the device makes of its states")
        native = self._input_path.for_device(given)
        return self._driving.run(given, native, ask=ask) if native.shape[1] else None

    def inputs_for_device(self, u: Array) -> Any:
        """What the device would get for inputs (batch, time, inputs). Raises `InputRangeError` as `run` does."""
        return self._input_path.for_device(self._input_path.to_native(u, "inputs"))

    def refuse_not_finite(self, states: Any, first: int = 0) -> None:
        """Raise `DeviceFault` if a state (batch, time, nodes) is no number: NaN, infinite, or 9e37 and more.

        `first` is the number of its first step. The fault carries the steps of `states` before it.
        """
        self._driving.refuse_not_finite(states, first)

    # ---- for the backend: the hooks that it writes ------------------------------------------------

    @abstractmethod
    def _run(self, u: Any, out: Any) -> Any:
        """Drive the device with `u` and return the states (batch, time, nodes).

        `u` is a C-contiguous numpy array of `spec.dtype` (batch, time, inputs), or a tensor on
        `self.device` where `native` is "torch". `out` is None or an array that may be filled and returned;
        any other array belongs to the caller from then on, so its memory must not be used for the next states.
        A `DeviceError` raised here should carry `steps_done` and `states`.
        """

    def _open(self) -> ReservoirSpec | None:
        """Connect; return the spec if the device reports it."""

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

    def _begin_monitors(self) -> None:
        """Forget what monitors have read."""
        for monitor in self._monitors.values():
            monitor.begin()

    def _set(self, values: Mapping[str, float]) -> ReservoirSpec:
        """Turn knobs to values within their limits; return the new spec."""
        for name, value in values.items():
            self._knobs[name].turn(value)
        return self.device_spec.turned(values)

    def _get(self, names: Sequence[str]) -> dict[str, float | None]:
        """Where knobs are and what monitors read."""
        return {name: (self._knobs.get(name) or self._monitors[name]).read() for name in names}

    def _close_knobs(self) -> None:
        """Set the closing values of the knobs, before `_close`."""
        closed(list(self._knobs.values()))

    def _emergency_stop(self) -> None:
        """Bring the device to its safe state beside a call that hangs, in another thread."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """More for the provenance: settings read back, calibration id and age, the engine that computed."""
        return {}

    def _check_inputs(self, u: Any) -> None:
        """Raise where the device cannot take these inputs, which are finite and within its range."""

    # ---- how ------------------------------------------------------------------------------------

    def _probed(self, u: np.ndarray) -> np.ndarray:
        """States of inputs (batch, time, inputs) of the device itself, behind the mask."""
        native = self._input_path.within_limits(self._input_path.to_native(u, "probe"))
        return arrays.as_numpy(self._driving.run(u, native))

    def _forget(self) -> None:
        self._connected = False
        self._spec = self._device_spec = None
        self._driving.close()
        _OPEN.discard(self)

    def _leave_to(self, owner: int) -> None:
        """Nothing of the device, its locks included, is touched by this process any more."""
        self._forget()
        self._left_to = owner
        _LEFT.append(self._locks)
        self._locks = HostLocks(self._locks.resources)

    def _has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Reservoir, hook)

    def _accept_spec(self, spec: ReservoirSpec) -> None:
        """Take what the device declares, if the backend has the hooks for it."""
        for capability, hooks in (
            ("settable", ["_transition"]),
            ("programmable", ["_upload"]),
            ("snapshot", [] if spec.continuity == "replayed" else ["_snapshot", "_restore"]),
        ):
            if missing := [hook for hook in hooks if getattr(spec, capability) and not self._has(hook)]:
                raise ConfigurationError(
                    f"{type(self).__name__} declares {capability} but does not implement {', '.join(missing)}"
                )
        if spec.differentiable and self.native != "torch":
            raise ConfigurationError(f"{type(self).__name__} declares differentiable, which needs native = 'torch'")
        outer, mask = spec, None
        self.mask_config, width = None, spec.inputs
        if self._asked_mask is not None:
            asked, channels, seed, kept = self._asked_mask
            channels = channels.of_device(spec)
            clips, width = self.out_of_range == "clip", channels.count
            self.mask_config = chosen_mask(asked, channels, spec, clips=clips, seed=seed, kept=kept)
        if self.mask_config is not None:
            mask = self.mask_config.build(spec.inputs, width)
            identity = spec.identity.behind(f"mask {mask.digest()}")
            outward = {"inputs": width, "input_range": None, "input_names": (), "identity": identity}
            outward["input_mask"] = self.mask_config.model_dump(mode="json", exclude_defaults=True)
            outer = spec.model_copy(update=outward)
        self._spec, self._device_spec = outer, spec
        self._input_path = Inputs(
            outer, spec, mask, library=self.native, device=self.device, out_of_range=self.out_of_range,
            limited=self.inputs_are_limited, counters=self.counters, check=self._check_inputs,
        )  # fmt: skip
        self._driving.open(self._input_path)

    def _with_knobs(self, spec: ReservoirSpec) -> ReservoirSpec:
        """The spec with the knobs and monitors of this backend, the knobs as in the configuration."""
        if not self._knobs and not self._monitors:
            return spec
        knobs = {name: knob.config.spec for name, knob in self._knobs.items()}
        monitors = {name: monitor.config.spec for name, monitor in self._monitors.items()}
        values = {name: knob.config.value for name, knob in self._knobs.items()}
        return spec.model_copy(update={"knobs": knobs, "monitors": monitors}).turned(values)

    def _refuse_unknown(self) -> None:
        if self._unknown is not None:
            raise StateLost(f"{self.name}: {self._unknown}, or close() and open() it")

    def _require(self, declared: bool, capability: str) -> None:
        if not declared:
            reason = self.spec.not_supported.get(capability, "the device does not declare it")
            raise NotSupported(f"{self.name} has no {capability}: {reason}")


_OPEN: WeakSet[Reservoir] = WeakSet()
# Locks of the parent process. They would be given back if they were collected.
_LEFT: list[HostLocks] = []


def _leave_devices_to_parent() -> None:
    for reservoir in [one for one in _OPEN if not one.in_process]:
        reservoir._leave_to(os.getppid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_devices_to_parent)
