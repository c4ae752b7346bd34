"""What comes on the data socket: from whom, in which order, whole or damaged."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

from reservoir_hw.core.errors import ProtocolError
from reservoir_hw.drivers.zeromq.error_codes import Code, Refusal
from reservoir_hw.drivers.zeromq.frames import Header, Operation, check_payload, unpack_header
from reservoir_hw.drivers.zeromq.sockets import receive
from reservoir_hw.serving.answers import Answers, Seat
from reservoir_hw.serving.lease import Lease, Work

# The safe state does not wait longer for those who go on asking.
TURN_AWAY_S = 0.5


class Requests:
    """Receives from a data socket. `release` is called before another client gets the device."""

    def __init__(
        self, socket: zmq.Socket[bytes], lease: Lease, seat: Seat, answers: Answers, release: Callable[[], None]
    ) -> None:
        self._socket, self._lease, self._seat, self._answers, self._release = socket, lease, seat, answers, release

    def next(self) -> tuple[Header, memoryview] | None:
        """The next request that counts. What cannot be one is answered with an error, or dropped, and counted."""
        traffic = self._lease.traffic
        try:
            frames = receive(self._socket)
        except zmq.Again:
            return None
        peer = frames[0].bytes
        traffic.bytes_received += len(frames[-1])
        try:
            if len(frames) != 3:
                raise ProtocolError(f"a data message has 2 frames, this has {'fewer' if len(frames) < 3 else 'more'}")
            header, crc = unpack_header(frames[1].bytes)
        except ProtocolError as error:
            traffic.damaged += 1
            self._answers.refuse(peer, Header(0, 0, 0), Refusal(Code.MALFORMED, str(error)))
            return None
        heard = self._lease.heard(header.session)
        attaches = header.operation == Operation.ATTACH and header.session != self._seat.attached
        if not heard or not (attaches or (header.session == self._seat.attached and peer == self._seat.peer)):
            traffic.foreign += 1
            self._answers.refuse(
                peer,
                header,
                Refusal(Code.NO_SESSION, "this session does not hold the device (any more); open it again"),
            )
            return None
        if attaches:
            self._release()
            self._seat.attached, self._seat.peer, self._seat.expected = header.session, peer, 1
        if header.request < self._seat.expected:
            traffic.repeated += 1
            return None
        gap, self._seat.expected = header.request - self._seat.expected, header.request + 1
        traffic.requests += 1
        self._lease.begin(Work(header.request, header.operation))
        payload = frames[2].buffer
        try:
            if gap:
                raise Refusal(Code.SEQUENCE, f"{gap} requests before number {header.request} were lost")
            check_payload(payload, crc)
            if self._lease.is_cancelled(header.request):
                raise Refusal(Code.CANCELLED, "cancelled by the client")
        except ProtocolError as error:
            traffic.damaged += 1
            self._answers.fail(header, Refusal(Code.CHECKSUM, str(error)))
            return None
        except Refusal as refusal:
            self._answers.fail(header, refusal)
            return None
        return header, payload

    def turn_away(self) -> None:
        """Tell those who wait why nobody does what they asked; for a moment, however many go on asking."""
        self._socket.setsockopt(zmq.SNDTIMEO, 0)
        until = time.monotonic() + TURN_AWAY_S
        while time.monotonic() < until and (message := self.next()) is not None:
            self._answers.fail(message[0], Refusal(Code.SHUTTING_DOWN, "the server is shutting down"))
