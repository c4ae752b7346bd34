"""The client and devices that somebody else made: what they send is used, or refused as against the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq
from served import served
from toys import SnapshotToy, Toy

from reservoir_hw.backends.zeromq import ZmqConfig, ZmqReservoir
from reservoir_hw.core.errors import ConfigurationError, DeviceError, DeviceFault, ProtocolError
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.drivers.zeromq import Connection, encoding_of
from reservoir_hw.drivers.zeromq.frames import (
    REPLY,
    Header,
    Operation,
    pack_control,
    pack_header,
    pack_map,
    unpack_control,
    unpack_header,
)

SPEC: dict[str, Any] = {
    "inputs": 1,
    "nodes": 3,
    "identity": {"vendor": "v", "model": "m", "simulated": False},
    "snapshot": True,
}
DECLARATION: dict[str, Any] = {"spec": SPEC, "inputs": [1, 1.0], "states": [1, 1.0], "chunked": True, "finite": True}


class Foreign(threading.Thread):
    """Answers what it is told to."""

    def __init__(
        self,
        address: str,
        declaration: dict[str, Any],
        snapshot: bytes = b"",
        value: Callable[[int], float] = float,
        fault: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.fault = fault
        self.declaration, self.snapshot, self.value = declaration, snapshot, value
        self.ended = threading.Event()
        self.context = zmq.Context()
        self.sockets = [self.context.socket(zmq.ROUTER) for _ in range(2)]
        for socket, name in zip(self.sockets, (f"{address}.control", address), strict=True):
            socket.bind(name)

    def run(self) -> None:
        control = self.sockets[0]
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        self.finished = 0
        while not self.ended.is_set():
            for socket, _ in poller.poll(50):
                peer, *frames = socket.recv_multipart()
                socket.send_multipart([peer, *(self.told(frames[0]) if socket is control else self.done(*frames))])
        self.context.destroy(linger=0)

    def told(self, frame: bytes) -> list[bytes]:
        message = unpack_control(frame)
        answers = {
            "hello": {"op": "welcome", "version": 1, "session": 7, "lease_s": 5, "credits": 4, "max_frame_bytes": 9000},
            "ping": {"op": "pong", "valid": True, "received": self.finished, "finished": self.finished, "busy": None},
        }  # fmt: skip
        return [pack_control({**answers.get(message["op"], {"op": "ok"}), "id": message["id"]})]

    def done(self, head: bytes, payload: bytes) -> list[bytes]:
        header, _ = unpack_header(head)
        self.finished = header.request
        reply, answer = Header(header.operation | REPLY, header.session, header.request), b""
        match header.operation:
            case Operation.ATTACH:
                answer = pack_map(self.declaration)
            case Operation.RESET:
                reply = reply._replace(batch=header.batch)
            case Operation.SNAPSHOT:
                answer = self.snapshot
            case Operation.RUN if self.fault is not None and header.step > 0:
                reply, answer = reply._replace(operation=0xFF), pack_map({"code": 13, "text": "fault", **self.fault})
            case Operation.RUN:
                states = np.ones((header.batch, header.steps, 3), np.float32)
                states[:, :, 0] = [self.value(header.step + step) for step in range(header.steps)]
                answer = states.tobytes()
                reply = header._replace(operation=header.operation | REPLY, width=3, dtype=1)
        return [pack_header(reply, answer), answer]


@pytest.fixture
def foreign(address: str) -> Iterator[Callable[..., ZmqReservoir]]:
    started: list[Foreign] = []

    def start(*arguments: Any, config: dict[str, Any] | None = None, **more: Any) -> ZmqReservoir:
        started.append(Foreign(address, *arguments, **more))
        started[-1].start()
        return ZmqConfig.model_validate({"kind": "zmq", "address": address, "timeout_s": 2, **(config or {})}).build()

    yield start
    for device in started:
        device.ended.set()
        device.join()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 2**62}, "4611686018427387904 nodes; 4294967295 can be sent"),
        ({"inputs": 2**33}, "8589934592 inputs and 3 nodes"),
        ({"input_range": [-1e300, 1e300]}, "input_range .* no float32 number is as large"),
        ({"state_range": [0.0, 1e39]}, "state_range .* no float32 number is as large"),
        ({"input_range": [0.0, float("inf")]}, "finite number"),
    ],
    ids=["nodes", "inputs", "input range", "state range", "infinite"],
)
def test_no_array_can_hold_what_it_declares(
    foreign: Callable[..., ZmqReservoir], changes: dict[str, Any], message: str
) -> None:
    device = foreign({**DECLARATION, "spec": {**SPEC, **changes}})
    with pytest.raises(ProtocolError, match=message):
        device.open()


def test_a_scale_that_the_dtype_does_not_hold(foreign: Callable[..., ZmqReservoir]) -> None:
    with pytest.raises(ProtocolError, match="too large for float32"):
        foreign({**DECLARATION, "states": [3, 1e300]}).open()


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        ({}, "holds no array"),
        ({"x": 5}, "'x' is not"),
        ({"x": ["f4", [], bytes(4)]}, r"'x' of the snapshot has shape \[\], not a row for each of 1"),
        ({"x": ["f4", [2], bytes(8)]}, r"shape \[2\], not a row for each of 1"),
    ],
    ids=["empty", "no array", "no axis", "too many rows"],
)
def test_snapshots_that_are_none(foreign: Callable[..., ZmqReservoir], snapshot: dict[str, Any], message: str) -> None:
    with foreign(DECLARATION, pack_map(snapshot)) as device:
        with pytest.raises(ProtocolError, match=message):
            device.snapshot()
        with pytest.raises(DeviceError, match="can no longer be used"):
            device.run(np.zeros((1, 2, 1)))


def test_a_snapshot_of_nothing_is_not_restored(address: str) -> None:
    with served(SnapshotToy(), address), open_reservoir({"kind": "zmq", "address": address}) as far:
        only = {name: array for name, array in far.snapshot().items() if name.startswith("contract.")}
        with pytest.raises(ConfigurationError, match="holds no array of the device"):
            far.restore(only)


# ---- states that are not finite ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finite", "check_states", "seen"),
    [
        (True, None, False),
        (True, True, True),
        (True, False, False),
        (False, None, True),
        (False, True, True),
        (False, False, False),
    ],
)
def test_who_looks_for_states_that_are_not_finite(
    foreign: Callable[..., ZmqReservoir], finite: bool, check_states: bool | None, seen: bool
) -> None:
    device = foreign(
        {**DECLARATION, "finite": finite},
        value=lambda step: np.nan if step == 7 else 1.0,
        config={"check_states": check_states, "chunk_steps": 4},
    )
    with device:
        u = np.zeros((1, 20, 1))
        if not seen:
            assert np.isnan(device.run(u)).sum() == 1
            return
        with pytest.raises(DeviceFault, match="step 7, node 0") as caught:
            device.run(u)
        assert caught.value.steps_done == 7
        device.reset()
        with pytest.raises(DeviceFault, match="not finite"):
            list(device.stream([u[:, :5], u]))


def test_what_is_finite_in_wider_numbers_need_not_be_here(foreign: Callable[..., ZmqReservoir]) -> None:
    with foreign({**DECLARATION, "states": [2, 1.0]}) as device:
        assert not device._declaration.finite


# ---- sizes, counts, addresses -----------------------------------------------------------------------


NAN_STATES = np.array([[[1, 2, 3], [1, np.nan, 3]]], np.float32).tobytes()


@pytest.mark.parametrize(
    ("fault", "steps_done"),
    [
        ({"steps_done": -1, "states": np.ones((1, 2, 3), np.float32).tobytes()}, 2),
        ({"steps_done": -3}, 2),
        ({"steps_done": 1, "states": np.ones((1, 1, 3), np.float32).tobytes()}, 3),
        ({"steps_done": 2, "states": NAN_STATES}, 3),
    ],
)
def test_what_comes_with_a_fault_is_looked_at(
    foreign: Callable[..., ZmqReservoir], fault: dict[str, Any], steps_done: int
) -> None:
    with foreign(DECLARATION, fault=fault, config={"chunk_steps": 2}) as device:
        with pytest.raises(DeviceFault) as caught:
            device.run(np.zeros((1, 6, 1), np.float32))
        assert caught.value.steps_done == steps_done
        assert caught.value.states is not None
        assert caught.value.states.shape == (1, steps_done, 3)
        assert np.isfinite(caught.value.states).all()
        assert device.counters.steps == steps_done


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_chunks_fit_into_frames_of_wide_numbers(address: str, dtype: str) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 5000, 2)).astype(np.float32)
    with Toy(dtype="float32") as here:
        true = here.run(u)
    wide = encoding_of(dtype)
    with (
        served(Toy(dtype="float32"), address, inputs=wide, states=wide, max_frame_bytes=4096),
        open_reservoir({"kind": "zmq", "address": address}) as far,
    ):
        assert np.array_equal(far.run(u), true)


def test_outputs_of_a_readout_are_counted(address: str) -> None:
    with served(Toy(fails_at=60), address), open_reservoir({"kind": "zmq", "address": address}) as far:
        assert isinstance(far, ZmqReservoir)
        far.set_readout(np.eye(2), np.zeros(2), dtype="float32")
        far.run_outputs(np.ones((1, 50, 2)))
        assert far.counters.steps == far.status()["counters"]["steps"] == 50
        assert far.latency.calls == 1
        with pytest.raises(DeviceFault):
            far.run_outputs(np.ones((1, 70, 2)))
        assert far.counters.faults == 1


def test_a_transition_of_nothing_gives_nothing(address: str) -> None:
    u, states = np.ones((0, 2)), np.ones((0, 2))
    with served(SnapshotToy(), address), open_reservoir({"kind": "zmq", "address": address}) as far:
        with SnapshotToy() as here:
            expected = here.transition(u, states)
        got = far.transition(u, states)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"address": "tcp://*:5555"}, "name the host"),
        ({"address": "ipc:///tmp/x", "control": "tcp://*:5555"}, "name the host"),
        ({"address": "tcp://*:5555", "control": "ipc:///tmp/x"}, "name the host"),
        ({"address": "tcp://.:5555"}, "is not tcp"),
        ({"address": "tcp://[zz]:5555"}, "is not tcp"),
        ({"address": "tcp://127.0.0.1:65535"}, "65535: there is no port behind it"),
        ({"address": "ipc:///tmp/x", "timeout_s": 1e10}, "less than or equal to 86400"),
        ({"address": "ipc:///tmp/x", "timeout_s": float("inf")}, "finite number"),
    ],
)
def test_mistakes_are_seen_before_anything_is_sent(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ZmqConfig.model_validate({"kind": "zmq", **changes})


@pytest.mark.parametrize("timeout_s", [1e10, 0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none(timeout_s: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s is"):
        Connection("ipc:///tmp/x", timeout_s=timeout_s)


def test_what_zeromq_itself_refuses_is_one_sentence() -> None:
    with pytest.raises(ConfigurationError, match="is nothing to connect to"):
        Connection("tcp://-:5555", timeout_s=0.5)
