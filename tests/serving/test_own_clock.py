"""A device with its own clock behind the server: it waits for nobody, and says when somebody was late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import served as serving
from served import until

from reservoir_hw.backends.zeromq import ZmqReservoir
from reservoir_hw.core.errors import Discontinuity, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.drivers.zeromq import Connection
from reservoir_hw.drivers.zeromq.frames import Operation
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.device import Device


class Clocked(Reservoir):
    """Doubles its inputs, one step each `period_s` of a clock that nobody stops. Keeps one chunk ahead."""

    def __init__(self, period_s: float) -> None:
        identity = Identity(vendor="tests", model="clocked", simulated=True)
        super().__init__(
            ReservoirSpec(
                inputs=1,
                nodes=1,
                identity=identity,
                continuity="free_running",
                clock="device",
                step_period_s=period_s,
                deterministic=True,
            )
        )
        self.period_s = period_s
        self.safe = 0

    def _run(self, u: Any, out: Any) -> Any:
        return np.concatenate(list(self._stream(iter([u]))), axis=1)

    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        playing = next(chunks)
        ends = time.monotonic() + playing.shape[1] * self.period_s
        for following in chunks:
            if time.monotonic() > ends:
                raise Discontinuity("the clock went on", step=0)
            time.sleep(max(0.0, ends - time.monotonic()))
            yield 2 * playing
            playing, ends = following, ends + following.shape[1] * self.period_s
        time.sleep(max(0.0, ends - time.monotonic()))
        yield 2 * playing

    def _close(self) -> None:
        self.safe += 1


@pytest.fixture
def served(address: str) -> Iterator[tuple[Clocked, str]]:
    device = Clocked(1e-3)
    with serving(device, address):
        yield device, address


@pytest.mark.slow
def test_a_run_in_many_chunks_has_no_gap(served: tuple[Clocked, str]) -> None:
    device, address = served
    u = np.random.default_rng(0).uniform(-1, 1, (1, 800, 1)).astype(np.float32)
    with open_reservoir({"kind": "zmq", "address": address, "chunk_steps": 100}) as client:
        assert np.array_equal(client.run(u), 2 * u)
        with pytest.raises(StateLost, match="free running"):
            client.run(u)
        client.reset(1)
        assert np.array_equal(np.concatenate(list(client.stream(np.split(u, 8, axis=1))), axis=1), 2 * u)
        told = client.provenance()["device_time"]
    assert told["step"] == 700
    assert told["period_s"] == 1e-3
    assert device.counters.underruns == device.counters.overruns == 0


@pytest.mark.slow
def test_chunks_may_take_longer_than_the_longest_wait(served: tuple[Clocked, str]) -> None:
    """While the device plays what it took beforehand, it is at work."""
    _, address = served
    u = np.random.default_rng(1).uniform(-1, 1, (1, 2400, 1)).astype(np.float32)
    with open_reservoir({"kind": "zmq", "address": address, "chunk_steps": 800, "timeout_s": 0.3}) as client:
        assert np.array_equal(client.run(u), 2 * u)


def test_late_inputs_are_a_discontinuity_at_their_step(served: tuple[Clocked, str]) -> None:
    device, address = served
    u = np.zeros((1, 50, 1), np.float32)
    late = threading.Event()

    def chunks() -> Iterator[np.ndarray]:
        yield u
        yield u
        # Nothing is sent until long after both chunks were played.
        late.wait(0.5)
        yield u

    with open_reservoir({"kind": "zmq", "address": address}) as client:
        with pytest.raises(Discontinuity, match=r"discontinuity at step (50|100)") as caught:
            list(client.stream(chunks()))
        assert caught.value.step in (50, 100)
        assert client.status()["counters"]["underruns"] == 1  # type: ignore[attr-defined]
        # What is next has to begin anew.
        with pytest.raises(StateLost):
            client.run(u)
        client.reset(1)
        assert np.array_equal(client.run(u + 1), 2 * (u + 1))
    assert device.counters.underruns == 1


def test_a_chunk_that_comes_too_late_is_not_played(served: tuple[Clocked, str]) -> None:
    """By hand: the first chunk says that more follows, and nothing follows."""
    _, address = served
    connection = Connection(address)
    try:
        declaration = connection.attach()
        assert declaration.chunked
        u = np.zeros((1, 30, 1), np.float32)
        sent = connection.send(
            Operation.RUN, u, flags=1, batch=1, steps=30, width=1, dtype=declaration.inputs.dtype, scale=1.0
        )
        with pytest.raises(Discontinuity) as caught:
            connection.receive(sent)
        assert caught.value.step == 30
    finally:
        connection.close()


@pytest.mark.parametrize("damaged", [True, False])
def test_what_is_refused_meanwhile_is_answered_behind_the_chunk_at_hand(
    served: tuple[Clocked, str], damaged: bool
) -> None:
    _, address = served
    u = np.zeros((1, 100, 1), np.float32)
    with Device(address) as line, line.client() as client:
        client.hello()
        client.attach()
        requests = [client.send_run(u, flags=wire.MORE)]
        for _ in range(2):
            header = client.head_of_run(u, step=100 * len(requests), flags=wire.MORE)
            front, payload = wire.pack_data(header, u.tobytes())
            client.send_raw([front, b"x" if damaged and len(requests) == 1 else payload])
            client.sent = header.request
            requests.append(header)
        if not damaged:
            client.told("cancel", session=client.session, request=client.sent)
        # `reply` refuses what comes in another order.
        errors = [client.reply(request).error for request in requests]
        codes = [0 if error is None else error["code"] for error in errors]
        # What is cancelled may be done already.
        assert codes == [11, 5, 11] if damaged else codes in ([15] * 3, [0, 15, 15], [0, 0, 15])


def test_a_time_that_does_not_follow_is_noticed(served: tuple[Clocked, str]) -> None:
    """The client compares the device's times, whatever the device thinks of itself."""
    _, address = served
    with open_reservoir({"kind": "zmq", "address": address, "chunk_steps": 20}) as client:
        assert isinstance(client, ZmqReservoir)
        connection, true = client._connection, client._connection.receive

        def jumping(expected: Any) -> Any:
            header, payload = true(expected)
            return header._replace(time_ns=header.time_ns + (2_000_000 if header.step == 40 else 0)), payload

        connection.receive = jumping
        with pytest.raises(Discontinuity, match="step 40") as caught:
            client.run(np.zeros((1, 100, 1), np.float32))
        assert caught.value.step == 40


def test_its_safe_state_when_the_client_vanishes(address: str) -> None:
    device = Clocked(1e-3)
    with serving(device, address, lease_s=0.3) as server:
        before = device.safe
        connection = Connection(address)
        connection.attach()
        # As if its process had been killed: no goodbye, no heartbeat.
        connection._closing.set()
        assert connection._heartbeat is not None
        connection._heartbeat.join()
        connection._held.close()
        until(lambda: device.safe > before, 5)
        assert device.safe == before + 1
        assert server.status()["holder"] is None
        assert server.status()["traffic"]["expired_leases"] == 1
