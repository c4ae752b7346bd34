"""A bad network between clients and a device, to test that nothing wrong gets through it."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import threading
import time
from collections import Counter
from typing import Any, NamedTuple, Self

import zmq

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.zeromq.addresses import checked_address, control_address
from reservoir_hw.drivers.zeromq.security import Allowed, admit, check_guarded
from reservoir_hw.drivers.zeromq.sockets import bind_router
from reservoir_hw.serving.faults import FAULTS, ChaosConfig, Direction, Path, SocketName

__all__ = ["ChaosConfig", "ChaosProxy"]

log = logging.getLogger(__name__)

# Connections of clients that disappeared are dropped for new ones.
MOST_LINKS = 200
CUT_MS = 2000


class ChaosProxy:
    """Passes messages between clients at `front` and a device at `back`, and strikes them as `config` says.

        with ChaosProxy(config, front="tcp://127.0.0.1:5555", back="tcp://127.0.0.1:6555") as proxy:
            ...
        print(proxy.counts)

    Each connection of a client has one of its own to the device, which so tells clients apart.

    Args:
        front, back: Data sockets: where this listens, and where the device does.
        front_control, back_control: Control sockets; by default those that belong to the data sockets.
        allowed: Keys at the front. The device behind it must do without.
        insecure: Listen to other hosts without keys.
        max_frame_bytes: Larger messages are not taken.
    """

    def __init__(
        self,
        config: ChaosConfig,
        *,
        front: str,
        back: str,
        front_control: str | None = None,
        back_control: str | None = None,
        allowed: Allowed | None = None,
        insecure: bool = False,
        max_frame_bytes: int = 1 << 28,
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(FAULTS, 0))
        """How often each fault struck."""
        self.messages = 0
        """Messages that came to the proxy."""
        self._config = config
        self._addresses: dict[SocketName, tuple[str, str]] = {
            "data": (checked_address(front), checked_address(back)),
            "control": (
                checked_address(front_control or control_address(front)),
                checked_address(back_control or control_address(back)),
            ),
        }
        if front.startswith("unix://"):
            raise ConfigurationError(f"{front}: what passes through ZeroMQ is damaged; give a tcp or an ipc address")
        check_guarded([listening for listening, _ in self._addresses.values()], allowed, insecure=insecure)
        self._allowed = allowed
        self._max_frame_bytes = max_frame_bytes
        self._held = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        # What follows belongs to the thread.
        self._lanes: list[_Lane] = []
        self._poller = zmq.Poller()
        self._waiting: list[_Waiting] = []
        self._number = itertools.count()

    def __enter__(self) -> Self:
        context: zmq.Context[Any] = zmq.Context()
        with contextlib.ExitStack() as held:
            held.callback(context.destroy, linger=0)
            held.enter_context(admit(context, self._allowed))
            self._lanes = [_Lane(name, context, *pair) for name, pair in self._addresses.items()]
            for lane in self._lanes:
                self._listen(lane)
            self._end, ended = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            self._end.bind("inproc://end")
            ended.connect("inproc://end")
            self._thread = threading.Thread(target=self._run, args=(ended,), name="chaos", daemon=True)
            self._thread.start()
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut all connections. Idempotent."""
        if self._thread is None:
            return
        self._end.send(b"")
        self._thread.join()
        self._thread = None
        self._held.close()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self, ended: zmq.Socket[bytes]) -> None:
        self._poller.register(ended, zmq.POLLIN)
        while True:
            ready = [socket for socket, _ in self._poller.poll(self._until_next_ms())]
            if ended in ready:
                return
            for lane in self._lanes:
                if lane.front in ready:
                    self._from_client(lane)
                for link in [link for link in lane.links.values() if link.back in ready]:
                    self._from_device(lane, link)
            while self._waiting and self._waiting[0].due <= time.monotonic():
                self._deliver(heapq.heappop(self._waiting))

    def _until_next_ms(self) -> int | None:
        if not self._waiting:
            return None
        return max(0, math.ceil(1000 * (self._waiting[0].due - time.monotonic())))

    def _from_client(self, lane: _Lane) -> None:
        try:
            peer, *frames = lane.front.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        link = lane.links.pop(peer, None)
        if link is None:
            if len(lane.links) >= MOST_LINKS:
                self._forget(lane, next(iter(lane.links)))
            link = lane.new_link(peer, self._config)
            self._poller.register(link.back, zmq.POLLIN)
        # At the end. The connection that was silent for longest is dropped first.
        lane.links[peer] = link
        self._pass_on(lane, link, "to_device", frames)

    def _from_device(self, lane: _Lane, link: _Link) -> None:
        # What struck the one before may have cut this connection.
        if lane.links.get(link.peer) is link:
            with contextlib.suppress(zmq.Again):
                self._pass_on(lane, link, "to_client", link.back.recv_multipart(zmq.DONTWAIT))

    def _pass_on(self, lane: _Lane, link: _Link, direction: Direction, frames: list[bytes]) -> None:
        path, now = link.paths[direction], time.monotonic()
        passage = path.take(frames)
        self.messages += 1
        self.counts.update(passage.faults)
        if passage.faults:
            log.debug("%s %s: %s", lane.name, direction, ", ".join(passage.faults))
        if "kill" in passage.faults:
            if path.heads_or_tails():
                self._forget(lane, link.peer)
            else:
                self._cut_clients(lane)
            return
        due = now + passage.delay_s
        if not passage.overtaken:
            due = path.free_at = max(due, path.free_at)
        for arriving in passage.arriving:
            heapq.heappush(self._waiting, _Waiting(due, next(self._number), lane, link, direction, arriving))

    def _deliver(self, message: _Waiting) -> None:
        _, _, lane, link, direction, frames = message
        if lane.links.get(link.peer) is not link:
            return
        try:
            if direction == "to_device":
                link.back.send_multipart(frames)
            else:
                lane.front.send_multipart([link.peer, *frames])
        except zmq.Again:
            log.warning("%s %s: a message was lost, nobody takes them", lane.name, direction)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(lane, link.peer)

    def _listen(self, lane: _Lane) -> None:
        lane.front = lane.context.socket(zmq.ROUTER)
        bind_router(lane.front, lane.front_address, self._max_frame_bytes, self._allowed)
        self._poller.register(lane.front, zmq.POLLIN)

    def _forget(self, lane: _Lane, peer: bytes) -> None:
        """Cut the connection of one client to the device."""
        link = lane.links.pop(peer)
        self._poller.unregister(link.back)
        link.back.close(linger=0)

    def _cut_clients(self, lane: _Lane) -> None:
        """Cut the connections of all clients: a ROUTER cannot leave one of them alone."""
        for peer in list(lane.links):
            self._forget(lane, peer)
        monitor = lane.front.get_monitor_socket(zmq.EVENT_CLOSED)
        # A wildcard address has another name by now.
        lane.front.unbind(lane.front.getsockopt_string(zmq.LAST_ENDPOINT))
        # The address is free, and its file gone, when this event has come.
        monitor.poll(CUT_MS)
        lane.front.disable_monitor()
        monitor.close()
        self._poller.unregister(lane.front)
        lane.front.close(linger=0)
        self._listen(lane)


