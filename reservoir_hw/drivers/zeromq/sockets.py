"""Data messages through a socket, without copies where they are large."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.zeromq.addresses import check_free
from reservoir_hw.drivers.zeromq.frames import LARGEST_CONTROL
from reservoir_hw.drivers.zeromq.security import Allowed, KeyPair

# As numbers: operators of enumerations take microseconds.
_MORE = int(zmq.SNDMORE)
# Below it a copy is quicker than telling another thread when the memory is free again.
ZERO_COPY_BYTES = 1 << 16
# More frames than any message of the protocol has. A message with so many is not one of them.
MOST_FRAMES = 4


def dealer(
    context: zmq.Context[Any], address: str, timeout_s: float, server_key: bytes | None, keys: KeyPair | None
) -> zmq.Socket[bytes]:
    """The client's end of a connection to `address`, not yet connected; sending waits no longer than `timeout_s`.

    It takes frames of the size of control messages, until it is told otherwise.
    """
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_CONTROL)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDTIMEO, int(1000 * timeout_s))
    socket.setsockopt(zmq.IPV6, "[" in address)
    if server_key is not None and keys is not None:
        socket.curve_serverkey = server_key
        socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    return socket


def bind_router(
    socket: zmq.Socket[bytes], address: str, max_frame_bytes: int, allowed: Allowed | None, *, patience_s: float = 0.0
) -> None:
    """Listen at `address` with a new ROUTER, or raise `ConfigurationError`.

    Who has gone is noticed when something is sent there; sending waits no longer than `patience_s`.
    """
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDTIMEO, int(1000 * patience_s))
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.IPV6, "[" in address)
    if allowed is not None:
        allowed.secure(socket)
    check_free(address)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise ConfigurationError(f"cannot listen at {address}: {error.strerror}") from error
    if address.startswith("ipc://"):
        with contextlib.suppress(OSError):
            Path(address.removeprefix("ipc://")).chmod(0o600)


def connect(socket: zmq.Socket[bytes], address: str) -> None:
    """Connect, or raise `ConfigurationError`; that nobody is there is seen later."""
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise ConfigurationError(f"{address} is nothing to connect to: {error.strerror}") from error


def send(socket: zmq.Socket[bytes], header: bytes, payload: Any, *, peer: bytes | None = None) -> None:
    """A header and a payload: bytes, or a C-contiguous array that must stay as it is until it was answered."""
    if peer is not None:
        socket.send(peer, _MORE)
    socket.send(header, _MORE)
    size = len(payload) if isinstance(payload, bytes) else payload.nbytes
    socket.send(payload, copy=size < ZERO_COPY_BYTES)


def send_at_once(socket: zmq.Socket[bytes], frames: list[Any]) -> None:
    """Send a whole message; raises `zmq.Again` if the receiver does not take it now."""
    try:
        socket.send_multipart(frames, zmq.DONTWAIT)
    except zmq.Again:
        # Whether there is room again ZeroMQ looks up when it is asked, but not when it must not wait.
        socket.get(zmq.EVENTS)
        socket.send_multipart(frames, zmq.DONTWAIT)


def receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """The frames of a message, no more than `MOST_FRAMES`. Raises `zmq.Again` if none came in time."""
    try:
        frame = socket.recv(copy=False)
        frames = [frame]
        # Not recv_multipart, which asks the socket for every frame whether there are more.
        while frame.more:
            frame = socket.recv(copy=False)
            if len(frames) < MOST_FRAMES:
                frames.append(frame)
    except KeyboardInterrupt:
        # The next message must begin with its first frame.
        while socket.get(zmq.RCVMORE):
            socket.recv()
        raise
    return frames


def keep_freed_memory() -> None:
    """Have the memory of messages reused.

    glibc gives large blocks back to the system as soon as they are freed, and every message would get its pages anew: a
    third of the time of a long run. It stops doing so for blocks as large as any that it has seen freed, up to 32 MiB.
    """
    np.empty(31 << 20, np.uint8)
