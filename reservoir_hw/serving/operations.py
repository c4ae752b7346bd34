"""What a device says about itself on the wire, and what each request on the data socket does with it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, DeviceError, DeviceFault, Discontinuity, ProtocolError, text_of
from reservoir_hw.core.provenance import plain
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.drivers.codes import Code, Encoding, Refusal, clipped, encoding_of, sendable
from reservoir_hw.drivers.zeromq.frames import (
    Flag,
    Header,
    Operation,
    array_of,
    name_of,
    pack_arrays,
    pack_map,
    unpack_arrays,
    unpack_map,
)
from reservoir_hw.serving.data_socket import LONGEST_TEXT, DataSocket
from reservoir_hw.serving.lease import Work

log = logging.getLogger(__name__)
T = TypeVar("T")

WHOLE_RUN_BYTES = 1 << 32
"""Inputs of a run that is collected, as they travel."""


def problem_of(reservoir: Reservoir) -> str | None:
    """What somebody has to look after beside the device, or None."""
    unsafe = reservoir.unsafe
    if unsafe is None:
        return None
    return f"the device could not be brought to its safe state: {clipped(sendable(unsafe), LONGEST_TEXT)}"


def is_chunked(reservoir: Reservoir) -> bool:
    """Whether the device can begin with a part of a run; if not, all of it is collected first."""
    continuity = reservoir.spec.continuity
    return continuity == "held" or (continuity == "free_running" and reservoir.streams)


def declaration_of(reservoir: Reservoir, inputs: Encoding, states: Encoding) -> tuple[ReservoirSpec, dict[str, Any]]:
    """The spec of an open device with numbers that travel in these encodings, and the whole declaration.

    Raises `ConfigurationError` if inputs cannot reach the range of the device.
    """
    spec = reservoir.spec
    # Integers on the wire are a limit of the device, like those of its converters.
    for name, encoding in (("input", inputs), ("output", states)):
        if encoding.number.kind == "i":
            bits = 8 * encoding.number.itemsize
            spec = spec.model_copy(update={f"{name}_bits": min(bits, getattr(spec, f"{name}_bits") or bits)})
    if inputs.number.kind == "i":
        number = spec.numpy_dtype.type
        low, high = inputs.limits
        if spec.input_range is not None:
            low, high = max(low, spec.input_range[0]), min(high, spec.input_range[1])
        if not low < high:
            raise ConfigurationError(
                f"inputs as {inputs.number} with a scale of {inputs.scale:g} cannot reach the device's "
                f"range {spec.input_range}: choose another scale"
            )
        # Inwards: what the client may send in the dtype of the device must fit.
        low = float(low if float(number(low)) >= low else np.nextafter(number(low), number(np.inf)))
        high = float(high if float(number(high)) <= high else np.nextafter(number(high), number(-np.inf)))
        spec = spec.model_copy(update={"input_range": (low, high)})
    return spec, {
        "spec": spec.model_dump(mode="json", exclude={"input_mask"}),
        "inputs": list(inputs),
        "states": list(states),
        "chunked": is_chunked(reservoir),
        "whole_run_bytes": 0 if is_chunked(reservoir) else WHOLE_RUN_BYTES,
        "readout": True,
        "settings": plain(reservoir.read_back()),
        "tolerances": dict(reservoir.tolerances),
        "label": reservoir.label or spec.identity.name,
        "provenance": plain(
            {name: about for name, about in reservoir.provenance().items() if name not in _OF_THE_CLIENT}
        ),
        # `Reservoir.run` has looked at them; only a narrower number could still overflow.
        "finite": reservoir.states_are_checked and (states.number.kind == "i" or states.number == spec.numpy_dtype),
    }


# What of the provenance the spec or the counters of the client say.
_OF_THE_CLIENT = {"identity", "spec", "counters", "latency", "input_mask"}


# Fields of a request that an operation names; all others are 0, and the scale is 1.
_FIELDS: dict[int, set[str]] = {
    Operation.RESET: {"batch"},
    Operation.RUN: {"flags", "step", "batch", "steps", "width", "dtype", "scale"},
    Operation.RESTORE: {"batch", "step"},
    Operation.TRANSITION: {"batch", "steps", "width", "dtype", "scale"},
}
_WITHOUT_PAYLOAD = {Operation.ATTACH, Operation.RESET, Operation.SNAPSHOT}
_OPTIONAL = ("flags", "step", "batch", "steps", "width", "dtype", "scale", "time_ns", "period_s")
# The fields that an operation does not have.
_NOT_NAMED = {
    int(operation): [field for field in _OPTIONAL if field not in _FIELDS.get(operation, set())]
    for operation in Operation
}


def _check_fields(header: Header, payload: memoryview) -> None:
    """Refuse a request with fields that its operation does not have."""
    for field in _NOT_NAMED[header.operation]:
        value = getattr(header, field)
        if value != (field == "scale"):
            raise Refusal(Code.MALFORMED, f"{name_of(header.operation)} has no {field}, and here it is {value:g}")
    if header.operation in _WITHOUT_PAYLOAD and len(payload):
        raise Refusal(
            Code.MALFORMED, f"{name_of(header.operation)} has no payload, and here it has {len(payload)} bytes"
        )


class Operations:
    """Does what was asked on a data socket, and answers. `inputs` is how inputs travel."""

    def __init__(
        self,
        data: DataSocket,
        *,
        inputs: Encoding,
        declare: Callable[[], dict[str, Any]],
        stop: threading.Event,
    ) -> None:
        self._data, self._reservoir, self._lease, self._seat = data, data.reservoir, data.lease, data.seat
        self._inputs, self._states, self._declare, self._stop = inputs, data.states, declare, stop
        self._handlers: dict[int, Callable[[Header, memoryview], None]] = {
            Operation.ATTACH: self._attach,
            Operation.RESET: self._reset,
            Operation.RUN: self._run,
            Operation.SNAPSHOT: self._snapshot,
            Operation.RESTORE: self._restore,
            Operation.TRANSITION: self._transition,
            Operation.UPLOAD: self._upload,
            Operation.READOUT: self._load_readout,
            Operation.SET: self._turn,
            Operation.GET: self._read,
        }

    def attend(self, header: Header, payload: memoryview) -> None:
        """Do what was asked and answer, with an error if need be."""
        try:
            handler = self._handlers.get(header.operation)
            if handler is None:
                raise Refusal(Code.NOT_SUPPORTED, f"there is no operation {header.operation:#x}")
            _check_fields(header, payload)
            handler(header, payload)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Tasks of a device's own that were cancelled are no Exception.
            self._data.fail(header, error)

    def _attach(self, header: Header, _payload: memoryview) -> None:
        if header.request != 1:
            # The device is open already, and opening it again would not bring it to rest.
            raise Refusal(Code.SEQUENCE, "ATTACH is the first request of a session, and no other")
        self._prove_safe()
        self._reservoir.open()
        self._seat.step, self._seat.batch, self._seat.lost, self._seat.readout = 0, 1, None, None
        self._data.plain(header, pack_map(self._declare()))

    def _prove_safe(self) -> None:
        """After a failed closing nobody gets the device before it was opened and closed without a fault."""
        problem = problem_of(self._reservoir)
        if problem is None:
            return
        try:
            self._reservoir.open()
            self._reservoir.close()
        except Exception as error:
            raise DeviceFault(
                f"{problem}; it was tried again, and failed: {text_of(error)}. Nobody gets it in this condition: look "
                "after the device itself, and then open it again, or restart its server"
            ) from error
        log.warning("the device was brought to its safe state after all", extra={"event": "safe again"})

    def _open_device(self) -> Reservoir:
        if not self._reservoir.is_open:
            raise Refusal(Code.SEQUENCE, "ATTACH is the first request of a session; here it failed or is missing")
        return self._reservoir

    def _reset(self, header: Header, _payload: memoryview) -> None:
        reservoir = self._open_device()
        self._check_size(header.batch, 1)
        self._seat.lost = "the last reset failed"
        reservoir.reset(header.batch)
        self._seat.step, self._seat.batch, self._seat.lost = 0, header.batch, None
        self._data.plain(header, b"", batch=header.batch)

    def _snapshot(self, header: Header, _payload: memoryview) -> None:
        reservoir = self._open_device()
        if self._seat.lost is not None:
            raise Refusal(Code.STATE_LOST, self._seat.lost)
        self._data.plain(header, pack_arrays(reservoir.snapshot()))

    def _restore(self, header: Header, payload: memoryview) -> None:
        reservoir = self._open_device()
        self._check_size(header.batch, 1)
        if header.step >= 1 << 63:
            raise Refusal(Code.MALFORMED, f"{header.step} is no number of a step that one can go on from")
        arrays = _read(unpack_arrays, payload)
        if any(array.ndim < 1 or len(array) != header.batch for array in arrays.values()):
            raise Refusal(Code.SHAPE, f"each array must have {header.batch} rows, one for each sequence")
        reservoir.restore(arrays)
        self._seat.step, self._seat.batch, self._seat.lost = header.step, header.batch, None
        self._data.plain(header, b"", batch=header.batch, step=header.step)

    def _upload(self, header: Header, payload: memoryview) -> None:
        self._open_device().upload(_read(unpack_arrays, payload))
        self._seat.step, self._seat.lost, self._seat.readout = 0, None, None
        self._data.plain(header, pack_map(self._declare()))

    def _turn(self, header: Header, payload: memoryview) -> None:
        values = _read(unpack_map, payload)
        self._open_device().set(**values)
        self._seat.step, self._seat.lost = 0, f"{', '.join(values) or 'nothing'} was turned since the last RESET"
        self._data.plain(header, pack_map(self._declare()))

    def _read(self, header: Header, payload: memoryview) -> None:
        names = _read(unpack_map, payload).get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refusal(Code.CONFIGURATION, "GET takes a map with `names`, a list of texts")
        self._data.plain(header, pack_map(self._open_device().get(*names)))

    def _transition(self, header: Header, payload: memoryview) -> None:
        reservoir = self._open_device()
        spec = reservoir.spec
        if header.steps != 1 or header.width != spec.inputs + spec.nodes:
            raise Refusal(Code.SHAPE, f"TRANSITION takes (batch, 1, {spec.inputs + spec.nodes})")
        self._check_size(header.batch, 1)
        rows = self._values(header, payload, self._states)[:, 0]
        states = reservoir.transition(rows[:, : spec.inputs].copy(), rows[:, spec.inputs :].copy())
        self._data.array(header, states[:, None], self._states)

    def _load_readout(self, header: Header, payload: memoryview) -> None:
        arrays = _read(unpack_arrays, payload)
        nodes = self._open_device().spec.nodes
        weights = arrays.get("weights")
        if weights is None or weights.ndim != 2 or weights.shape[1] != nodes or weights.shape[0] < 1:
            raise Refusal(Code.CONFIGURATION, f"a readout needs weights (outputs, {nodes})")
        if weights.dtype not in (np.int8, np.int16, np.float32):
            raise Refusal(Code.CONFIGURATION, f"readout weights are int8, int16 or float32, not {weights.dtype}")
        if not np.isfinite(weights).all():
            raise Refusal(Code.CONFIGURATION, "readout weights must be finite numbers")
        for name in ("scale", "bias"):
            array = arrays.get(name)
            if array is None or array.shape != weights.shape[:1] or not np.isfinite(array).all():
                raise Refusal(Code.CONFIGURATION, f"a readout needs {name} ({weights.shape[0]},), finite numbers")
        with np.errstate(over="ignore"):
            scale, bias = (arrays[name].astype(np.float32) for name in ("scale", "bias"))
            values = np.ascontiguousarray((weights.astype(np.float32) * scale[:, None]).T)
        if not (np.isfinite(values).all() and np.isfinite(bias).all()):
            raise Refusal(Code.CONFIGURATION, "the weights or the bias of the readout do not fit into float32")
        self._seat.readout = values, bias
        self._data.plain(header, b"", width=weights.shape[0])

    def _run(self, header: Header, payload: memoryview) -> None:
        u = self._inputs_of(header, payload)
        reservoir, chunked = self._reservoir, is_chunked(self._reservoir)
        streams = chunked and reservoir.spec.continuity == "free_running"
        if streams or (header.flags & Flag.MORE and not chunked):
            _Pieces(self, header, u, len(payload), collects=not streams).drive()
            return
        started = time.time_ns()
        states = reservoir.run(u, out=self._memory_for(header))
        self._seat.step += header.steps
        self._answer_run(header, states, started)

    def _memory_for(self, header: Header) -> np.ndarray | None:
        """Where large states are put that are sent as they are; None where they are copied anyhow."""
        spec = self._reservoir.spec
        shape, dtype = (header.batch, header.steps, spec.nodes), spec.numpy_dtype
        memory = self._data.router.memory(header.request, math.prod(shape) * dtype.itemsize)
        if memory is None or header.flags & Flag.OUTPUTS or self._states != encoding_of(dtype):
            return None
        return memory.view(dtype).reshape(shape)

    def _inputs_of(self, header: Header, payload: memoryview) -> np.ndarray:
        """What a RUN drives the device with, refused unless it goes on from where the last one ended."""
        spec = self._open_device().spec
        if self._seat.lost is not None:
            raise Refusal(Code.STATE_LOST, self._seat.lost)
        if header.step != self._seat.step:
            raise Refusal(Code.SEQUENCE, f"this RUN begins with step {header.step}, the device is at {self._seat.step}")
        if header.batch != self._seat.batch or header.width != spec.inputs or header.steps < 1:
            raise Refusal(
                Code.SHAPE,
                f"RUN takes ({self._seat.batch}, time, {spec.inputs}) after the last RESET, got {header.shape}",
            )
        if header.flags & ~(Flag.MORE | Flag.OUTPUTS):
            raise Refusal(Code.MALFORMED, f"a RUN has no flags {header.flags:#x}")
        if header.flags & Flag.OUTPUTS and self._seat.readout is None:
            raise Refusal(Code.CONFIGURATION, "outputs were asked for, but no READOUT was loaded")
        self._check_size(header.batch, header.steps, outputs=bool(header.flags & Flag.OUTPUTS))
        return self._values(header, payload, self._inputs)

    def _values(self, header: Header, payload: memoryview, encoding: Encoding) -> np.ndarray:
        try:
            if (header.dtype, header.scale) != encoding:
                raise ProtocolError(f"dtype {header.dtype}, scale {header.scale:g}; declared were {tuple(encoding)}")
            numbers = array_of(header, payload)
        except ProtocolError as error:
            raise Refusal(Code.MALFORMED, str(error)) from error
        return encoding.decoded(numbers, self._reservoir.spec.numpy_dtype)

    def _check_size(self, batch: int, steps: int, *, outputs: bool = False) -> None:
        """Refuse what would answer with more than one frame may hold."""
        spec = self._reservoir.spec
        width = spec.nodes
        if outputs and self._seat.readout is not None:
            width = max(width, len(self._seat.readout[1]))
        if batch < 1:
            raise Refusal(Code.SHAPE, "batch must be at least 1")
        if spec.max_batch is not None and batch > spec.max_batch:
            raise Refusal(Code.TOO_LARGE, f"batch is {batch}, the device drives {spec.max_batch} sequences at once")
        answer = batch * steps * width * max(self._states.number.itemsize, spec.numpy_dtype.itemsize)
        if answer > self._data.max_frame_bytes:
            raise Refusal(
                Code.TOO_LARGE,
                f"{batch} x {steps} steps of {width} numbers are {answer} bytes, at most {self._data.max_frame_bytes} "
                "go into one frame: use shorter chunks or fewer sequences",
            )

    def _answer_run(self, header: Header, states: Any, time_ns: int) -> bool:
        """Whether it could be sent."""
        encoding = self._states
        if header.flags & Flag.OUTPUTS and self._seat.readout is not None:
            weights, bias = self._seat.readout
            states, encoding = states.astype(np.float32, copy=False) @ weights + bias, encoding_of("float32")
        period_s = self._reservoir.spec.step_period_s or 0.0
        return self._data.array(header, states, encoding, time_ns=time_ns, period_s=period_s)


def _read(unpack: Callable[[memoryview], T], payload: memoryview) -> T:
    try:
        return unpack(payload)
    except ProtocolError as error:
        raise Refusal(Code.MALFORMED, str(error)) from error


class _Pieces:
    """A run that comes in several messages: each is taken up as it comes, and all are answered in their order.

    The message `first` with the inputs `u`, of `size` bytes, was taken up. A device that must have the whole run
    (`collects`) is driven when all of it is here. One with its own clock is given each piece as soon as all of it is
    here, and no later than it is due.
    """

    def __init__(self, operations: Operations, first: Header, u: np.ndarray, size: int, *, collects: bool) -> None:
        self._operations, self._first, self._u, self._size = operations, first, u, size
        self._data, self._lease, self._seat = operations._data, operations._lease, operations._seat
        self._reservoir = operations._reservoir
        self._taken = [first]
        """Messages that were taken up and not answered."""
        self._began, self._began_ns = time.monotonic(), time.time_ns()
        self._collects = collects

    def drive(self) -> None:
        """Drive the device with all of it, and answer."""
        with self._data.in_order(slots=not self._collects):
            self._deliver(self._at_once() if self._collects else self._reservoir.stream(self._as_they_come()))

    def _as_they_come(self) -> Iterator[np.ndarray]:
        first, period_s = self._first, self._reservoir.spec.step_period_s
        given, latest, size = first.steps, first.request, self._size
        yield self._u
        more = first.flags & Flag.MORE
        while more:
            if self._operations._stop.is_set():
                raise Refusal(Code.SHUTTING_DOWN, "the server is shutting down")
            if self._lease.number != self._seat.attached or self._lease.expired():
                raise Refusal(Code.CANCELLED, "the client has left in the middle of a run")
            if self._lease.is_cancelled(latest):
                raise Refusal(Code.CANCELLED, "cancelled by the client")
            if self._seat.lost is not None:
                raise Refusal(Code.STATE_LOST, self._seat.lost)
            self._lease.work = None
            message = self._data.next()
            if message is None:
                underrun = period_s and not self._collects and time.monotonic() > self._began + given * period_s
                if underrun and self._seat.lost is None:
                    self._reservoir.counters.underruns += 1
                    raise Discontinuity(
                        f"discontinuity at step {first.step + given}: its inputs were not there when they were due",
                        step=first.step + given,
                    )
                continue
            header, payload = message
            if self._lease.is_cancelled(latest) or header.session != self._first.session:
                # Meanwhile: what came is the first request after this run.
                self._data.keep(header, payload)
                raise Refusal(Code.CANCELLED, "cancelled by the client")
            latest, size = header.request, size + len(payload)
            # Steps that were taken up and not answered.
            ahead = sum(one.steps for one in self._taken)
            self._taken.append(header)
            if header.operation != Operation.RUN:
                raise Refusal(Code.SEQUENCE, f"{name_of(header.operation)} in the middle of a run")
            if self._collects and size > WHOLE_RUN_BYTES:
                raise Refusal(Code.TOO_LARGE, f"a whole run has more than {WHOLE_RUN_BYTES} bytes of inputs")
            values = self._operations._inputs_of(header._replace(step=header.step - ahead), payload)
            more = header.flags & Flag.MORE
            given += header.steps
            yield values

    def _at_once(self) -> Iterator[np.ndarray]:
        """The states of each message, of one run of them all; as many as are whole come before a fault."""
        whole = np.concatenate(list(self._as_they_come()), axis=1)
        ends = list(accumulate(header.steps for header in self._taken))
        last = self._taken[-1]
        # What the device is busy with is all of it.
        self._lease.begin(last._replace(steps=ends[-1]))
        self._began_ns = time.time_ns()
        try:
            states = np.asarray(self._reservoir.run(whole))
        except DeviceError as fault:
            if fault.states is not None:
                good = np.asarray(fault.states)[:, : fault.steps_done]
                *parts, rest = np.split(good, [end for end in ends if end <= good.shape[1]], axis=1)
                yield from parts
                fault.states, fault.steps_done = rest, rest.shape[1]
            raise
        yield from np.split(states, ends[:-1], axis=1)

    def _deliver(self, answers: Iterator[Any]) -> None:
        taken, period_s = self._taken, self._reservoir.spec.step_period_s or 0
        try:
            for states in answers:
                header = taken.pop(0)
                began_ns = self._began_ns + round(1e9 * (header.step - self._first.step) * period_s)
                # A copy: the device may use its memory again before it is sent.
                if not self._operations._answer_run(header, np.array(states), began_ns):
                    self._refuse_gap(header)
                self._seat.step += header.steps
                if taken:
                    # The device is at work with what it took beforehand.
                    self._lease.work = Work(taken[0])
        except Exception as error:
            # The device went on without what it was refused.
            self._seat.lost = self._seat.lost or sendable(text_of(error))
            for number, header in enumerate(taken):
                behind = Refusal(Code.STATE_LOST, f"the run has failed before this chunk: {text_of(error)}")
                self._data.fail(header, behind if number else error)

    def _refuse_gap(self, header: Header) -> None:
        if self._collects:
            raise Refusal(Code.CANCELLED, "the client has left in the middle of a run")
        self._reservoir.counters.overruns += 1
        raise Discontinuity(f"discontinuity at step {header.step}: nobody took its states in time", step=header.step)
