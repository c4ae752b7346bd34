"""The client's end of the control socket: questions and their answers."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from reservoir_hw.core.errors import DeviceDisconnected, DeviceTimeout, ProtocolError
from reservoir_hw.core.locks import user_name
from reservoir_hw.drivers.codes import exception_of, shown
from reservoir_hw.drivers.zeromq.frames import VERSION, pack_control, unpack_control
from reservoir_hw.drivers.zeromq.links import Dealer, Gone

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


@dataclass
class Control:
    """Asks a device on its control socket, from any thread.

    Args:
        dealer: Connected.
        device: The address that names the device in messages.
        timeout_s: How long to wait for a connection, and for an answer.
    """

    dealer: Dealer
    device: str
    timeout_s: float
    incidents: Incidents = field(default_factory=Incidents)
    """What came and should not have."""
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)
    _question: int = field(default=0, init=False)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One question on the control socket and its answer."""
        with self._guard:
            self._question += 1
            try:
                reply = self._answer_to({"op": op, "id": self._question, **fields})
            except TimeoutError as error:
                raise DeviceTimeout(
                    f"{self.device}: no answer to {op!r} within {self.timeout_s:g} s. Is the server running, and "
                    "the network up?"
                ) from error
            except Gone as error:
                raise DeviceDisconnected(
                    f"{self.device}: its control socket was closed: has the server ended?"
                ) from error
        log.debug("control: %s %s -> %s", op, fields, reply)
        if reply["op"] == "error":
            raise exception_of(reply.get("code", 0), f"{self.device}: {shown(str(reply.get('text')))}")
        return reply

    def _answer_to(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises `TimeoutError` and `Gone`."""
        until = time.monotonic() + self.timeout_s
        self.dealer.send_control(pack_control(question))
        while (left := until - time.monotonic()) > 0:
            try:
                reply = unpack_control(self.dealer.receive_control(left))
            except ProtocolError as error:
                self.incidents.damaged += 1
                log.warning("a control message was dropped: %s", error)
                continue
            if reply["id"] == question["id"]:
                return reply
            self.incidents.stale += 1
        raise TimeoutError

    def hello(self, **wishes: Any) -> dict[str, Any]:
        """Ask for the device; the welcome."""
        who = f"{user_name()}{ON}{platform.node()} (process {os.getpid()})"
        reply = self.ask("hello", versions=[VERSION], client=who, nonce=os.urandom(16), **wishes)
        if reply["op"] != "welcome" or reply.get("version") != VERSION:
            raise ProtocolError(f"{self.device}: instead of a welcome with version {VERSION} came {shown(str(reply))}")
        for name, (kinds, most) in _WELCOME.items():
            value: Any = reply.get(name)
            if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value <= most:
                raise ProtocolError(f"{self.device}: the welcome has {name} {value!r}, which cannot be")
        return reply

    def status(self) -> dict[str, Any]:
        """What the device tells everybody about itself."""
        status = self.ask("status").get("status")
        if not isinstance(status, dict):
            raise ProtocolError(f"{self.device}: it was asked for its status, and its answer has no status")
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
        raise ProtocolError(f"{self.device}: {pong} is no answer to a ping")
