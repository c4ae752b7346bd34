"""The client's end of the control socket: questions and their answers."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.utils.monitor

from reservoir_hw.core.errors import DeviceDisconnected, DeviceTimeout, ProtocolError
from reservoir_hw.core.lock_files import user_name
from reservoir_hw.drivers.error_codes import exception_of
from reservoir_hw.drivers.texts import shown
from reservoir_hw.drivers.zeromq.frames import VERSION, pack_control, unpack_control
from reservoir_hw.drivers.zeromq.sockets import connect

log = logging.getLogger(__name__)

ON = " on "
"""Between the user and the host in what a client says about itself."""


# Fields of a welcome, their types, and the largest values that make sense.
_WELCOME: dict[str, tuple[tuple[type, ...], float]] = {
    "session": ((int,), (1 << 64) - 1),
    "lease_s": ((int, float), 86400),
    "credits": ((int,), 1 << 16),
    "max_frame_bytes": ((int,), 1 << 40),
}


@dataclass
class Incidents:
    """What this end saw that should not happen."""

    repeated: int = 0
    stale: int = 0
    damaged: int = 0


class Control:
    """Asks a device on its control socket, from any thread.

    Args:
        socket: Not yet connected.
        address: Where the device answers questions.
        device: The address that names the device in messages.
        timeout_s: How long to wait for a connection, and for an answer.
        has_keys: Whether the socket shows a key.
        incidents: Counts what should not happen.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        address: str,
        *,
        device: str,
        timeout_s: float,
        has_keys: bool,
        incidents: Incidents,
    ) -> None:
        self.address = address
        self._socket, self._device, self._timeout_s = socket, device, timeout_s
        self._has_keys, self._incidents = has_keys, incidents
        self._guard = threading.Lock()
        self._question = 0

    def connect(self) -> None:
        """Connect; a refused key is told apart from a device that is not there."""
        monitor = self._socket.get_monitor_socket()
        try:
            connect(self._socket, self.address)
            until = time.monotonic() + self._timeout_s
            refused = "nobody listens there"
            while True:
                left = until - time.monotonic()
                if left <= 0 or not monitor.poll(max(1, int(1000 * left))):
                    raise DeviceTimeout(
                        f"{self._device}: no connection within {self._timeout_s:g} s ({refused}; its control socket is "
                        f"{self.address}). Is the server running, and the address right?"
                    )
                event = zmq.utils.monitor.recv_monitor_message(monitor)
                match event["event"]:
                    case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                        break
                    case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                        raise DeviceDisconnected(
                            f"{self._device} does not let us in: our public key is not in its list of clients"
                        )
                    case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                        raise DeviceDisconnected(f"{self._device}: {self._handshake_failure()}")
                    case zmq.EVENT_CONNECTED:
                        refused = f"it accepts connections, but {self._handshake_failure()}"
        finally:
            self._socket.disable_monitor()
            monitor.close()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One question on the control socket and its answer."""
        with self._guard:
            self._question += 1
            number = self._question
            with contextlib.suppress(zmq.Again):
                self._socket.send(pack_control({"op": op, "id": number, **fields}))
            until = time.monotonic() + self._timeout_s
            while (left := until - time.monotonic()) > 0:
                if not self._socket.poll(max(1, int(1000 * left))):
                    break
                try:
                    reply = unpack_control(self._socket.recv())
                except ProtocolError as error:
                    self._incidents.damaged += 1
                    log.warning("a control message was dropped: %s", error)
                    continue
                if reply["id"] != number:
                    self._incidents.stale += 1
                    continue
                log.debug("control: %s %s -> %s", op, fields, reply)
                if reply["op"] == "error":
                    raise exception_of(reply.get("code", 0), f"{self._device}: {shown(str(reply.get('text')))}")
                return reply
        raise DeviceTimeout(
            f"{self._device}: no answer to {op!r} within {self._timeout_s:g} s. Is the server running, and "
            "the network up?"
        )

    def hello(self) -> dict[str, Any]:
        """Ask for the device; the welcome."""
        reply = self.ask("hello", versions=[VERSION], client=_who(), nonce=os.urandom(16))
        if reply["op"] != "welcome" or reply.get("version") != VERSION:
            raise ProtocolError(f"{self._device}: instead of a welcome with version {VERSION} came {shown(str(reply))}")
        for name, (kinds, most) in _WELCOME.items():
            value: Any = reply.get(name)
            if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value <= most:
                raise ProtocolError(f"{self._device}: the welcome has {name} {value!r}, which cannot be")
        return reply

    def status(self) -> dict[str, Any]:
        """What the device tells everybody about itself."""
        status = self.ask("status").get("status")
        if not isinstance(status, dict):
            raise ProtocolError(f"{self._device}: it was asked for its status, and its answer has no status")
        return {shown(name): shown(value) if isinstance(value, str) else value for name, value in status.items()}

    def ping(self, session: int) -> dict[str, Any]:
        """What the device says about the session: valid, finished, busy."""
        pong = self.ask("ping", session=session)
        match pong:
            case {
                "valid": bool(),
                "finished": int(),
                "busy": None | {"operation": str(), "seconds": int() | float()},
            }:
                return pong
        raise ProtocolError(f"{self._device}: {pong} is no answer to a ping")

    def _handshake_failure(self) -> str:
        if not self._has_keys:
            return "the handshake failed: it asks for keys (security:), or is no device of this protocol"
        return "the handshake failed: it is not the device that security.server_key belongs to, or it uses no keys"


def _who() -> str:
    return f"{user_name()}{ON}{platform.node()} (process {os.getpid()})"