class _Link(NamedTuple):
    """A client's connection, continued to the device."""

    peer: bytes
    back: zmq.Socket[bytes]
    paths: dict[Direction, Path]


class _Lane:
    """The data or the control socket, with the connections through it."""

    front: zmq.Socket[bytes]

    def __init__(self, name: SocketName, context: zmq.Context[Any], front_address: str, back_address: str) -> None:
        self.name: SocketName = name
        self.context = context
        self.front_address = front_address
        self.links: dict[bytes, _Link] = {}
        self._back_address = back_address
        self._made = 0

    def new_link(self, peer: bytes, config: ChaosConfig) -> _Link:
        """A connection to the device for a client that is not known yet."""
        back = self.context.socket(zmq.DEALER)
        back.setsockopt(zmq.SNDTIMEO, 0)
        back.setsockopt(zmq.IPV6, "[" in self._back_address)
        back.connect(self._back_address)
        self._made += 1
        return _Link(
            peer,
            back,
            {
                "to_device": Path(config, self.name, "to_device", self._made),
                "to_client": Path(config, self.name, "to_client", self._made),
            },
        )


class _Waiting(NamedTuple):
    """A message on its way; compared by its time, then by its number."""

    due: float
    number: int
    lane: _Lane
    link: _Link
    direction: Direction
    frames: list[bytes]
