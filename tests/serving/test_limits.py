"""What a server and a client refuse before it costs anything."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest
import zmq
from served import connect, served, until
from toys import SnapshotToy, Toy

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported
from reservoir_hw.drivers.zeromq import Connection, encoding_of, make_keys
from reservoir_hw.drivers.zeromq.frames import Operation
from reservoir_hw.drivers.zeromq.security import read_pair, read_public
from reservoir_hw.serving import Server
from reservoir_hw.serving.data_socket import DataSocket


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


def test_strangers_fill_no_more_than_a_short_queue_while_the_device_is_busy(address: str) -> None:
    device = Held()
    with served(device, address, credits=2, max_frame_bytes=1 << 20):
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
    with served(device, address) as server:
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
        until(lambda: server._lease.work is None)
        assert second.ask("ping", session=second._session)["finished"] == 0
        second.attach()
        second.close()


def test_a_readout_must_be_finite(address: str) -> None:
    with served(Toy(), address), connect(address) as remote:
        weights = np.ones((2, 2))
        weights[0, 0] = np.nan
        for dtype in ("int8", "int16", "float32"):
            with pytest.raises(ConfigurationError, match="finite"):
                remote.set_readout(weights, np.zeros(2), dtype=dtype)
        with pytest.raises(ConfigurationError, match="finite"):
            remote._connection.load_readout(weights.astype(np.float32), np.ones(2), np.zeros(2))


def test_weights_that_do_not_travel_leave_the_device_as_it_is(address: str) -> None:
    with served(SnapshotToy(), address), connect(address) as remote:
        with pytest.raises(ConfigurationError, match="float16, which does not travel"):
            remote.upload({"gain": np.full(1, 2, np.float16)})
        remote.reset(1)
        assert np.isfinite(remote.run(np.ones((1, 3, 2)))).all()


def test_integers_narrow_the_range_of_inputs(address: str) -> None:
    with (
        served(Toy(input_range=(-1.0, 1.0)), address, inputs=encoding_of("int16", 2.0**-15)),
        connect(address) as remote,
    ):
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
    for name, secret in (("short.key", ""), ("short.key_secret", '    secret-key = "def"')):
        (tmp_path / name).write_text(f'metadata\ncurve\n    public-key = "abc"\n{secret}\n')
    for read, name in ((read_public, "short.key"), (read_pair, "short.key_secret")):
        with pytest.raises(ConfigurationError, match="its key is not 40 characters"):
            read(tmp_path / name)
    with pytest.raises(ConfigurationError, match="does not belong to its public key"):
        read_pair(tmp_path / "mixed.key_secret")


class Buffered(Toy):
    """Answers with memory of its own, which it uses again."""

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        states = super()._run(u, None)
        if not hasattr(self, "buffer"):
            self.buffer = np.empty((1, 1 << 16, 2))
        self.buffer[:, : u.shape[1]] = states
        return self.buffer[:, : u.shape[1]]


@pytest.mark.slow
def test_a_device_may_use_its_memory_again(address: str) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 40_000, 2))
    with Toy() as here:
        true = here.run(u)
    with served(Buffered(), address), connect(address, chunk_steps=8000) as far:
        assert np.array_equal(far.run(u), true)


def test_answers_have_the_limit_of_requests(address: str) -> None:
    class Heavy(SnapshotToy):
        def _snapshot(self) -> dict[str, np.ndarray]:
            return {**super()._snapshot(), "heavy": np.zeros((1, 100_000))}

    with served(Heavy(), address, max_frame_bytes=1 << 16), connect(address, chunk_steps=1000) as far:
        with pytest.raises(ConfigurationError, match=r"the answer has .* bytes, at most 65536"):
            far.snapshot()
        far.set_readout(np.ones((5000, 2)), np.zeros(5000), dtype="int8")
        with pytest.raises(ConfigurationError, match="5000 numbers are"):
            far.run_outputs(np.ones((1, 1000, 2)))


def test_outputs_of_nothing_and_of_what_takes_several_drives(address: str) -> None:
    with served(Toy(), address), connect(address) as far:
        far.set_readout(np.eye(2), np.zeros(2), dtype="float32")
        assert far.run_outputs(np.ones((1, 0, 2))).shape == (1, 0, 2)
        with pytest.raises(ConfigurationError, match="do not fit into float32"):
            far.set_readout(np.full((1, 2), 1e39), np.zeros(1), dtype="int8")
        assert np.array_equal(far.run_outputs(np.ones((1, 1, 2))), np.ones((1, 1, 2)))
    with served(Toy(continuity="replayed", memory_steps=60), address), connect(address) as far:
        far.set_readout(np.eye(2), np.zeros(2), dtype="float32")
        with pytest.raises(NotSupported, match="several drives"):
            far.run_outputs(np.ones((1, 4, 2)))
    with served(Toy(max_batch=1), address), connect(address) as far:
        far.set_readout(np.eye(2), np.zeros(2), dtype="float32")
        far.reset(2)
        with pytest.raises(NotSupported, match="several drives"):
            far.run_outputs(np.ones((2, 4, 2)))


def test_integers_that_the_dtype_of_the_device_cannot_tell_apart(address: str) -> None:
    """The largest int32 at a scale of 2^-31 is 1 in float32, which does not fit."""
    with (
        served(Toy(dtype="float32"), address, inputs=encoding_of("int32", 2.0**-31)),
        connect(address, out_of_range="clip") as far,
    ):
        assert far.spec.input_range is not None
        assert far.spec.input_range[1] < 1.0
        far.run(np.full((1, 50, 2), 1.0, np.float32))
        assert far.counters.clipped == 100


def test_a_scale_that_does_not_reach_the_range_is_refused_at_the_start(address: str) -> None:
    server = Server(Toy(input_range=(10.0, 20.0)), address, inputs=encoding_of("int8", 2.0**-7))
    with pytest.raises(ConfigurationError, match=r"cannot reach the device's range \(10.0, 20.0\)"):
        server.run()


def test_a_file_is_not_taken_for_a_socket(tmp_path: Path) -> None:
    precious = tmp_path / "data.csv"
    precious.write_text("1,2,3")
    for place in (precious, tmp_path / "link"):
        if place != precious:
            place.symlink_to(precious)
        with pytest.raises(ConfigurationError, match="there is something that is no socket"):
            Server(Toy(), f"ipc://{place}").run()
    assert precious.read_text() == "1,2,3"


@pytest.mark.slow
def test_an_interruption_while_clients_are_turned_away_leaves_the_device_safe(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy()
    server = Server(toy, address)

    def interrupted(self: DataSocket) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DataSocket, "turn_away", interrupted)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert server.wait_ready()
    with connect(address, timeout_s=1) as far:
        far.run(np.ones((1, 3, 2)))
        opened = toy.closed
        server.stop()
        thread.join()
        assert toy.closed == opened + 1
    assert isinstance(ended[0], KeyboardInterrupt)
    assert not toy.is_open
