"""A network between clients and a server that strikes the messages it is told to, one after the other."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import zmq

from reservoir_hw.testing.protocol import codec

SocketName = Literal["data", "control"]
Direction = Literal["to_device", "to_client"]
Frames = list[bytes]

HARMLESS = ("twice", "again")
"""Copies: nothing may come of them."""
HARMFUL = ("drop", "overtake", "shorten", "lose a frame", "flip", "earlier session", "cut")
"""What is lost, or not what was sent: an error, or the right states."""
FIELDS = (
    "session", "request", "step", "batch", "steps", "width", "dtype", "scale", "flags", "operation", "version",
)  # fmt: skip
"""Of a header that is changed, with the right checksums."""
LARGEST = 1 << 17
MOST_CONNECTIONS = 40
REMEMBERED = 8
"""Connections whose messages are known."""


class Strike(NamedTuple):
    """What happens to a message: one of the kinds above, or the field of its header that is changed."""

    kind: str
    socket: SocketName
    direction: Direction
    after: int = 0
    """So many messages of this way pass before it."""
    number: int = 1
    """How: which bit, what is left, how many messages later, by how much."""


@dataclass(eq=False)
class Way:
    """One direction of one connection."""

    connection: int
    socket: SocketName
    direction: Direction
    deliver: Callable[[Frames, list[int]], None]
    held: list[tuple[int, Frames]] = field(default_factory=list)
    """Messages that come when so many others have passed."""


class Connection(NamedTuple):
    """Both ways of a connection through the network, and its ends there."""

    ways: dict[Direction, Way]
    ends: list[zmq.Socket[bytes] | socket.socket]


class BadNetwork:
    """Passes messages between clients at `front` and the server at `back`; addresses are both ipc or both unix.

    With `spares_payloads`, bits are flipped only in what has a checksum in any session: the headers.
    """

    def __init__(self, front: str, back: str, *, spares_payloads: bool = False) -> None:
        self.struck: list[Strike] = []
        """What has struck since `clear`."""
        self._spares_payloads = spares_payloads
        self._is_unix = front.startswith("unix:")
        self._places: dict[SocketName, tuple[str, str]] = {
            "data": (front, back),
            "control": (codec.control_address(front), codec.control_address(back)),
        }
        self._guard = threading.Lock()
        self._armed: list[Strike] = []
        self._blocked: set[SocketName] = set()
        self._made = 0
        # Of each way the messages of the last connections, by their place there.
        self._past: dict[tuple[SocketName, Direction], dict[int, list[Frames]]] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._listening: dict[SocketName, zmq.Socket[bytes] | socket.socket] = {}
        self._connections: dict[object, Connection] = {}
        """By what their messages come from: a socket, or the identity of a client."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bad network", daemon=True)

    def __enter__(self) -> Self:
        for name, (front, _) in self._places.items():
            self._listening[name] = listening = self._packets() if self._is_unix else self._context.socket(zmq.ROUTER)
            if isinstance(listening, socket.socket):
                listening.bind(front.removeprefix("unix://"))
                listening.listen()
            else:
                listening.bind(front)
            self._poller.register(listening, zmq.POLLIN)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for connection in set(map(id, self._connections.values())):
            self._cut(next(one for one in self._connections.values() if id(one) == connection))
        for listening in self._listening.values():
            listening.close()
        self._context.destroy(linger=0)

    # ---- what it is told ------------------------------------------------------------------------

    def strike(self, strike: Strike) -> None:
        """Strike a message that is still to come."""
        with self._guard:
            self._armed.append(strike)

    def block(self, socket: SocketName) -> None:
        """From now on nothing passes there, and the connections stay."""
        with self._guard:
            self._blocked.add(socket)

    def clear(self) -> None:
        """Strike nothing any more, and let everything pass."""
        with self._guard:
            self._armed, self.struck, self._blocked = [], [], set()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            for ready, _ in self._poller.poll(20):
                if not isinstance(ready, zmq.Socket):
                    self._take_packet(ready)
                elif not ready.closed:
                    # A connection that came meanwhile may have ended this one.
                    self._take_message(ready)

    def _take_message(self, ready: zmq.Socket[bytes]) -> None:
        frames = ready.recv_multipart()
        name: SocketName | None = next(
            (name for name, listening in self._listening.items() if listening is ready), None
        )
        if name is None:
            self._pass(self._connections[ready].ways["to_client"], frames, [])
            return
        peer, *frames = frames
        if (name, peer) not in self._connections:
            back = self._context.socket(zmq.DEALER)
            back.linger = 0
            back.connect(self._places[name][1])
            connection = self._joined(
                name,
                [back],
                to_device=lambda frames, _: _send_message(back, frames),
                to_client=lambda frames, _: _send_message(ready, [peer, *frames]),
            )
            self._connections[back] = self._connections[name, peer] = connection
            self._poller.register(back, zmq.POLLIN)
            # ZeroMQ does not say which clients have gone.
            known = [one for by, one in self._connections.items() if isinstance(by, zmq.Socket)]
            if len(known) > MOST_CONNECTIONS:
                self._cut(known[0])
        self._pass(self._connections[name, peer].ways["to_device"], frames, [])

    def _take_packet(self, number: int) -> None:
        for name, listening in self._listening.items():
            assert isinstance(listening, socket.socket)
            if listening.fileno() == number:
                self._accept(listening, name)
                return
        # What struck the one before may have cut this connection.
        if number not in self._connections:
            return
        connection = self._connections[number]
        end = next(end for end in connection.ends if isinstance(end, socket.socket) and end.fileno() == number)
        try:
            packet, descriptors, _, _ = socket.recv_fds(end, LARGEST, 1)
        except OSError:
            packet, descriptors = b"", []
        if not packet:
            self._cut(connection)
            return
        way = connection.ways["to_device" if end is connection.ends[0] else "to_client"]
        in_parts = way.socket == "data" and len(packet) >= 96
        self._pass(way, [packet[:16], packet[16:96], packet[96:]] if in_parts else [packet], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _accept(self, listening: socket.socket, name: SocketName) -> None:
        client, server = listening.accept()[0], self._packets()
        try:
            server.connect(self._places[name][1].removeprefix("unix://"))
        except OSError:
            client.close()
            server.close()
            return
        connection = self._joined(
            name,
            [client, server],
            to_device=lambda frames, descriptors: _send_packet(server, frames, descriptors),
            to_client=lambda frames, descriptors: _send_packet(client, frames, descriptors),
        )
        for end in (client, server):
            self._connections[end.fileno()] = connection
            self._poller.register(end.fileno(), zmq.POLLIN)

    def _joined(
        self,
        name: SocketName,
        ends: list[zmq.Socket[bytes] | socket.socket],
        **deliver: Callable[[Frames, list[int]], None],
    ) -> Connection:
        self._made += 1
        directions: tuple[Direction, Direction] = ("to_device", "to_client")
        return Connection({one: Way(self._made, name, one, deliver[one]) for one in directions}, ends)

    def _cut(self, connection: Connection) -> None:
        for known in [known for known, one in self._connections.items() if one is connection]:
            del self._connections[known]
            if not isinstance(known, tuple):
                self._poller.unregister(known)
        for end in connection.ends:
            end.close()
        for way in connection.ways.values():
            way.deliver = lambda *_: None

    @staticmethod
    def _packets() -> socket.socket:
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    # ---- one message ----------------------------------------------------------------------------

    def _pass(self, way: Way, frames: Frames, descriptors: list[int]) -> None:
        strike = self._next(way)
        if strike is None:
            arriving = [frames]
        elif strike.kind == "blocked":
            return
        elif strike.kind == "cut":
            self._cut(next(one for one in self._connections.values() if way in one.ways.values()))
            return
        else:
            arriving = self._struck(way, strike, frames)
        past = self._past.setdefault((way.socket, way.direction), {})
        past.setdefault(way.connection, []).append(frames)
        if len(past) > REMEMBERED:
            del past[next(iter(past))]
        due = [message for left, message in way.held if left <= 1]
        way.held = [(left - 1, message) for left, message in way.held if left > 1]
        if strike is not None and strike.kind in ("again", "overtake"):
            way.held.append((max(1, strike.number) if strike.kind == "again" else 1, frames))
        for message in [*arriving, *due]:
            with contextlib.suppress(OSError, zmq.ZMQError):
                way.deliver(message, descriptors)
            descriptors = []

    def _next(self, way: Way) -> Strike | None:
        """What strikes the next message of this way."""
        with self._guard:
            if way.socket in self._blocked:
                return Strike("blocked", way.socket, way.direction)
            for index, strike in enumerate(self._armed):
                if (strike.socket, strike.direction) == (way.socket, way.direction):
                    if strike.after:
                        self._armed[index] = strike._replace(after=strike.after - 1)
                        continue
                    del self._armed[index]
                    self.struck.append(strike)
                    return strike
        return None

    def _struck(self, way: Way, strike: Strike, frames: Frames) -> list[Frames]:
        """The messages that come in the place of this one."""
        number = strike.number
        match strike.kind:
            case "twice":
                return [frames, frames]
            case "again":
                return [frames]
            case "drop" | "overtake":
                return []
            case "shorten":
                last = max(index for index, frame in enumerate(frames) if frame)
                kept = frames[last][: number % len(frames[last])]
                return [[*frames[:last], kept, *frames[last + 1 :]]]
            case "lose a frame":
                lost = number % len(frames)
                return [frames[:lost] + frames[lost + 1 :]] if len(frames) > 1 else []
            case "flip":
                return [self._flipped(frames, number, spared=self._spares_payloads and way.socket == "data")]
            case "earlier session":
                past = self._past.get((way.socket, way.direction), {})
                earlier = [
                    message
                    for connection, messages in past.items()
                    for message in messages
                    if connection != way.connection and _without_session(message) == _without_session(frames)
                ]
                return [*earlier[-1:], frames]
        return [_forged(frames, strike)]

    @staticmethod
    def _flipped(frames: Frames, number: int, *, spared: bool) -> Frames:
        changed = [bytearray(frame) for frame in frames]
        struck = [frame for frame in (changed[:-1] if spared and len(frames) > 1 else changed) if frame]
        frame = struck[number % len(struck)]
        frame[number % len(frame)] ^= 1 << number % 8
        return [bytes(frame) for frame in changed]


def _without_session(frames: Frames) -> bytes:
    """All of a header that tells one message of a session from another; nothing of a control message."""
    return frames[-2][4:8] + frames[-2][16:56] if len(frames) > 1 else b""


def _send_message(end: zmq.Socket[bytes], frames: Frames) -> None:
    end.send_multipart(frames)


def _send_packet(end: socket.socket, frames: Frames, descriptors: list[int]) -> None:
    if any(frames):
        socket.send_fds(end, [b"".join(frames)], descriptors, socket.MSG_DONTWAIT)


def _forged(frames: Frames, strike: Strike) -> Frames:
    """A data message with a field of its header changed, and the checksum of the header made right again."""
    if len(frames) < 2:
        return frames
    header, _ = codec.unpack_header(frames[-2])
    value = getattr(header, strike.kind)
    if strike.kind == "scale":
        value *= 2
    else:
        value = max(0, value + strike.number % 5 - 2)
        value &= 0xFF if strike.kind in ("operation", "dtype", "version") else (1 << 64) - 1
    front = codec.pack_data(replace(header, **{strike.kind: value}))[0][:72] + frames[-2][72:76]
    return [*frames[:-2], front + codec.crc32c(front).to_bytes(4, "little"), frames[-1]]
