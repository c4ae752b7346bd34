"""The other end of `transport.py`, in a process of its own: a device that does nothing, a bare socket, or the wire.

python benchmarks/_transport_peer.py ours|bare|wire ADDRESS INPUTS NODES
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any

import numpy as np
import zmq

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.drivers.zeromq.addresses import control_address
from reservoir_hw.drivers.zeromq.frames import REPLY, pack_header
from reservoir_hw.drivers.zeromq.links import Gone, Listening, Terms
from reservoir_hw.drivers.zeromq.transports import routers
from reservoir_hw.serving import Server


class Nothing(Reservoir):
    """A device whose states are there before they are asked for; where memory is given it fills that."""

    def __init__(self, inputs: int, nodes: int) -> None:
        identity = Identity(vendor="reservoir_hw", model="nothing", simulated=True)
        super().__init__(ReservoirSpec(inputs=inputs, nodes=nodes, identity=identity, deterministic=True))
        self._states = np.random.default_rng(0).standard_normal((1, 1 << 14, nodes), dtype=np.float32)

    def _run(self, u: Any, out: Any) -> Any:
        return self._states[:, : u.shape[1]]


def bare(address: str, nodes: int) -> None:
    """Answer each message with 80 bytes and as many states as the first four bytes of its first frame say."""
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(address)
    states: Any = np.random.default_rng(0).standard_normal((1 << 14, nodes), dtype=np.float32)
    head = bytes(80)
    while True:
        peer, header, _ = socket.recv_multipart(copy=False)
        answer = states[: int.from_bytes(header.bytes[:4], "little")]
        socket.send_multipart([peer, head, answer], copy=answer.nbytes < 1 << 16)


def wire(address: str, nodes: int) -> None:
    """Answer each request with one step of states, checked and packed as the page says, without a device."""
    states: Any = np.random.default_rng(0).standard_normal((1, 1, nodes), dtype=np.float32)
    with contextlib.ExitStack() as held:
        how = Listening(1 << 28, allowed=None, room=16, idle_s=10.0, patience_s=10.0)
        router, _ = routers(held, address, control_address(address), how)
        attached = None
        while True:
            try:
                message = router.receive()
            except TimeoutError:
                continue
            except Gone:
                return
            header, crc = message.header()
            if attached is None:
                attached = message.peer
                router.attach(message, Terms(checksums=not address.startswith("unix")))
            message.payload(header, crc)
            reply = header._replace(operation=header.operation | REPLY)
            packed = pack_header(reply, states, checksums=router.terms.checksums)
            router.send(attached, packed, states, header.request)


def main() -> None:
    """Serve until the process is ended."""
    who, address, inputs, nodes = sys.argv[1:]
    if who == "bare":
        bare(address, int(nodes))
        return
    if who == "wire":
        wire(address, int(nodes))
        return
    server = Server(Nothing(int(inputs), int(nodes)), address)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.run()


if __name__ == "__main__":
    main()
