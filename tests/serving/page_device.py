"""A device, written from docs/protocol.md alone: four leaky integrators behind int16 fixed point."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import zmq

from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header

INPUTS, NODES = 2, 4
INPUT_SCALE, STATE_SCALE = 2.0**-14, 2.0**-12
WEIGHTS = np.array([[0.5, -0.25], [1.0, 0.5], [-0.75, 0.125], [0.0, 1.0]])
LEAK = np.array([0.5, 0.25, 0.125, 0.75])

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


class PageDevice:
    """Serves until it is closed: one thread for the data, one for the control messages.

    `reply` makes the messages of one reply; a test replaces it by one that misbehaves. `before` is called
    with each request that is in order, and may raise a `Refusal`.
    """

    def __init__(self, address: str, *, lease_s: float = 3.0, credits: int = 4, **declared: Any) -> None:
        self.lease_s, self.credits = lease_s, credits
        self.max_frame_bytes = int(declared.pop("max_frame_bytes", 1 << 20))
        self.versions = {1}
        spec = {"inputs": INPUTS, "nodes": NODES, "input_range": [-1.0, 1.0], "max_batch": 3, "continuity": "held"}
        identity = {"vendor": "a bench", "model": "leaky", "simulated": False, "serial": "7"}
        self.declaration: dict[str, Any] = {
            "spec": {**spec, "identity": identity, "dtype": "float32", "deterministic": True},
            "inputs": [wire.I2, INPUT_SCALE],
            "states": [wire.I2, STATE_SCALE],
            "chunked": True,
            "readout": False,
            **declared,
        }
        self.reply: Callable[[Header, bytes], Replies] = lambda header, payload: [wire.pack_data(header, payload)]
        self.before: Callable[[Header], None] = lambda header: None
        self.answer: Callable[[dict[str, Any]], list[dict[str, Any]]] = lambda message: [message]
        self.seen: list[Header] = []
        self.payload_sizes: list[int] = []
        self.pings = threading.Semaphore(0)
        self.freed = threading.Event()
        self.repeated = self.dropped = self.most_waiting = 0

        self._lock = threading.Lock()
        self._free()
        self._ended = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        data, control = self._bind(address), self._bind(wire.control_address(address))
        self._threads = [
            threading.Thread(target=self._serve, args=(data, self._data)),
            threading.Thread(target=self._serve, args=(control, self._control)),
        ]
        for thread in self._threads:
            thread.start()

    def _bind(self, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, self.max_frame_bytes)
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
                    waiting.append(socket.recv_multipart())
                self.most_waiting = max(self.most_waiting, len(waiting))
                if waiting:
                    sender, *frames = waiting.popleft()
                    for message in answer(sender, frames):
                        socket.send_multipart([sender, *message])

    # ---- who has the device -----------------------------------------------------------------

    def _free(self) -> None:
        self._session = self._received = self._finished = self._cancelled = 0
        self._nonce, self._holder, self._welcome = b"", "", {}
        self._bound: bytes | None = None
        self._busy: tuple[int, float] | None = None
        self._rest(1)
        self.freed.set()

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
        try:
            (frame,) = frames
            question = wire.unpack_control(frame)
        except (ValueError, wire.NotThePage):
            self.dropped += 1
            return []
        with self._lock:
            try:
                answer = self._answers(question)
            except Refusal as refusal:
                answer = {"op": "error", **refusal.fields}
            except KeyError as missing:
                answer = {"op": "error", "code": wire.E_MALFORMED, "text": f"{question['op']} without {missing}"}
        return [[wire.pack_control(message)] for message in self.answer({**answer, "id": question["id"]})]

    def _answers(self, question: dict[str, Any]) -> dict[str, Any]:
        op = question["op"]
        if op == "hello":
            return self._hello(question)
        if op == "status":
            device = {"device": "leaky", "holder": self._holder, "counters": {"repeated": self.repeated}}
            return {"op": "status", "status": device}
        if op == "ping":
            self.pings.release()
            valid = self._is_mine(question["session"])
            busy = None
            if self._busy is not None and valid:
                request, since = self._busy
                busy = {"request": request, "operation": "RUN", "seconds": time.monotonic() - since}
            numbers = (self._received, self._finished) if valid else (0, 0)
            return {"op": "pong", "valid": valid, "received": numbers[0], "finished": numbers[1], "busy": busy}
        if op not in ("cancel", "goodbye"):
            raise Refusal(wire.E_NOT_SUPPORTED, f"{op} is not understood")
        if not self._is_mine(question["session"]):
            raise Refusal(wire.E_NO_SESSION, "this session is over")
        if op == "cancel":
            self._cancelled = max(self._cancelled, question["request"])
        else:
            self._free()
        return {"op": "ok"}

    def _hello(self, question: dict[str, Any]) -> dict[str, Any]:
        common = self.versions & set(question["versions"])
        if not common:
            raise Refusal(wire.E_VERSION, f"this device speaks the versions {sorted(self.versions)}")
        if self._session:
            if question["nonce"] != self._nonce:
                raise Refusal(wire.E_BUSY, f"{self._holder} has this device")
            self._until = time.monotonic() + self.lease_s
            return self._welcome
        self._session = secrets.randbits(63) + 1
        self._nonce, self._holder = question["nonce"], question["client"]
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

    # ---- what drives it -----------------------------------------------------------------------

    def _data(self, sender: bytes, frames: list[bytes]) -> Replies:
        try:
            header, crc = wire.unpack_header(frames[0])
            if len(frames) != 2:
                raise wire.NotThePage(f"{len(frames)} frames")
        except wire.NotThePage as error:
            fields = {"code": wire.E_MALFORMED, "text": str(error), "state_lost": False}
            return [wire.pack_data(Header(wire.ERROR), wire.to_msgpack(fields))]
        with self._lock:
            answer = Header(header.operation | wire.REPLY, header.session, header.request)
            try:
                if not self._is_mine(header.session):
                    raise Refusal(wire.E_NO_SESSION, "this session is over")
                if self._bound is None and (header.operation, header.request) == (wire.ATTACH, 1):
                    self._bound = sender
                if sender != self._bound:
                    raise Refusal(wire.E_NO_SESSION, "this session belongs to another connection")
                if header.request <= self._received:
                    self.repeated += 1
                    return []
                missing = header.request - self._received - 1
                self._received, self._busy = header.request, (header.request, time.monotonic())
                self.seen.append(header)
                self.payload_sizes.append(len(frames[1]))
            except Refusal as refusal:
                return self.reply(error_to(answer), wire.to_msgpack(refusal.fields))
        # Without the lock: the control thread answers while the device is being driven.
        try:
            payload = self._do(header, answer, crc, frames[1], missing)
        except Refusal as refusal:
            losing = header.operation == wire.RUN and header.flags & wire.MORE
            self._lost |= bool(losing) or refusal.fields["code"] in wire.LOSES_STATE
            error = {"step": self._step, "steps_done": 0, "states": None, **refusal.fields, "state_lost": self._lost}
            answer, payload = error_to(answer), wire.to_msgpack(error)
        with self._lock:
            self._finished, self._busy = header.request, None
        self.payload_sizes.append(len(payload))
        return self.reply(answer, payload)

    def _do(self, header: Header, answer: Header, crc: int, payload: bytes, missing: int) -> bytes:
        if missing:
            raise Refusal(wire.E_SEQUENCE, f"{missing} requests are missing before {header.request}")
        if wire.crc32c(payload) != crc:
            raise Refusal(wire.E_CHECKSUM, "the payload was damaged on its way")
        if header.request <= self._cancelled:
            raise Refusal(wire.E_CANCELLED, "cancelled")
        self.before(header)
        if header.operation == wire.ATTACH:
            self._rest(1)
            return wire.to_msgpack(self.declaration)
        if header.operation == wire.RESET:
            return self._reset(header, answer)
        if header.operation == wire.RUN:
            return self._run(header, answer, payload)
        raise Refusal(wire.E_NOT_SUPPORTED, f"this device has no operation {header.operation:#04x}")

    def _reset(self, header: Header, answer: Header) -> bytes:
        if header.batch < 1:
            raise Refusal(wire.E_SHAPE, "a reset to no sequence")
        if header.batch > (self.declaration["spec"]["max_batch"] or header.batch):
            raise Refusal(wire.E_TOO_LARGE, f"not {header.batch} sequences at once")
        self._rest(header.batch)
        answer.batch = header.batch
        return b""

    def _run(self, header: Header, answer: Header, payload: bytes) -> bytes:
        if self._lost:
            raise Refusal(wire.E_STATE_LOST, "RESET first")
        if header.step != self._step:
            raise Refusal(wire.E_SEQUENCE, f"step {header.step} came, {self._step} is due")
        if header.flags & wire.OUTPUTS:
            raise Refusal(wire.E_NOT_SUPPORTED, "there is no readout")
        if (header.batch, header.width) != (len(self._x), INPUTS) or header.steps < 1:
            raise Refusal(wire.E_SHAPE, f"({header.batch}, {header.steps}, {header.width}) does not fit")
        dtype, scale = self.declaration["inputs"]
        if (header.dtype, header.scale) != (dtype, scale):
            raise Refusal(wire.E_MALFORMED, "inputs are not as declared")
        try:
            counts = wire.numbers(header, payload)
        except ValueError as error:
            raise Refusal(wire.E_MALFORMED, str(error)) from error
        u = counts * scale
        low, high = self.declaration["spec"]["input_range"]
        if not ((low <= u) & (u <= high)).all():
            raise Refusal(wire.E_RANGE, f"inputs outside [{low}, {high}]")
        states, self._x = integrate(self._x, u)
        answer.step, answer.batch, answer.steps, answer.width = header.step, header.batch, header.steps, NODES
        answer.dtype, answer.scale = self.declaration["states"]
        answer.flags = header.flags
        self._step += header.steps
        return states.tobytes()


def error_to(answer: Header) -> Header:
    """The header of the error that is sent in place of `answer`."""
    return Header(wire.ERROR, answer.session, answer.request)


def is_run(header: Header) -> bool:
    """Whether this is the reply to a RUN that went well."""
    return header.operation == wire.RUN | wire.REPLY
