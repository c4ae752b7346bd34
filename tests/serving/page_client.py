"""A client of the device protocol, written from docs/protocol.md alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import msgpack
import numpy as np
import zmq

from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header

PATIENCE_S = 10.0


def receive_within(socket: zmq.Socket[bytes], seconds: float) -> list[bytes] | None:
    """The frames of the next message, or None if none came in time."""
    return socket.recv_multipart() if socket.poll(round(seconds * 1000)) else None


class Refused(Exception):
    """The device answered with an error."""

    def __init__(self, error: Mapping[str, Any], header: Header | None = None) -> None:
        super().__init__(f"{error['code']}: {error['text']}")
        self.error = error
        self.code: int = error["code"]
        self.text: str = error["text"]
        self.header = header


class LostMessage(Exception):
    """Something on its way to the device or back did not arrive."""


class PageClient:
    """One session, from one thread. Nothing is sent that the caller did not ask for, save pings while it waits."""

    def __init__(self, address: str, name: str = "page client") -> None:
        self.name = name
        self.nonce = secrets.token_bytes(16)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.data = self._connect(address)
        self.control = self._connect(wire.control_address(address))
        self.session = 0
        self.request = 0
        self.awaited = 1
        self.step = 0
        self.batch = 1
        self.welcome: dict[str, Any] = {}
        self.declaration: dict[str, Any] = {}
        self._asked = 0

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(address)
        return socket

    def close(self) -> None:
        self.data.close()
        self.control.close()
        self.context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- control ----------------------------------------------------------------------------

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self._asked += 1
        self.control.send(wire.pack_control({"op": op, "id": self._asked, **fields}))
        deadline = time.monotonic() + PATIENCE_S
        while (left := deadline - time.monotonic()) > 0:
            frames = receive_within(self.control, left)
            if frames is None:
                break
            (frame,) = frames
            reply = wire.unpack_control(frame)
            if reply["id"] != self._asked:
                continue
            if reply["op"] == "error":
                raise Refused(reply)
            return reply
        raise TimeoutError(f"no answer to {op}")

    def hello(self, versions: Sequence[int] = (1,)) -> dict[str, Any]:
        welcome = self.ask("hello", versions=list(versions), client=self.name, nonce=self.nonce)
        assert welcome["op"] == "welcome"
        self.welcome = welcome
        if welcome["session"] != self.session:
            self.session, self.request, self.awaited = welcome["session"], 0, 1
        return welcome

    def ping(self) -> dict[str, Any]:
        return self.ask("ping", session=self.session)

    def status(self) -> dict[str, Any]:
        reply = self.ask("status")
        assert reply["op"] == "status"
        return reply["status"]

    def cancel(self, request: int) -> None:
        assert self.ask("cancel", session=self.session, request=request)["op"] == "ok"

    def goodbye(self) -> None:
        assert self.ask("goodbye", session=self.session)["op"] == "ok"

    # ---- data -------------------------------------------------------------------------------

    def head(self, operation: int, **fields: Any) -> Header:
        """The header of the next request."""
        return Header(operation, self.session, self.request + 1, **fields)

    def put(self, header: Header, payload: bytes = b"") -> Header:
        self.data.send_multipart(wire.pack_data(header, payload))
        self.request = max(self.request, header.request)
        return header

    def take(self) -> tuple[Header, bytes]:
        """The next message from the device, whatever it is; pings while there is none."""
        pause = self.welcome.get("lease_s", PATIENCE_S) / 3
        deadline = time.monotonic() + PATIENCE_S
        idle = 0
        while time.monotonic() < deadline:
            frames = receive_within(self.data, pause)
            if frames is not None:
                return wire.unpack_data(frames)
            pong = self.ping()
            # Twice: the reply may have been on its way while the first pong was written.
            idle = 0 if pong["busy"] else idle + 1
            if idle == 2:
                raise LostMessage(f"nothing for request {self.awaited}: {pong}")
        raise TimeoutError(f"request {self.awaited} was not answered")

    def reply(self, request: Header) -> tuple[Header, bytes]:
        """The reply that is due, to `request`; its errors raised."""
        while True:
            header, payload = self.take()
            if 0 < header.request < request.request:
                continue
            if header.operation == wire.ERROR:
                self.awaited = max(self.awaited, header.request + 1)
                raise Refused(msgpack.unpackb(payload), header)
            if header.request != request.request:
                raise LostMessage(f"reply {header.request} came, {request.request} is due")
            assert header.session == self.session
            assert header.operation == request.operation | wire.REPLY
            self.awaited = header.request + 1
            return header, payload

    def call(self, operation: int, payload: bytes = b"", **fields: Any) -> tuple[Header, bytes]:
        return self.reply(self.put(self.head(operation, **fields), payload))

    def attach(self) -> dict[str, Any]:
        header, payload = self.call(wire.ATTACH)
        assert replace(header, operation=0, session=0, request=0) == Header(0), "no field of ATTACH is named"
        self.declaration = msgpack.unpackb(payload)
        self.step, self.batch = 0, 1
        return self.declaration

    def reset(self, batch: int = 1) -> None:
        header, payload = self.call(wire.RESET, batch=batch)
        assert (header.batch, payload) == (batch, b"")
        self.step, self.batch = 0, batch

    def run_header(self, u: np.ndarray, *, flags: int = 0, step: int | None = None) -> tuple[Header, bytes]:
        """RUN as the declaration wants it. `u`: (batch, steps, inputs)."""
        dtype, scale = self.declaration["inputs"]
        raw = u if scale == 1 else np.rint(u / scale)
        batch, steps, width = u.shape
        at = self.step if step is None else step
        header = self.head(
            wire.RUN, step=at, batch=batch, steps=steps, width=width, dtype=dtype, scale=scale, flags=flags
        )
        return header, raw.astype(wire.NUMBERS[dtype]).tobytes()

    def send_run(self, u: np.ndarray, *, flags: int = 0) -> Header:
        header = self.put(*self.run_header(u, flags=flags))
        self.step += u.shape[1]
        return header

    def states(self, request: Header) -> np.ndarray:
        """The states that answer a RUN."""
        header, payload = self.reply(request)
        assert (header.step, header.batch, header.steps) == (request.step, request.batch, request.steps)
        return self.scaled(header, payload)

    def scaled(self, header: Header, payload: bytes) -> np.ndarray:
        raw = wire.numbers(header, payload)
        if header.scale == 1 and raw.dtype.kind == "f":
            return raw
        return (raw * header.scale).astype(self.declaration["spec"].get("dtype", "float32"))

    def run(self, u: np.ndarray, *, flags: int = 0) -> np.ndarray:
        return self.states(self.send_run(u, flags=flags))

    def run_chunks(self, chunks: Sequence[np.ndarray], *, flags: int = 0) -> list[np.ndarray]:
        """One run in several messages, as many under way as there are credits."""
        waiting: list[Header] = []
        states = []
        for index, chunk in enumerate(chunks):
            if len(waiting) == self.welcome["credits"]:
                states.append(self.states(waiting.pop(0)))
            waiting.append(self.send_run(chunk, flags=flags | (wire.MORE if index + 1 < len(chunks) else 0)))
        return [*states, *(self.states(header) for header in waiting)]

    def snapshot(self) -> dict[str, np.ndarray]:
        header, payload = self.call(wire.SNAPSHOT)
        assert header.dtype == wire.NONE
        return wire.unpack_named(payload)

    def restore(self, arrays: Mapping[str, np.ndarray], *, batch: int, step: int) -> None:
        header, payload = self.call(wire.RESTORE, wire.pack_named(arrays), batch=batch, step=step)
        assert (header.batch, payload) == (batch, b"")
        self.step, self.batch = step, batch

    def upload(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        self.declaration = msgpack.unpackb(self.call(wire.UPLOAD, wire.pack_named(arrays))[1])
        return self.declaration

    def readout(self, weights: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> None:
        header, payload = self.call(wire.READOUT, wire.pack_named({"weights": weights, "scale": scale, "bias": bias}))
        assert (header.width, payload) == (len(weights), b"")

    def transition(self, u: np.ndarray, states: np.ndarray, dtype: int) -> np.ndarray:
        beside = np.concatenate([u, states], axis=1)
        batch, width = beside.shape
        bytes_ = beside.astype(wire.NUMBERS[dtype]).tobytes()
        header, payload = self.call(wire.TRANSITION, bytes_, batch=batch, steps=1, width=width, dtype=dtype)
        assert (header.batch, header.steps) == (batch, 1)
        return self.scaled(header, payload)[:, 0]
