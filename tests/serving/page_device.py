"""A device, written from docs/protocol.md alone: four leaky integrators behind int16 fixed point."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import zmq

from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header

INPUTS, NODES = 2, 4
INPUT_SCALE, STATE_SCALE = 2.0**-14, 2.0**-12
WEIGHTS = np.array([[0.5, -0.25], [1.0, 0.5], [-0.75, 0.125], [0.0, 1.0]])
LEAK = np.array([0.5, 0.25, 0.125, 0.75])
LARGEST_CONTROL = 1 << 20

Replies = list[list[bytes]]


def integrate(x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The device itself: states (batch, steps, nodes) as int16 counts, and the state that it ends in."""
    counts = np.empty((*u.shape[:2], NODES), np.int16)
    for t in range(u.shape[1]):
        x = (1 - LEAK) * x + LEAK * (u[:, t] @ WEIGHTS.T)
        counts[:, t] = np.rint(x / STATE_SCALE)
    return counts, x


def model(u: np.ndarray) -> np.ndarray:
    """What a client must get for `u` from rest: inputs rounded to their fixed point, states from theirs."""
    given = np.rint(np.asarray(u, np.float64) / INPUT_SCALE) * INPUT_SCALE
    counts, _ = integrate(np.zeros((len(u), NODES)), given)
    return (counts * STATE_SCALE).astype(np.float32)


