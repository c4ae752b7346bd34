"""What a client and a server need of the sockets between them, whichever kind these are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from reservoir_hw.core.errors import ProtocolError
from reservoir_hw.drivers.zeromq.frames import Header, check_payload, unpack_header
from reservoir_hw.drivers.zeromq.security import Allowed


class Gone(Exception):
    """The other side of a connection is not there any more; on a server `peer` says which."""

    def __init__(self, peer: Hashable = None) -> None:
        super().__init__("the other side has gone")
        self.peer = peer


class Listening(NamedTuple):
    """How a server listens."""

    max_frame_bytes: int
    """Larger messages are not taken."""
    allowed: Allowed | None
    room: int
    """So many messages of a client may wait."""
    idle_s: float
    """`receive` waits so long."""
    patience_s: float
    """`send` waits so long for a client that takes nothing."""


class Terms(NamedTuple):
    """What a session has agreed on about payloads."""

    checksums: bool = True
    slots: int = 0
    slot_bytes: int = 0
    """Of each slot in shared memory; 0: there are none."""


class Message:
    """What has come: a control frame, or a header and a payload. It must be used up before the next one is received.

    Args:
        frames: Without the peer.
        peer: On a server, where it came from.
        waited: Whether it was there already when the server looked for it.
    """

    def __init__(self, frames: Sequence[Any], peer: Any = None, *, waited: bool = False) -> None:
        self.peer, self.waited = peer, waited
        self._frames = frames

    def user_id(self) -> str | None:
        """The key of the sender, if it has shown one."""
        return None

    def control(self) -> bytes:
        """The frame of a control message, or `ProtocolError`."""
        if len(self._frames) != 1:
            raise ProtocolError("a control message has one frame, this has more or none")
        return bytes(self._frames[0])

    def header(self) -> tuple[Header, int]:
        """The header of a data message and the checksum of its payload, or `ProtocolError`."""
        count = len(self._frames)
        if count != 2:
            raise ProtocolError(f"a data message has 2 frames, this has {'fewer' if count < 2 else 'more'}")
        return unpack_header(bytes(self._frames[0]))

    def payload(self, header: Header, crc: int) -> memoryview:
        """What belongs to this header. `ProtocolError` if it was damaged, `Refusal` if it cannot be had."""
        payload = self._content(header)
        if self._has_checksum():
            check_payload(payload, crc)
        return payload

    def _has_checksum(self) -> bool:
        """Whether its payload must fit its checksum."""
        return True

    def _content(self, header: Header) -> memoryview:
        """The payload, not checked."""
        return memoryview(self._frames[1])


class Dealer(Protocol):
    """The client's end of a connection. Every method raises `Gone` where the other side is known to have gone."""

    terms = Terms()

    def reach(self, device: str) -> None:
        """Connect, and wait until somebody is there; messages name `device`."""

    def connect(self) -> None:
        """Connect; that nobody is there may be seen later."""

    def wishes(self, *, checksums: bool) -> dict[str, Any]:
        """What a hello says about payloads."""
        return {}

    def agree(self, welcome: Mapping[str, Any]) -> None:
        """Keep the terms of a welcome from now on, or raise `ProtocolError`."""

    def send(self, header: bytes, payload: Any, request: int, came: int) -> None:
        """A data message: bytes, or a C-contiguous array that must stay as it is until it was answered.

        `came` is the number of the newest reply that has come. Raises `TimeoutError` if nothing goes out.
        """

    def end_interrupted(self) -> int:
        """After an interrupted `send`, make the connection fit for the next; how many errors that can bring."""
        return 0

    def receive(self) -> Message:
        """The next data message, or `TimeoutError`, so that somebody can look after other things."""
        ...

    def send_control(self, frame: bytes) -> None:
        """A control message; it is lost if nobody takes it."""

    def receive_control(self, seconds: float) -> bytes:
        """The next control message, or `TimeoutError`."""
        ...


class Router(Protocol):
    """The server's end of all connections at an address."""

    terms = Terms()
    """Those of the client that is attached."""

    def agreed(self, hello: Mapping[str, Any], slots: int, *, checksums: bool) -> Terms:
        """What is made of the wishes of a client; `checksums`: whether this server insists on them."""
        return Terms()

    def told(self, terms: Terms) -> dict[str, Any]:
        """What a welcome says of these terms."""
        return {}

    def receive(self) -> Message:
        """The next message, or `TimeoutError`; `Gone` with the peer that has gone."""
        ...

    def attach(self, message: Message, terms: Terms) -> None:
        """The sender of this message is the client from now on. `Refusal` if it has not what was agreed."""
        self.terms = terms

    def detach(self) -> None:
        """Nobody is the client."""
        self.terms = Terms()

    def memory(self, request: int, size: int) -> np.ndarray | None:
        """Bytes for the payload of a reply that is sent from there without a copy; None where a copy is cheaper."""
        ...

    def send(self, peer: Hashable, header: bytes, payload: Any, request: int) -> None:
        """A message to the client that is attached, in answer to a request that counts, or to none: 0.

        Raises `TimeoutError`, and `Gone` with the peer.
        """

    def send_at_once(self, peer: Hashable, *frames: bytes) -> None:
        """A control frame, or a header and a payload, to anybody; what is not taken now is lost."""

    def hurry(self) -> None:
        """From now on `send` waits for nobody."""

    def close(self) -> None:
        """Listen no more, and cut the connections."""
