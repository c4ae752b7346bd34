"""The data socket on the device's side: which requests count, and what is sent back."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reservoir_hw.core.errors import (
    DeviceError,
    DeviceFault,
    Discontinuity,
    InputRangeError,
    ProtocolError,
    ReservoirError,
    text_of,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.drivers.codes import HARMLESS, Code, Encoding, Refusal, clipped, code_of, sendable
from reservoir_hw.drivers.zeromq.frames import (
    ERROR,
    REPLY,
    Flag,
    Header,
    Operation,
    name_of,
    pack_header,
    pack_map,
)
from reservoir_hw.drivers.zeromq.links import Gone, Router
from reservoir_hw.serving.lease import FewLines, Lease

log = logging.getLogger(__name__)
log.addFilter(FewLines())

# Of the text of an error, where the frame has room for it.
LONGEST_TEXT = 1 << 16
# The safe state does not wait longer for those who go on asking.
TURN_AWAY_S = 0.5


@dataclass
class Seat:
    """The client that the device is open for, and how far its run is; for the thread that drives the device."""

    attached: int = 0
    """Its session, 0 for none."""
    peer: Hashable = None
    expected: int = 1
    """Number of its next request."""
    step: int = 0
    batch: int = 1
    lost: str | None = None
    """Why the state of the device is not known any more."""
    readout: tuple[np.ndarray, np.ndarray] | None = None


@dataclass
class DataSocket:
    """Receives requests from the router of a data socket, and sends answers there.

    `states` is how states are written. `release` is called before another client gets the device.
    """

    router: Router
    reservoir: Reservoir
    lease: Lease
    seat: Seat
    states: Encoding
    max_frame_bytes: int
    release: Callable[[], None]
    # When nothing was waiting.
    _empty: float = field(default_factory=time.monotonic, init=False)
    _behind: list[tuple[Header, Refusal]] | None = field(default=None, init=False)
    _slots: bool = field(default=True, init=False)
    _kept: tuple[Header, memoryview] | None = field(default=None, init=False)

    def keep(self, header: Header, payload: memoryview) -> None:
        """Give this request again next time: it is not of the run that was looked for."""
        self._kept = header, payload

    def next(self) -> tuple[Header, memoryview] | None:
        """The next request that counts. What cannot be one is answered with an error, or dropped, and counted."""
        if self._kept is not None:
            (header, payload), self._kept = self._kept, None
            self.lease.begin(header)
            return header, payload
        traffic = self.lease.traffic
        try:
            message = self.router.receive()
        except TimeoutError:
            self._empty = time.monotonic()
            return None
        except Gone as gone:
            self._left(gone.peer)
            return None
        # What waits already came while the device was busy. Nobody knows when, but after nothing was waiting.
        if not message.waited:
            self._empty = time.monotonic()
        self.expire()
        peer = message.peer
        try:
            header, crc = message.header()
        except ProtocolError as error:
            traffic.damaged += 1
            self.refuse(peer, Header(0, 0, 0), Refusal(Code.MALFORMED, str(error)))
            return None
        attaches = header.operation == Operation.ATTACH and header.session != self.seat.attached
        seated = header.session == self.seat.attached and peer == self.seat.peer
        if not self.lease.heard(header.session, self._empty) or not (attaches or seated):
            traffic.foreign += 1
            ended = Refusal(Code.NO_SESSION, "this session does not hold the device (any more); open it again")
            if self._behind is not None and seated:
                self._behind.append((header, ended))
            else:
                self.refuse(peer, header, ended)
            return None
        if attaches:
            self.release()
            self.seat.attached, self.seat.peer, self.seat.expected = header.session, peer, 1
        if header.request < self.seat.expected:
            traffic.repeated += 1
            return None
        gap, self.seat.expected = header.request - self.seat.expected, header.request + 1
        traffic.requests += 1
        self.lease.begin(header)
        try:
            if attaches:
                self.router.attach(message, self.lease.terms)
            if gap:
                raise Refusal(Code.SEQUENCE, f"{gap} requests before number {header.request} were lost")
            payload = message.payload(header, crc)
            traffic.bytes_received += len(payload)
            if self.lease.is_cancelled(header.request):
                raise Refusal(Code.CANCELLED, "cancelled by the client")
        except ProtocolError as error:
            traffic.damaged += 1
            self._turn_down(header, Refusal(Code.CHECKSUM, str(error)))
            return None
        except Refusal as refusal:
            self._turn_down(header, refusal)
            return None
        return header, payload

    @contextlib.contextmanager
    def in_order(self, *, slots: bool = True) -> Iterator[None]:
        """While requests are unanswered: what `next` turns down meanwhile is answered after them.

        Without `slots` no answer uses one of the ring: of more requests than credits several have the same.
        """
        self._behind, self._slots = [], slots
        try:
            yield
        finally:
            behind, self._behind = self._behind, None
            for header, refusal in behind:
                self.fail(header, refusal)
            self._slots = True

    def _turn_down(self, header: Header, refusal: Refusal) -> None:
        if self._behind is None:
            self.fail(header, refusal)
            return
        self.seat.lost = self.seat.lost or sendable(f"request {header.request} failed: {text_of(refusal)}")
        self._behind.append((header, refusal))

    def _left(self, peer: Hashable) -> None:
        """End the session of a client that is not connected any more."""
        if peer == self.seat.peer and self.seat.attached and self.lease.end(self.seat.attached):
            log.warning("the client has gone: its session has ended", extra={"event": "gone"})

    def expire(self) -> None:
        """End the lease of a client that was silent for too long: nothing of it is begun any more."""
        if holder := self.lease.expire():
            log.warning("%s is not heard of any more: its session has ended", holder, extra={"event": "lease expired"})

    def turn_away(self) -> None:
        """Tell those who wait why nobody does what they asked; for a moment, however many go on asking."""
        self.router.hurry()
        until = time.monotonic() + TURN_AWAY_S
        while time.monotonic() < until and (message := self.next()) is not None:
            self.fail(message[0], Refusal(Code.SHUTTING_DOWN, "the server is shutting down"))

    def array(self, header: Header, array: Any, encoding: Encoding, *, time_ns: int = 0, period_s: float = 0.0) -> bool:
        """Answer a request with numbers (batch, steps, width); whether they could be sent."""
        batch, steps, width = array.shape
        reply = Header(
            header.operation | REPLY, header.session, header.request, header.flags, header.step, batch, steps, width,
            encoding.dtype, encoding.scale, time_ns, period_s,
        )  # fmt: skip
        try:
            numbers = encoding.encode(array)
        except InputRangeError as error:
            raise DeviceFault(f"the states cannot be sent as this server declares them: {error}") from error
        sent = self._send(self.seat.peer, reply, numbers)
        self.lease.finish(header.session, header.request)
        return sent

    def plain(self, header: Header, payload: bytes, **fields: int) -> None:
        """Answer a request with bytes, and fields of the header."""
        if len(payload) > self.max_frame_bytes:
            raise Refusal(
                Code.TOO_LARGE,
                f"the answer has {len(payload)} bytes, at most {self.max_frame_bytes} go into one frame",
            )
        self._send(self.seat.peer, Header(header.operation | REPLY, header.session, header.request, **fields), payload)
        self.lease.finish(header.session, header.request)

    def fail(self, header: Header, error: BaseException) -> None:
        """Answer a request with an error."""
        code = code_of(error)
        if code is Code.INTERNAL:
            log.exception("request %d failed", header.request, exc_info=error)
        else:
            log.warning(
                "request %d (%s): %s",
                header.request,
                name_of(header.operation),
                sendable(text_of(error)),
                extra={"event": "refused", "request": header.request, "code": int(code)},
            )
        more = header.operation == Operation.RUN and header.flags & Flag.MORE
        # Any exception of a device in the middle of its work loses the state.
        lost = code not in HARMLESS or more or (self.reservoir.is_open and self.reservoir.state_lost is not None)
        if lost and self.seat.lost is None:
            self.seat.lost = sendable(f"request {header.request} failed: {text_of(error)}")
        self.refuse(self.seat.peer, header, error)
        self.lease.finish(header.session, header.request)

    def refuse(self, peer: Hashable, header: Header, error: BaseException) -> None:
        """Send an error to `peer`, which need not be the one who has the device."""
        self.lease.traffic.errors += 1
        content: dict[str, Any] = {
            "code": int(code_of(error)),
            "text": "",
            "step": self.seat.step,
            "state_lost": self.seat.lost is not None,
            "steps_done": 0,
            "states": None,
        }
        text = text_of(error)
        if not isinstance(error, ReservoirError | Refusal):
            text = f"{type(error).__name__}: {text}"
        try:
            text = sendable("\n".join([text, *map(str, getattr(error, "__notes__", ()))]))
            step = self._step_of(header, error)
            if 0 <= step < 1 << 64:
                content["step"] = step
            text = self._add_harvest(content, header, error, text)
        except Exception:
            # What a device puts into an error need not make sense: the error itself is what counts.
            log.exception("the error of request %d could not be told whole", header.request)
        content["text"] = clipped(sendable(text), self._longest_text)
        reply = Header(ERROR, header.session, header.request, step=header.step)
        # Not in a slot: a wrong number of a request has that of a reply that is still being read.
        self._send(peer, reply, pack_map(content), slot=False)

    @property
    def _longest_text(self) -> int:
        return min(LONGEST_TEXT, self.max_frame_bytes // 4)

    def _add_harvest(self, content: dict[str, Any], header: Header, error: BaseException, text: str) -> str:
        """Put into an error what was harvested before it, as far as it goes into a frame; its text."""
        if not isinstance(error, DeviceError) or error.states is None or header.operation != Operation.RUN:
            return text
        # What cannot be written as declared is not told.
        with contextlib.suppress(InputRangeError, TypeError, ValueError, IndexError):
            harvested = np.asarray(error.states)[:, : error.steps_done]
            batch, done, nodes = harvested.shape
            room = self.max_frame_bytes - 2 * self._longest_text
            kept = min(done, room // max(1, batch * nodes * self.states.number.itemsize))
            content["states"] = self.states.encode(harvested[:, :kept]).tobytes()
            content["steps_done"] = kept
            if kept < done:
                return f"{clipped(text, self._longest_text // 2)}\n(states: {kept} of {done} steps, more do not fit)"
        return text

    def _step_of(self, header: Header, error: BaseException) -> int:
        """Where it happened."""
        if isinstance(error, Discontinuity):
            return int(error.step)
        if isinstance(error, DeviceError) and header.operation == Operation.RUN:
            return header.step + int(error.steps_done)
        return self.seat.step

    def _send(self, peer: Hashable, header: Header, payload: Any, *, slot: bool = True) -> bool:
        """Whether the message is on its way."""
        # Only for the one who has the device it is worth while to wait.
        held = peer == self.seat.peer
        packed = pack_header(header, payload, checksums=not held or self.router.terms.checksums)
        try:
            if held:
                self.router.send(peer, packed, payload, header.request if slot and self._slots else 0)
            else:
                self.router.send_at_once(peer, packed, payload)
        except (TimeoutError, Gone) as error:
            # As a text: a handler that keeps the exception keeps the client's memory mapped with it.
            log.warning("request %d cannot be answered: %s", header.request, str(error), extra={"event": "dropped"})
            if isinstance(error, Gone):
                self._left(peer)
            return False
        self.lease.traffic.bytes_sent += len(payload) if isinstance(payload, bytes) else payload.nbytes
        return True
