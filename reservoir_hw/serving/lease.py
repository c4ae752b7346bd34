"""Who has the device and how far it is; and a device that hangs: its emergency stop, and no client until a person has
looked.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from reservoir_hw.core.errors import NotSupported, text_of
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.drivers.codes import Code, Refusal, sendable
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
        self._guard = threading.RLock()
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
            return f"{self._holder} since {time.strftime('%H:%M:%S', time.localtime(self._since))}"

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
            holder = self.holder()
            self.end()
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
        busy = work and {
            "request": work.header.request,
            "operation": name_of(work.header.operation),
            "seconds": time.monotonic() - work.started,
        }
        return {"valid": True, "received": self._received, "finished": self._finished, "busy": busy}

    def as_dict(self) -> dict[str, Any]:
        """For the status."""
        return {"holder": self.holder() if self.number else None, "traffic": asdict(self.traffic)}


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


# ---- What happens to a device that hangs: its emergency stop, and no client until a person has looked.


log = logging.getLogger(__name__)

# A request may take so many times what the device declares.
_PATIENCE = 3


@dataclass
class Watchdog:
    """Looks at the request that the device is busy with; its methods are called by the control thread.

    `seconds` is how long a request may take. None: three times its steps as the device declares them, a reset and its
    opening, and the lease; for ever where no period is declared. 0: for ever. `spec` gives what is served at `address`.
    """

    reservoir: Reservoir
    lease: Lease
    seconds: float | None
    spec: Callable[[], ReservoirSpec | None]
    address: str
    opening_s: float = 0.0
    """How long it took to open the device, with the first reset and what is set up."""
    _hung: Work | None = field(default=None, init=False)
    _stopped: str = field(default="", init=False)

    @property
    def problem(self) -> str | None:
        """Why nobody gets the device, or None."""
        if self._hung is None:
            return None
        taken = time.monotonic() - self._hung.started
        still = f"hangs in {name_of(self._hung.header.operation)} for {taken:.0f} s" if self.hangs else "was hanging"
        return (
            f"the device {still}; {self._stopped}. Look after it, and then give it back: "
            f"reservoir-hw device release {self.address}"
        )

    @property
    def hangs(self) -> bool:
        """Whether the request that the watchdog ended has not come back."""
        return self._hung is not None and self.lease.work is self._hung

    def look(self) -> None:
        """Stop the device if its request takes too long, and end the session."""
        work = self.lease.work
        if work is None or self._hung is not None or time.monotonic() - work.started < self._allowed(work):
            return
        self._stopped = "its emergency stop has not come back"
        self._hung = work
        self.lease.end()
        log.error("the device hangs in request %d: emergency stop", work.header.request, extra={"event": "hung"})
        # It may hang, too.
        threading.Thread(target=self._stop, name="emergency stop", daemon=True).start()

    def release(self) -> None:
        """A person has looked after the device. Raises `Refusal` if it still hangs, or nothing was wrong."""
        if self._hung is None:
            raise Refusal(Code.CONFIGURATION, "there is nothing to release: the device did not hang")
        if self.hangs:
            raise Refusal(Code.BUSY, f"{self.problem}, or restart its server: the request has not come back")
        self._hung = None
        log.warning("a person has released the device", extra={"event": "released"})

    def _stop(self) -> None:
        try:
            self.reservoir.emergency_stop()
            self._stopped = "its emergency stop was called"
        except NotSupported:
            self._stopped = "it has no emergency stop"
        except Exception as error:
            log.exception("the emergency stop failed")
            self._stopped = f"its emergency stop failed: {sendable(text_of(error))}"

    def _allowed(self, work: Work) -> float:
        """Seconds that this request may take."""
        spec, header = self.spec(), work.header
        if self.seconds is not None:
            return self.seconds or float("inf")
        if spec is None or not spec.step_period_s:
            return float("inf")
        turns = -(-header.batch // (spec.max_batch or max(1, header.batch)))
        # A request may open the device, or bring it to rest for each turn.
        once = self.reservoir.seconds_for(header.steps, spec.step_period_s) + spec.reset_time_s + self.opening_s
        return _PATIENCE * max(1, turns) * once + self.lease.lease_s
