"""Who has the device, and how far it is: what the two threads of a server share."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from reservoir_hw.drivers.zeromq.frames import Header, name_of
from reservoir_hw.drivers.zeromq.links import Terms


@dataclass
class Traffic:
    """What a server saw since it started."""

    clients: int = 0
    requests: int = 0
    errors: int = 0
    repeated: int = 0
    damaged: int = 0
    foreign: int = 0
    expired_leases: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


@dataclass
class Work:
    """The request that the device is busy with."""

    header: Header
    started: float = field(default_factory=time.monotonic)


class Lease:
    """One client at a time, for as long as it is heard of. Every method may be called by either thread."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.traffic = Traffic()
        self._guard = threading.Lock()
        self.number = 0
        """The session that holds the device, 0 if none does."""
        self.work: Work | None = None
        """What the device is busy with."""
        self.terms = Terms()
        """What the session has agreed on."""
        self._holder = ""
        self._nonce = b""
        self._since = 0.0
        self._heard = 0.0
        self._received = 0
        self._finished = 0
        self._cancelled = 0

    def grant(self, client: str, nonce: bytes, terms: Terms) -> int:
        """A new session, or the one that this client has already; 0 if another holds the device."""
        with self._guard:
            if self.number and nonce != self._nonce:
                return 0
            if not self.number:
                # Every language has whole numbers up to there.
                self.number = secrets.randbits(53) or 1
                self._holder, self._nonce, self._since, self.terms = client, nonce, time.time(), terms
                self._received = self._finished = self._cancelled = 0
                self.traffic.clients += 1
            self._heard = time.monotonic()
            return self.number

    def holder(self) -> str:
        """Who has it and since when, for people."""
        with self._guard:
            return self._described()

    def heard(self, session: int, at: float | None = None) -> bool:
        """Something of `session` arrived, now or at an earlier time (monotonic); whether it holds the device."""
        with self._guard:
            if session != self.number or not session:
                return False
            self._heard = max(self._heard, time.monotonic() if at is None else at)
            return True

    def expired(self) -> bool:
        """Whether the holder was silent for too long. A busy device waits for the end of what it does."""
        return bool(self.number) and self.work is None and time.monotonic() - self._heard > self.lease_s

    def expire(self) -> str | None:
        """Take the device from a holder that was silent for too long; who that was, or None.

        Looking and ending are one step: the next client may come at any time, and keeps its lease.
        """
        with self._guard:
            if not self.expired():
                return None
            holder = self._described()
            self.number, self._holder, self._nonce = 0, "", b""
            self.traffic.expired_leases += 1
            return holder

    def end(self, session: int | None = None) -> bool:
        """The device is free again; with `session`, only if that still has it. Whether somebody had it."""
        with self._guard:
            if not self.number or session not in (None, self.number):
                return False
            self.number, self._holder, self._nonce = 0, "", b""
            return True

    def begin(self, header: Header) -> None:
        """The device takes a request up."""
        self.work = Work(header)
        self._received = header.request

    def finish(self, session: int, request: int) -> None:
        """A request of `session` was answered. Another client may have the device by now."""
        self.work = None
        with self._guard:
            if session == self.number:
                self._finished = request

    def cancel(self, request: int) -> None:
        """Requests up to this one are not wanted any more."""
        self._cancelled = max(self._cancelled, request)

    def is_cancelled(self, request: int) -> bool:
        """Whether the client does not want it any more."""
        return request <= self._cancelled

    def pong(self, session: int) -> dict[str, Any]:
        """How far the device is, for the client of `session`."""
        if not self.heard(session):
            return {"valid": False, "received": 0, "finished": 0, "busy": None}
        work = self.work
        busy = None
        if work is not None:
            busy = {
                "request": work.header.request,
                "operation": name_of(work.header.operation),
                "seconds": time.monotonic() - work.started,
            }
        return {"valid": True, "received": self._received, "finished": self._finished, "busy": busy}

    def as_dict(self) -> dict[str, Any]:
        """For the status."""
        return {"holder": self.holder() if self.number else None, "traffic": asdict(self.traffic)}

    def _described(self) -> str:
        return f"{self._holder} since {time.strftime('%H:%M:%S', time.localtime(self._since))}"


# ---- A log that hostile or broken messages cannot fill.


_EVENTS = {"refused", "dropped"}
_MOST, _EVERY_S = 10, 10.0


class FewLines(logging.Filter):
    """Lets pass ten lines in ten seconds about messages that were refused or dropped, and all others."""

    def __init__(self) -> None:
        super().__init__()
        self._since, self._seen = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written; the first one of the next ten seconds tells how many were not."""
        if getattr(record, "event", "") not in _EVENTS:
            return True
        now = time.monotonic()
        if now - self._since > _EVERY_S:
            hidden = max(0, self._seen - _MOST)
            self._since, self._seen = now, 0
            if hidden:
                record.msg, record.args = f"{record.getMessage()} ({hidden:,} such lines before were not written)", ()
        self._seen += 1
        return self._seen <= _MOST
