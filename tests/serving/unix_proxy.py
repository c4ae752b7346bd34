"""A bad host between the client and the server of a unix address: packets are struck as `ChaosConfig` says."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

from reservoir_hw.serving.faults import FAULTS, ChaosConfig, Direction, Path, SocketName

LARGEST = 1 << 17
PAYLOAD_AT = 96


@dataclass(eq=False)
class Side:
    """One end of a connection through the proxy, and the way of what it sends."""

    socket: socket.socket
    path: Path
    spared_from: int
    other: Side | None = None


class UnixProxy:
    """Passes packets with their descriptors between clients at `front` and the server at `back`.

    With `spares_payloads`, of a data packet only what has a checksum in any session is struck: the first 96 bytes.
    """

    def __init__(self, config: ChaosConfig, *, front: str, back: str, spares_payloads: bool = False) -> None:
        self._spares_payloads = spares_payloads
        self.counts: Counter[str] = Counter(dict.fromkeys(FAULTS, 0))
        self.messages = 0
        self._config = config
        self._places = {
            name: (front.removeprefix("unix://") + end, back.removeprefix("unix://") + end)
            for name, end in (("data", ""), ("control", ".control"))
        }
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._waiting: list[tuple[float, int, Side, bytes, list[int]]] = []
        self._number, self._made = itertools.count(), itertools.count()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unix proxy", daemon=True)

    def __enter__(self) -> Self:
        for name, (front, _) in self._places.items():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(front)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(front)
            listener.listen()
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, name)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for side in self._sides():
            side.socket.close()
        for listener, places in zip(self._listeners, self._places.values(), strict=True):
            listener.close()
            os.unlink(places[0])
        for entry in self._waiting:
            _close(entry[-1])
        self._selector.close()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            due = self._waiting[0][0] - time.monotonic() if self._waiting else 0.02
            for key, _ in self._selector.select(max(0.0, min(due, 0.02))):
                # What struck the one before may have cut this connection.
                if key.fileobj not in [registered.fileobj for registered in self._selector.get_map().values()]:
                    continue
                if isinstance(key.data, Side):
                    self._take(key.data)
                else:
                    self._accept(key.fileobj, key.data)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                self._deliver(*heapq.heappop(self._waiting)[2:])

    def _sides(self) -> list[Side]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, Side)]

    def _accept(self, listener: Any, name: SocketName) -> None:
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            server.connect(self._places[name][1])
        except OSError:
            client.close()
            server.close()
            return
        number = next(self._made)
        directions: tuple[Direction, Direction] = ("to_device", "to_client")
        sides = [
            Side(end, Path(self._config, name, direction, number), spared_from=self._spared_from(name))
            for end, direction in zip((client, server), directions, strict=True)
        ]
        for side, other in (sides, sides[::-1]):
            side.other = other
            self._selector.register(side.socket, selectors.EVENT_READ, side)

    def _spared_from(self, name: SocketName) -> int:
        return PAYLOAD_AT if self._spares_payloads and name == "data" else LARGEST

    def _take(self, side: Side) -> None:
        try:
            packet, extra, _, _ = side.socket.recvmsg(LARGEST, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except OSError:
            packet, extra = b"", []
        descriptors = [struct.unpack("i", content)[0] for _, _, content in extra]
        if not packet:
            self._cut(side)
            return
        self.messages += 1
        passage = side.path.take([packet])
        self.counts.update(passage.faults)
        if "kill" in passage.faults:
            _close(descriptors)
            self._cut(side)
            return
        due = time.monotonic() + passage.delay_s
        if not passage.overtaken:
            due = side.path.free_at = max(due, side.path.free_at)
        for frames in passage.arriving:
            struck = b"".join(frames)
            struck = struck[: side.spared_from] + packet[side.spared_from : len(struck)]
            entry = (due, next(self._number), side, struck, [os.dup(one) for one in descriptors])
            heapq.heappush(self._waiting, entry)
        _close(descriptors)

    def _deliver(self, side: Side, packet: bytes, descriptors: list[int]) -> None:
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", one)) for one in descriptors]
        if side.other is not None and packet:
            with contextlib.suppress(OSError):
                side.other.socket.sendmsg([packet], extra, socket.MSG_DONTWAIT)
        _close(descriptors)

    def _cut(self, side: Side) -> None:
        assert side.other is not None
        for end in (side, side.other):
            with contextlib.suppress(KeyError):
                self._selector.unregister(end.socket)
            end.socket.close()
            end.other = None


def _close(descriptors: list[int]) -> None:
    for one in descriptors:
        os.close(one)
