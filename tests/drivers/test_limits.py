"""What a server and a client refuse before it costs anything."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from toys import SnapshotToy, Toy

from reservoir_hw.backends.zeromq import ZmqReservoir
from reservoir_hw.drivers.zeromq import Connection, Server, encoding_of, make_keys
from reservoir_hw.drivers.zeromq.frames import Operation
from reservoir_hw.drivers.zeromq.security import read_pair, read_public
from reservoir_hw.errors import ConfigurationError, InputRangeError
from reservoir_hw.reservoir_config import open_reservoir


class Held(Toy):
    """Waits inside a run until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.inside = threading.Event()

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        self.inside.set()
        assert self.go.wait(20)
        return super()._run(u, out)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/device"


def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.wait_ready()
    yield server
    server.stop()
    thread.join()


def test_strangers_fill_no_more_than_a_short_queue_while_the_device_is_busy(address: str) -> None:
    device = Held()
    for _ in serving(Server(device, address, credits=2, max_frame_bytes=1 << 20)):
        connection = Connection(address)
        declaration = connection.attach()
        u = np.zeros((1, 1, 2))
        sent = connection.send(
            Operation.RUN, u, batch=1, steps=1, width=2, dtype=declaration.inputs.dtype, scale=declaration.inputs.scale
        )
        assert device.inside.wait(10)
        context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.SNDHWM, 1)
        stranger.setsockopt(zmq.SNDTIMEO, 300)
        stranger.connect(address)
        taken = 0
        with contextlib.suppress(zmq.Again):
            while taken < 1000:
                stranger.send(bytes(1 << 20))
                taken += 1
        # Both queues, and what lies in the buffers of the operating system.
        assert taken < 40
        device.go.set()
        connection.receive(sent)
        connection.close()
        context.destroy(linger=0)


def test_what_one_client_left_is_not_told_to_the_next(address: str) -> None:
    device = Held()
    for server in serving(Server(device, address)):
        first = Connection(address)
        declaration = first.attach()
        first.reset(1)
        first.send(
            Operation.RUN,
            np.zeros((1, 1, 2)),
            batch=1,
            steps=1,
            width=2,
            dtype=declaration.inputs.dtype,
            scale=declaration.inputs.scale,
        )
        assert device.inside.wait(10)
        first.close()
        second = Connection(address)
        device.go.set()
        until = time.monotonic() + 10
        while server._session._work is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert second.ask("ping", session=second._session)["finished"] == 0
        second.attach()
        second.close()


def test_a_readout_must_be_finite(address: str) -> None:
    for _ in serving(Server(Toy(), address)):
        with open_reservoir({"kind": "zmq", "address": address}) as remote:
            assert isinstance(remote, ZmqReservoir)
            weights = np.ones((2, 2))
            weights[0, 0] = np.nan
            for dtype in ("int8", "int16", "float32"):
                with pytest.raises(ConfigurationError, match="finite"):
                    remote.set_readout(weights, np.zeros(2), dtype=dtype)
            with pytest.raises(ConfigurationError, match="finite"):
                remote._connection.load_readout(weights.astype(np.float32), np.ones(2), np.zeros(2))


def test_weights_that_do_not_travel_leave_the_device_as_it_is(address: str) -> None:
    for _ in serving(Server(SnapshotToy(), address)):
        with open_reservoir({"kind": "zmq", "address": address}) as remote:
            with pytest.raises(ConfigurationError, match="float16, which does not travel"):
                remote.upload({"gain": np.full(1, 2, np.float16)})
            remote.reset(1)
            assert np.isfinite(remote.run(np.ones((1, 3, 2)))).all()


def test_integers_narrow_the_range_of_inputs(address: str) -> None:
    server = Server(Toy(input_range=(-1.0, 1.0)), address, inputs=encoding_of("int16", 2.0**-15))
    for _ in serving(server):
        with open_reservoir({"kind": "zmq", "address": address}) as remote:
            assert remote.spec.input_range == (-1.0, 32767 / 32768)
            remote.run(np.full((1, 2, 2), 0.5))
            with pytest.raises(InputRangeError, match="outside the range"):
                remote.run(np.ones((1, 2, 2)))
            # Nothing was sent, nothing is lost.
            remote.run(np.full((1, 2, 2), 0.5))


def test_keys_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a key file nor a key"):
        read_public("é" * 40)
    anna, eve = (make_keys(tmp_path, name)[1] for name in ("anna", "eve"))
    mixed = eve.read_text().replace(read_public(eve).decode(), read_public(anna).decode())
    (tmp_path / "mixed.key_secret").write_text(mixed)
    with pytest.raises(ConfigurationError, match="does not belong to its public key"):
        read_pair(tmp_path / "mixed.key_secret")
