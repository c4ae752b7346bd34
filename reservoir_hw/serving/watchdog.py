"""What happens to a device that hangs: its emergency stop, and no client until a person has looked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from reservoir_hw.core.errors import NotSupported, text_of
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.drivers.error_codes import Code, Refusal, sendable
from reservoir_hw.drivers.zeromq.frames import name_of
from reservoir_hw.serving.lease import Lease, Work

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
        run_s = self.reservoir.seconds_for(header.steps, spec.step_period_s)
        once = run_s + spec.reset_time_s + self.opening_s
        return _PATIENCE * max(1, turns) * once + self.lease.lease_s
