"""What the device's side sends on the data socket: numbers, and errors with what was harvested before them."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from reservoir_hw.core.errors import (
    DeviceError,
    DeviceFault,
    Discontinuity,
    InputRangeError,
    ReservoirError,
    text_of,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.drivers.zeromq.error_codes import HARMLESS, Code, Refusal, code_of
from reservoir_hw.drivers.zeromq.frames import (
    ERROR,
    REPLY,
    Encoding,
    Flag,
    Header,
    Operation,
    name_of,
    pack_header,
    pack_map,
)
from reservoir_hw.drivers.zeromq.sockets import send, send_at_once
from reservoir_hw.serving._texts import clipped, sendable
from reservoir_hw.serving.lease import Lease

log = logging.getLogger(__name__)

# Of the text of an error, where the frame has room for it.
LONGEST_TEXT = 1 << 16


@dataclass
class Seat:
    """The client that the device is open for, and how far its run is; for the thread that drives the device."""

    attached: int = 0
    """Its session, 0 for none."""
    peer: bytes = b""
    expected: int = 1
    """Number of its next request."""
    step: int = 0
    batch: int = 1
    lost: str | None = None
    """Why the state of the device is not known any more."""
    readout: tuple[np.ndarray, np.ndarray] | None = None


class Answers:
    """Sends on a data socket. `states` is how states are written."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        reservoir: Reservoir,
        lease: Lease,
        seat: Seat,
        states: Encoding,
        max_frame_bytes: int,
    ) -> None:
        self._socket, self._reservoir, self._lease, self._seat = socket, reservoir, lease, seat
        self.states = states
        self._max_frame_bytes = max_frame_bytes

    def array(self, header: Header, array: Any, encoding: Encoding, time_ns: int) -> bool:
        """Answer a request with numbers (batch, steps, width); whether they could be sent."""
        batch, steps, width = array.shape
        reply = Header(
            header.operation | REPLY, header.session, header.request, header.flags, header.step, batch, steps, width,
            encoding.dtype, encoding.scale, time_ns, self._reservoir.spec.step_period_s or 0.0,
        )  # fmt: skip
        try:
            numbers = encoding.encode(array)
        except InputRangeError as error:
            raise DeviceFault(f"the states cannot be sent as this server declares them: {error}") from error
        sent = self._send(self._seat.peer, reply, numbers)
        self._lease.finish(header.session, header.request)
        return sent

    def plain(self, header: Header, payload: bytes, **fields: int) -> None:
        """Answer a request with bytes, and fields of the header."""
        if len(payload) > self._max_frame_bytes:
            raise Refusal(
                Code.TOO_LARGE,
                f"the answer has {len(payload)} bytes, at most {self._max_frame_bytes} go into one frame",
            )
        self._send(self._seat.peer, Header(header.operation | REPLY, header.session, header.request, **fields), payload)
        self._lease.finish(header.session, header.request)

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
        lost = code not in HARMLESS or more or (self._reservoir.is_open and self._reservoir.state_lost is not None)
        if lost and self._seat.lost is None:
            self._seat.lost = sendable(f"request {header.request} failed: {text_of(error)}")
        self.refuse(self._seat.peer, header, error)
        self._lease.finish(header.session, header.request)

    def refuse(self, peer: bytes, header: Header, error: BaseException) -> None:
        """Send an error to `peer`, which need not be the one who has the device."""
        self._lease.traffic.errors += 1
        content: dict[str, Any] = {
            "code": int(code_of(error)),
            "text": "",
            "step": self._seat.step,
            "state_lost": self._seat.lost is not None,
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
        with contextlib.suppress(zmq.ZMQError):
            # Whoever sent nonsense may be gone already.
            self._send(peer, reply, pack_map(content))

    @property
    def _longest_text(self) -> int:
        return min(LONGEST_TEXT, self._max_frame_bytes // 4)

    def _add_harvest(self, content: dict[str, Any], header: Header, error: BaseException, text: str) -> str:
        """Put into an error what was harvested before it, as far as it goes into a frame; its text."""
        if not isinstance(error, DeviceError) or error.states is None or header.operation != Operation.RUN:
            return text
        # What cannot be written as declared is not told.
        with contextlib.suppress(InputRangeError, TypeError, ValueError, IndexError):
            harvested = np.asarray(error.states)[:, : error.steps_done]
            batch, done, nodes = harvested.shape
            room = self._max_frame_bytes - 2 * self._longest_text
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
        return self._seat.step

    def _send(self, peer: bytes, header: Header, payload: Any) -> bool:
        """Whether the message is on its way."""
        try:
            packed = pack_header(header, payload)
            # Only for the one who has the device is it worth while to wait.
            if peer == self._seat.peer:
                send(self._socket, packed, payload, peer=peer)
            else:
                send_at_once(self._socket, [peer, packed, payload])
        except zmq.ZMQError as error:
            log.warning("request %d cannot be answered: %s", header.request, error)
            return False
        self._lease.traffic.bytes_sent += len(payload) if isinstance(payload, bytes) else payload.nbytes
        return True
