"""What is asked on the control socket, and answered beside the device: hello, ping, cancel, goodbye, status."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reservoir_hw.core.errors import ProtocolError
from reservoir_hw.core.locks import reserved_for_another
from reservoir_hw.drivers.codes import Code, Refusal, printable
from reservoir_hw.drivers.zeromq.control import ON
from reservoir_hw.drivers.zeromq.frames import VERSION, pack_control, unpack_control
from reservoir_hw.drivers.zeromq.links import Gone, Message, Router
from reservoir_hw.drivers.zeromq.security import Allowed
from reservoir_hw.serving.lease import FewLines, Lease, Watchdog

log = logging.getLogger(__name__)
log.addFilter(FewLines())

NONCE_BYTES = 16


@dataclass
class Control:
    """Answers until `at_rest` is set, also while the device is busy; after `stop` nobody is let in.

    `terms` is what a client is told when it is let in: device, credits, max_frame_bytes. Nobody is let in while another
    user has the device reserved. `checksums` is whether payloads must have them.
    """

    router: Router
    lease: Lease
    terms: Mapping[str, Any]
    status: Callable[[], dict[str, Any]]
    allowed: Allowed | None
    stop: threading.Event
    at_rest: threading.Event
    watchdog: Watchdog
    checksums: bool
    # Where the session began, and its number.
    _holder: Hashable = field(default=None, init=False)
    _session: int = field(default=0, init=False)

    def serve(self) -> None:
        """The control thread: it touches no device."""
        while not self.at_rest.is_set():
            self.watchdog.look()
            try:
                message = self.router.receive()
            except TimeoutError:
                continue
            except Gone as gone:
                if gone.peer == self._holder and self.lease.end(self._session):
                    log.warning("the client has gone: its session has ended", extra={"event": "gone"})
                continue
            except OSError:
                break
            try:
                self._answer(message)
            except Exception:
                log.exception("a control message could not be answered")

    def _answer(self, received: Message) -> None:
        try:
            message = unpack_control(received.control())
        except ProtocolError as error:
            self.lease.traffic.damaged += 1
            log.warning("a control message was dropped: %s", error, extra={"event": "dropped"})
            return
        try:
            reply = self._control_reply(message, received)
            packed = pack_control({**reply, "id": message["id"]})
        except Exception as error:
            if not isinstance(error, Refusal):
                # Also what cannot be packed: a device may have put anything into its counters.
                log.exception("control message %s", message.get("op"))
                error = Refusal(Code.INTERNAL, "a bug in the server: see its log")
            reply = {"op": "error", "code": int(error.code), "text": str(error)}
            packed = pack_control({**reply, "id": message["id"]})
        log.debug("control: %s -> %s", message, reply)
        self.router.send_at_once(received.peer, packed)

    def _control_reply(self, message: dict[str, Any], received: Message) -> dict[str, Any]:
        match message:
            case {"op": "hello"}:
                return self._welcome(message, received)
            case {"op": "status"}:
                return {"op": "status", "status": self.status()}
            case {"op": "ping", "session": int(session)}:
                return {"op": "pong", **self.lease.pong(session)}
            case {"op": "cancel", "session": int(session), "request": int(request)}:
                self._must_hold(session)
                self.lease.cancel(request)
                return {"op": "ok"}
            case {"op": "goodbye", "session": int(session)}:
                self._must_hold(session)
                log.info("%s says goodbye", self.lease.holder(), extra={"event": "goodbye"})
                self.lease.end()
                return {"op": "ok"}
            case {"op": "release"}:
                self.watchdog.release()
                return {"op": "ok"}
        raise Refusal(Code.MALFORMED, f"{message['op'][:50]!r} is no control message, or its fields are missing")

    def _must_hold(self, session: int) -> None:
        if not self.lease.heard(session):
            raise Refusal(Code.NO_SESSION, "this session does not hold the device")

    def _welcome(self, message: dict[str, Any], received: Message) -> dict[str, Any]:
        versions, client, nonce = (message.get(key) for key in ("versions", "client", "nonce"))
        if not isinstance(versions, list) or not isinstance(client, str) or not isinstance(nonce, bytes):
            raise Refusal(Code.MALFORMED, "hello needs versions (list), client (text) and nonce (16 bytes)")
        if len(nonce) != NONCE_BYTES:
            raise Refusal(Code.MALFORMED, f"the nonce of hello has {NONCE_BYTES} bytes, not {len(nonce)}")
        if VERSION not in versions:
            raise Refusal(
                Code.VERSION, f"this device speaks version {VERSION} of the protocol, the client {versions[:20]}"
            )
        if self.stop.is_set():
            raise Refusal(Code.SHUTTING_DOWN, "the server is shutting down")
        where = f"{self.terms['device']} at {self.status()['address']}"
        user = client.partition(ON)[0] if self.allowed is None else self.allowed.name_of(received.user_id())
        if reserved := reserved_for_another(self.watchdog.reservoir.resources, user):
            raise Refusal(Code.BUSY, f"{where}: {printable(reserved)}, and this client is {printable(user[:200])}")
        if self.watchdog.problem is not None:
            raise Refusal(Code.DEVICE_FAULT, f"{where}: {self.watchdog.problem}")
        terms = self.router.agreed(message, self.terms["credits"], checksums=self.checksums)
        session = self.lease.grant(printable(client[:200]), nonce, terms)
        if not session:
            raise Refusal(Code.BUSY, f"{where} is in use by {self.lease.holder()}")
        self._holder, self._session = received.peer, session
        log.info("%s has the device", self.lease.holder(), extra={"event": "leased"})
        return {
            "op": "welcome",
            "version": VERSION,
            "session": session,
            "lease_s": self.lease.lease_s,
            "server": f"reservoir_hw on {platform.node()}",
            **self.terms,
            **self.router.told(self.lease.terms),
        }