class Refusal(Exception):
    def __init__(self, code: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.fields = {"code": code, "text": text, **more}


NAMED: dict[int, set[str]] = {
    wire.RESET: {"batch"},
    wire.RUN: {"flags", "step", "batch", "steps", "width", "dtype", "scale"},
    wire.RESTORE: {"batch", "step"},
    wire.TRANSITION: {"batch", "steps", "width", "dtype", "scale"},
}
WITHOUT_PAYLOAD = (wire.ATTACH, wire.RESET, wire.SNAPSHOT)


class PageDevice:
    """Serves until it is closed: one thread for the data, one for the control messages.

    `reply` makes the messages of one reply; a test replaces it by one that misbehaves. `before` is called
    with each request that is in order, and may raise a `Refusal`. `has` are names of the spec that are true:
    snapshot, settable.
    """

    def __init__(
        self, address: str, *, lease_s: float = 3.0, credits: int = 4, has: Sequence[str] = (), **declared: Any
    ) -> None:
        self.lease_s, self.credits = lease_s, credits
        self.max_frame_bytes = int(declared.pop("max_frame_bytes", 1 << 20))
        self.versions = {1}
        spec = {"inputs": INPUTS, "nodes": NODES, "input_range": [-1.0, 1.0], "max_batch": 3, "continuity": "held"}
        identity = {"vendor": "a bench", "model": "leaky", "simulated": False, "serial": "7"}
        self.declaration: dict[str, Any] = {
            "spec": {
                **spec,
                "identity": identity,
                "dtype": "float32",
                "deterministic": True,
                **dict.fromkeys(has, True),
            },
            "inputs": [wire.I2, INPUT_SCALE],
            "states": [wire.I2, STATE_SCALE],
            "chunked": True,
            "readout": False,
            **declared,
        }
        self.declaration["spec"] |= dict.fromkeys(has, True)
        self.reply: Callable[[Header, bytes], Replies] = lambda header, payload: [wire.pack_data(header, payload)]
        self.before: Callable[[Header], None] = lambda header: None
        self.answer: Callable[[dict[str, Any]], list[dict[str, Any]]] = lambda message: [message]
        self.seen: list[Header] = []
        self.payload_sizes: list[int] = []
        self.pings = threading.Semaphore(0)
        self.freed = threading.Event()
        self.repeated = self.dropped = self.most_waiting = 0

        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._free()
        self._ended = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        data = self._bind(address, self.max_frame_bytes)
        control = self._bind(wire.control_address(address), LARGEST_CONTROL)
        self._threads = [
            threading.Thread(target=self._serve, args=(data, self._data)),
            threading.Thread(target=self._serve, args=(control, self._control)),
        ]
        for thread in self._threads:
            thread.start()

    def _bind(self, address: str, largest: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, largest)
        socket.bind(address)
        return socket

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, socket: zmq.Socket[bytes], answer: Callable[[bytes, list[bytes]], Replies]) -> None:
        waiting: deque[list[bytes]] = deque()
        with socket:
            while not self._ended.is_set():
                self._expire()
                if not waiting:
                    socket.poll(10)
                while socket.poll(0):
                    message = socket.recv_multipart()
                    if len(waiting) < self._room():
                        waiting.append(message)
                self.most_waiting = max(self.most_waiting, len(waiting))
                if waiting:
                    sender, *frames = waiting.popleft()
                    for message in answer(sender, frames):
                        self._send(socket, sender, message)

    def _send(self, socket: zmq.Socket[bytes], client: bytes, message: list[bytes]) -> None:
        try:
            socket.send_multipart([client, *message])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            with self._lock:
                if client == self._bound:
                    self._free()

    def _room(self) -> int:
        """Messages that may wait."""
        return 1000

    # ---- who has the device -----------------------------------------------------------------

    def _free(self) -> None:
        self._session = self._received = self._finished = self._cancelled = 0
        self._nonce, self._holder, self._welcome = b"", "", {}
        self._bound: bytes | None = None
        self._busy: tuple[int, float] | None = None
        self._readout: dict[str, np.ndarray] = {}
        self._to_safe_state()
        self.freed.set()

    def _to_safe_state(self) -> None:
        self._rest(1)

    def _rest(self, batch: int) -> None:
        self._x, self._step, self._lost = np.zeros((batch, NODES)), 0, False

    def _expire(self) -> None:
        with self._lock:
            if self._session and time.monotonic() > self._until:
                self._free()

    def _is_mine(self, session: object) -> bool:
        mine = bool(self._session) and session == self._session
        if mine:
            self._until = time.monotonic() + self.lease_s
        return mine

    def _control(self, sender: bytes, frames: list[bytes]) -> Replies:
        del sender
        try:
            question = self._read_question(frames)
        except (ValueError, wire.NotThePage):
            self.dropped += 1
            return []
        with self._lock:
            try:
                answer = self._answers(question)
            except Refusal as refusal:
                answer = {"op": "error", **refusal.fields}
        return [[wire.pack_control(message)] for message in self.answer({**answer, "id": question["id"]})]

    def _read_question(self, frames: list[bytes]) -> dict[str, Any]:
        (frame,) = frames
        return wire.unpack_control(frame)

    def _answers(self, question: dict[str, Any]) -> dict[str, Any]:
        match question:
            case {"op": "hello", "versions": list(versions), "client": str(client), "nonce": bytes(nonce)}:
                return self._hello(versions, client, nonce)
            case {"op": "status"}:
                return {"op": "status", "status": self._status()}
            case {"op": "release"}:
                raise Refusal(wire.E_CONFIGURATION, "the device was not hanging")
            case {"op": "ping", "session": int(session)}:
                return {"op": "pong", **self._pong(session)}
            case {"op": "cancel", "session": int(session), "request": int(request)}:
                return self._cancel(session, request)
            case {"op": "goodbye", "session": int(session)}:
                return self._goodbye(session)
        raise Refusal(wire.E_MALFORMED, f"{question['op']} is not understood, or lacks a field")

    def _status(self) -> dict[str, Any]:
        uptime_s = time.monotonic() - self._started
        counters = {"repeated": self.repeated, "dropped": self.dropped}
        return {"device": "leaky", "holder": self._holder or None, "uptime_s": uptime_s, "counters": counters}

    def _pong(self, session: int) -> dict[str, Any]:
        self.pings.release()
        if not self._is_mine(session):
            return {"valid": False, "received": 0, "finished": 0, "busy": None}
        busy = None
        if self._busy is not None:
            request, since = self._busy
            busy = {"request": request, "operation": "RUN", "seconds": time.monotonic() - since}
        return {"valid": True, "received": self._received, "finished": self._finished, "busy": busy}

    def _cancel(self, session: int, request: int) -> dict[str, Any]:
        self._must_be_mine(session)
        self._cancelled = max(self._cancelled, request)
        return {"op": "ok"}

    def _goodbye(self, session: int) -> dict[str, Any]:
        self._must_be_mine(session)
        self._free()
        return {"op": "ok"}

    def _must_be_mine(self, session: int) -> None:
        if not self._is_mine(session):
            raise Refusal(wire.E_NO_SESSION, "this session is over")

    def _hello(self, versions: list[int], client: str, nonce: bytes) -> dict[str, Any]:
        if len(nonce) != 16:
            raise Refusal(wire.E_MALFORMED, f"a nonce of {len(nonce)} bytes")
        common = self.versions & set(versions)
        if not common:
            raise Refusal(wire.E_VERSION, f"this device speaks the versions {sorted(self.versions)}")
        if self._session:
            return self._hello_while_held(nonce)
        self._session = self._new_session()
        self._nonce, self._holder = nonce, client
        self._until = time.monotonic() + self.lease_s
        self.freed.clear()
        self._welcome = {
            "op": "welcome",
            "version": max(common),
            "session": self._session,
            "lease_s": self.lease_s,
            "credits": self.credits,
            "max_frame_bytes": self.max_frame_bytes,
            "server": "a board",
            "device": "a bench leaky 7",
        }
        return self._welcome

    def _hello_while_held(self, nonce: bytes) -> dict[str, Any]:
        if nonce != self._nonce:
            raise Refusal(wire.E_BUSY, f"{self._holder} has this device")
        self._until = time.monotonic() + self.lease_s
        return self._welcome

    def _new_session(self) -> int:
        return secrets.randbits(53) or 1

    # ---- what drives it -----------------------------------------------------------------------

    def _data(self, sender: bytes, frames: list[bytes]) -> Replies:
        try:
            header, crc = self._read_header(frames)
        except wire.NotThePage as error:
            return [wire.pack_data(Header(wire.ERROR), self._error_map(Refusal(wire.E_MALFORMED, str(error))))]
        with self._lock:
            answer = Header(header.operation | wire.REPLY, header.session, header.request)
            try:
                if not self._is_mine(header.session):
                    raise Refusal(wire.E_NO_SESSION, "this session is over")
                if self._bound is None and (header.operation, header.request) == (wire.ATTACH, 1):
                    self._bound = sender
                if sender != self._bound:
                    raise Refusal(wire.E_NO_SESSION, "this session belongs to another connection")
            except Refusal as refusal:
                return self.reply(error_to(answer, header.step), self._error_map(refusal))
            if self._is_copy(header):
                self.repeated += 1
                return []
            missing = header.request - self._received - 1
            self._received, self._busy = header.request, (header.request, time.monotonic())
            self.seen.append(header)
            self.payload_sizes.append(len(frames[1]))
        # Without the lock: the control thread answers while the device is being driven.
        try:
            payload = self._do(header, answer, crc, frames[1], missing)
        except Refusal as refusal:
            losing = header.operation == wire.RUN and bool(header.flags & wire.MORE)
            self._lost |= losing or self._loses_state(refusal.fields["code"])
            answer, payload = error_to(answer, header.step), self._error_map(refusal)
        with self._lock:
            self._finished, self._busy = header.request, None
        self.payload_sizes.append(len(payload))
        return self.reply(answer, payload)

    def _read_header(self, frames: list[bytes]) -> tuple[Header, int]:
        if len(frames) != 2:
            raise wire.NotThePage(f"{len(frames)} frames")
        return wire.unpack_header(frames[0])

    def _is_copy(self, header: Header) -> bool:
        return header.request <= self._received

    def _loses_state(self, code: int) -> bool:
        return code in wire.LOSES_STATE

    def _error_map(self, refusal: Refusal) -> bytes:
        error = {"step": self._step, "steps_done": 0, "states": None, **refusal.fields, "state_lost": self._lost}
        return wire.to_msgpack(error)

    def _do(self, header: Header, answer: Header, crc: int, payload: bytes, missing: int) -> bytes:
        if missing:
            self._refuse_gap(header)
        if not self._payload_fits(payload, crc):
            raise Refusal(wire.E_CHECKSUM, "the payload was damaged on its way")
        if header.request <= self._cancelled:
            raise Refusal(wire.E_CANCELLED, "cancelled")
        operations = {
            wire.ATTACH: self._attach,
            wire.RESET: self._reset,
            wire.RUN: self._run,
            wire.SNAPSHOT: self._snapshot,
            wire.RESTORE: self._restore,
            wire.TRANSITION: self._transition,
            wire.READOUT: self._load_readout,
        }
        if header.operation not in operations:
            raise Refusal(wire.E_NOT_SUPPORTED, f"this device has no operation {header.operation:#04x}")
        self._check_fields(header, payload)
        self.before(header)
        return operations[header.operation](header, answer, payload)

    def _refuse_gap(self, header: Header) -> None:
        raise Refusal(wire.E_SEQUENCE, f"requests are missing before {header.request}")

    def _payload_fits(self, payload: bytes, crc: int) -> bool:
        return wire.crc32c(payload) == crc

    def _check_fields(self, header: Header, payload: bytes) -> None:
        """Fields that the operation does not name are 0."""
        named = NAMED.get(header.operation, set())
        nothing = Header(header.operation, header.session, header.request)
        for name in ("flags", "step", "batch", "steps", "width", "dtype", "scale", "time", "period"):
            if name not in named and getattr(header, name) != getattr(nothing, name):
                raise Refusal(wire.E_MALFORMED, f"{name} is not a field of operation {header.operation:#04x}")
        if header.operation in WITHOUT_PAYLOAD and payload:
            raise Refusal(wire.E_MALFORMED, f"operation {header.operation:#04x} has no payload")

    def _attach(self, header: Header, answer: Header, payload: bytes) -> bytes:
        del answer, payload
        if header.request != 1:
            raise Refusal(wire.E_SEQUENCE, "ATTACH is the first request")
        self._to_safe_state()
        return wire.to_msgpack(self.declaration)

    def _reset(self, header: Header, answer: Header, payload: bytes) -> bytes:
        del payload
        self._check_batch(header.batch)
        self._rest(header.batch)
        answer.batch = header.batch
        return b""

    def _check_batch(self, batch: int) -> None:
        if batch < 1:
            raise Refusal(wire.E_SHAPE, "no sequence")
        if batch > (self.declaration["spec"]["max_batch"] or batch):
            raise Refusal(wire.E_TOO_LARGE, f"not {batch} sequences at once")

    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        self._must_have_state()
        self._check_step(header)
        if header.flags & ~(wire.MORE | wire.OUTPUTS):
            raise Refusal(wire.E_MALFORMED, f"there are no flags {header.flags:#x}")
        if header.flags & wire.MORE and not self.declaration["chunked"]:
            raise Refusal(wire.E_NOT_SUPPORTED, "the whole run in one message, please")
        if header.flags & wire.OUTPUTS and not self._readout:
            raise Refusal(wire.E_CONFIGURATION, "there is no readout")
        if (header.batch, header.width) != (len(self._x), INPUTS) or header.steps < 1:
            raise Refusal(wire.E_SHAPE, f"({header.batch}, {header.steps}, {header.width}) does not fit")
        if 2 * header.batch * header.steps * NODES > self.max_frame_bytes:
            raise Refusal(wire.E_TOO_LARGE, f"the states of {header.steps} steps do not fit into a frame")
        u = self._values(header, payload, "inputs")
        self._check_range(u)
        counts, self._x = integrate(self._x, u)
        self._step += header.steps
        answer.step, answer.batch, answer.steps = header.step, header.batch, header.steps
        answer.flags = header.flags
        if header.flags & wire.OUTPUTS:
            answer.dtype, answer.width = wire.F4, len(self._readout["weights"])
            return self._outputs(counts * STATE_SCALE).astype("<f4").tobytes()
        answer.width = NODES
        answer.dtype, answer.scale = wire.I2, STATE_SCALE
        return counts.tobytes()

    def _must_have_state(self) -> None:
        if self._lost:
            raise Refusal(wire.E_STATE_LOST, "RESET first")

    def _check_step(self, header: Header) -> None:
        if header.step != self._step:
            raise Refusal(wire.E_SEQUENCE, f"step {header.step} came, {self._step} is due")

    def _values(self, header: Header, payload: bytes, encoding: str) -> np.ndarray:
        dtype, scale = self.declaration[encoding]
        if (header.dtype, header.scale) != (dtype, scale):
            raise Refusal(wire.E_MALFORMED, f"dtype and scale are not as {encoding} are declared")
        try:
            return wire.numbers(header, payload) * scale
        except ValueError as error:
            raise Refusal(wire.E_MALFORMED, str(error)) from error

    def _check_range(self, u: np.ndarray) -> None:
        low, high = self.declaration["spec"]["input_range"]
        if not ((low <= u) & (u <= high)).all():
            raise Refusal(wire.E_RANGE, f"inputs outside [{low}, {high}]")

    def _outputs(self, states: np.ndarray) -> np.ndarray:
        return self._readout["scale"] * (states @ self._readout["weights"].T) + self._readout["bias"]

    def _must_declare(self, name: str) -> None:
        if not (self.declaration["readout"] if name == "readout" else self.declaration["spec"].get(name)):
            raise Refusal(wire.E_NOT_SUPPORTED, f"{name} is not declared")

    def _snapshot(self, header: Header, answer: Header, payload: bytes) -> bytes:
        del header, answer, payload
        self._must_declare("snapshot")
        self._must_have_state()
        return wire.pack_named({"x": self._x})

    def _restore(self, header: Header, answer: Header, payload: bytes) -> bytes:
        self._must_declare("snapshot")
        self._check_batch(header.batch)
        arrays = _named(payload)
        if any(array.shape[:1] != (header.batch,) for array in arrays.values()):
            raise Refusal(wire.E_SHAPE, f"not {header.batch} rows")
        if set(arrays) != {"x"} or arrays["x"].shape[1:] != (NODES,):
            raise Refusal(wire.E_CONFIGURATION, "this is no state of this device")
        self._rest(header.batch)
        self._x, self._step = arrays["x"].astype(float), header.step
        answer.batch, answer.step = header.batch, header.step
        return b""

    def _transition(self, header: Header, answer: Header, payload: bytes) -> bytes:
        self._must_declare("settable")
        if header.steps != 1 or header.width != INPUTS + NODES:
            raise Refusal(wire.E_SHAPE, "TRANSITION takes one step of inputs and nodes")
        self._check_batch(header.batch)
        rows = self._values(header, payload, "states")
        counts, _ = integrate(rows[:, 0, INPUTS:], rows[:, :, :INPUTS])
        answer.batch, answer.steps, answer.width = header.batch, 1, NODES
        answer.dtype, answer.scale = self.declaration["states"]
        return counts.tobytes()

    def _load_readout(self, header: Header, answer: Header, payload: bytes) -> bytes:
        del header
        self._must_declare("readout")
        arrays = _named(payload)
        if set(arrays) != {"weights", "scale", "bias"}:
            raise Refusal(wire.E_CONFIGURATION, "a readout is weights, scale and bias")
        weights = arrays["weights"]
        if weights.ndim != 2 or weights.shape[1] != NODES or weights.dtype.str[1:] not in ("i1", "i2", "f4"):
            raise Refusal(wire.E_CONFIGURATION, f"weights are (outputs, {NODES}), int8, int16 or float32")
        if not arrays["scale"].shape == arrays["bias"].shape == weights.shape[:1]:
            raise Refusal(wire.E_CONFIGURATION, "a scale and a bias for each output")
        self._readout = arrays
        answer.width = len(weights)
        return b""


def _named(payload: bytes) -> dict[str, np.ndarray]:
    try:
        return wire.unpack_named(payload)
    except (ValueError, wire.NotThePage) as error:
        raise Refusal(wire.E_MALFORMED, f"no named arrays: {error}") from error


def error_to(answer: Header, step: int = 0) -> Header:
    """The header of the error that is sent in place of `answer`, for a request with this step."""
    return Header(wire.ERROR, answer.session, answer.request, step=step)


def is_run(header: Header) -> bool:
    """Whether this is the reply to a RUN that went well."""
    return header.operation == wire.RUN | wire.REPLY
