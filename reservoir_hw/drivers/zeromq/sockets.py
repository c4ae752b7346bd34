"""Messages through ZeroMQ sockets, without copies where they are large."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import zmq
import zmq.utils.monitor

from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceTimeout
from reservoir_hw.drivers.zeromq.addresses import check_free
from reservoir_hw.drivers.zeromq.frames import LARGEST_CONTROL
from reservoir_hw.drivers.zeromq.links import Dealer, Gone, Listening, Message, Router
from reservoir_hw.drivers.zeromq.security import KeyPair

# As numbers: operators of enumerations take microseconds.
_MORE = int(zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)
# How often a waiting client looks up whether the device is still there.
LOOK_MS = 100
LINGER_MS = 500
# Below it a copy is quicker than telling another thread when the memory is free again.
ZERO_COPY_BYTES = 1 << 16
# More frames than any message of the protocol has. A message with so many is not one of them.
MOST_FRAMES = 4


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


class ZmqMessage(Message):
    """A message of ZeroMQ."""

    def user_id(self) -> str | None:
        """The key of the sender, if it has shown one."""
        return cast("str | None", self._frames[-1].get("User-Id"))


class ZmqDealer(Dealer):
    """A client's end for `address`. Sending waits no longer than `timeout_s`. A context is closed with its sockets."""

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        timeout_s: float,
        server_key: bytes | None,
        keys: KeyPair | None,
    ) -> None:
        self._address, self._timeout_s, self._has_keys = address, timeout_s, server_key is not None
        self.socket = context.socket(zmq.DEALER)
        # Until `agree`.
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_CONTROL)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, int(1000 * timeout_s))
        self.socket.setsockopt(zmq.RCVTIMEO, LOOK_MS)
        self.socket.setsockopt(zmq.IPV6, "[" in address)
        if server_key is not None and keys is not None:
            self.socket.curve_serverkey = server_key
            self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret

    def reach(self, device: str) -> None:
        """Connect and wait for the handshake; a refused key is told apart from a device that is not there."""
        monitor = self.socket.get_monitor_socket()
        try:
            self.connect()
            until = time.monotonic() + self._timeout_s
            refused = "nobody listens there"
            while True:
                left = until - time.monotonic()
                if left <= 0 or not monitor.poll(max(1, int(1000 * left))):
                    raise DeviceTimeout(
                        f"{device}: no connection within {self._timeout_s:g} s ({refused}; its control socket is "
                        f"{self._address}). Is the server running, and the address right?"
                    )
                match zmq.utils.monitor.recv_monitor_message(monitor)["event"]:
                    case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                        break
                    case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                        raise DeviceDisconnected(
                            f"{device} does not let us in: our public key is not in its list of clients"
                        )
                    case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                        raise DeviceDisconnected(f"{device}: {self._handshake_failure()}")
                    case zmq.EVENT_CONNECTED:
                        refused = f"it accepts connections, but {self._handshake_failure()}"
        finally:
            self.socket.disable_monitor()
            monitor.close()

    def connect(self) -> None:
        """Connect, or raise `ConfigurationError`; that nobody is there is seen later."""
        try:
            self.socket.connect(self._address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"{self._address} is nothing to connect to: {error.strerror}") from error

    def agree(self, welcome: Mapping[str, Any]) -> None:
        """Take frames as large as the device says from now on."""
        self.socket.setsockopt(zmq.MAXMSGSIZE, welcome["max_frame_bytes"])

    def send(self, header: bytes, payload: Any, request: int, came: int) -> None:
        """A data message. Raises `TimeoutError` if nothing goes out."""
        try:
            send(self.socket, header, payload)
        except zmq.Again as error:
            raise TimeoutError from error

    def end_interrupted(self) -> int:
        """End half a message, or send one that nobody understands; a copy of a whole one the device drops."""
        with contextlib.suppress(zmq.Again):
            self.socket.send(b"")
        return 1

    def receive(self) -> Message:
        """The next data message, or `TimeoutError` after a moment."""
        try:
            return ZmqMessage(receive(self.socket))
        except zmq.Again as error:
            raise TimeoutError from error

    def send_control(self, frame: bytes) -> None:
        """A control message; it is lost if nobody takes it."""
        with contextlib.suppress(zmq.Again):
            self.socket.send(frame)

    def receive_control(self, seconds: float) -> bytes:
        """The next control message, or `TimeoutError`."""
        if not self.socket.poll(max(1, int(1000 * seconds))):
            raise TimeoutError
        return self.socket.recv()

    def _handshake_failure(self) -> str:
        if not self._has_keys:
            return "the handshake failed: it asks for keys (security:), or is no device of this protocol"
        return "the handshake failed: it is not the device that security.server_key belongs to, or it uses no keys"


class ZmqRouter(Router):
    """A server's end that listens at `address`, or `ConfigurationError`."""

    def __init__(self, context: zmq.Context[Any], address: str, how: Listening) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.RCVTIMEO, int(1000 * how.idle_s))
        # ZeroMQ would take a thousand messages.
        self._socket.setsockopt(zmq.RCVHWM, how.room)
        self._socket.setsockopt(zmq.SNDHWM, how.room)
        # Who has gone is noticed when something is sent there.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, int(1000 * how.patience_s))
        self._socket.setsockopt(zmq.MAXMSGSIZE, how.max_frame_bytes)
        self._socket.setsockopt(zmq.IPV6, "[" in address)
        if how.allowed is not None:
            how.allowed.secure(self._socket)
        check_free(address)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot listen at {address}: {error.strerror}") from error
        if address.startswith("ipc://"):
            with contextlib.suppress(OSError):
                Path(address.removeprefix("ipc://")).chmod(0o600)

    def receive(self) -> Message:
        """The next message, or `TimeoutError`."""
        events: Any = self._socket.get(zmq.EVENTS)
        try:
            peer, *frames = receive(self._socket)
        except zmq.Again as error:
            raise TimeoutError from error
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        return ZmqMessage(frames, peer.bytes, waited=bool(events & _POLLIN))

    def memory(self, request: int, size: int) -> np.ndarray | None:
        """Bytes for the payload of a reply: those of a device may be used again before they are sent."""
        return np.empty(size, np.uint8) if size >= ZERO_COPY_BYTES else None

    def send(self, peer: Any, header: bytes, payload: Any, request: int) -> None:
        """A message to the client that is attached. Raises `TimeoutError`, and `Gone` with the peer."""
        try:
            send(self._socket, header, payload, peer=peer)
        except zmq.Again as error:
            raise TimeoutError("nobody takes it") from error
        except zmq.ZMQError as error:
            raise Gone(peer) from error

    def send_at_once(self, peer: Any, *frames: bytes) -> None:
        """A control frame, or a header and a payload, to anybody; what is not taken now is lost."""
        with contextlib.suppress(zmq.ZMQError):
            send_at_once(self._socket, [peer, *frames])

    def hurry(self) -> None:
        """From now on `send` waits for nobody."""
        self._socket.setsockopt(zmq.SNDTIMEO, 0)

    def close(self) -> None:
        """What was answered last still gets a moment to leave."""
        self._socket.close(linger=LINGER_MS)


def keep_freed_memory() -> None:
    """Have the memory of messages reused.

    glibc gives large blocks back to the system as soon as they are freed, and every message would get its pages anew: a
    third of the time of a long run. It stops doing so for blocks as large as any that it has seen freed, up to 32 MiB.
    """
    with contextlib.suppress(MemoryError):
        np.empty(31 << 20, np.uint8)
