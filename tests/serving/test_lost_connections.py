"""The other side is killed, goes silent, or is interrupted: what each end is told, and how it goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from served import free_address, ipc_address, served, until
from toys import TOY, SnapshotToy, Toy

from reservoir_hw.core.errors import (
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    ReservoirError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.drivers.zeromq import Connection
from reservoir_hw.drivers.zeromq.addresses import control_address
from reservoir_hw.drivers.zeromq.frames import Operation, pack_control

from .bad_network import BadNetwork, Direction, SocketName, Strike

HERE = Path(__file__).parent
PATIENCE_S = 30.0


def inputs(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (1, steps, 2))


def true_states(u: np.ndarray) -> np.ndarray:
    with Toy() as local:
        return np.asarray(local.run(u))


def connect(address: str, **settings: Any) -> Reservoir:
    return open_reservoir({"kind": "zmq", "address": address, "timeout_s": 0.5, **settings})


@contextlib.contextmanager
def process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said its first line; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline()
            yield child
        finally:
            child.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "credits"), [("tcp", 1), ("ipc", 4), ("unix", 1), ("unix", 4)])
def test_a_server_that_is_killed_in_a_run(scheme: str, credits: int) -> None:
    u = inputs(100)
    with contextlib.ExitStack() as stack:
        address = free_address() if scheme == "tcp" else stack.enter_context(ipc_address(scheme))
        with process("mortal_server.py", address, "57") as server:
            device = stack.enter_context(connect(address, credits=credits, chunk_steps=10))
            started = time.monotonic()
            with pytest.raises(DeviceDisconnected, match="has gone") as caught:
                device.run(u)
            elapsed = time.monotonic() - started
            assert server.wait(PATIENCE_S) == -signal.SIGKILL
        done = caught.value.steps_done
        # With several chunks under way the last answers may have died with the process.
        assert done == 50 or (credits > 1 and done in range(0, 50, 10))
        assert np.array_equal(caught.value.states, true_states(u)[:, :done])
        assert elapsed < 3.0
        with pytest.raises(StateLost):
            device.run(u)
        with pytest.raises(DeviceDisconnected, match=r"close\(\) and open\(\)"):
            device.reset()
        with process("mortal_server.py", address, "1000000"):
            # The same connection does not come back by itself, even though the server has.
            with pytest.raises(DeviceDisconnected, match=r"close\(\) and open\(\)"):
                device.reset()
            device.close()
            device.open()
            assert np.array_equal(device.run(u), true_states(u))
            device.close()


@pytest.mark.slow
def test_a_client_that_is_killed_gives_the_device_back() -> None:
    safe = threading.Event()

    class Watched(Toy):
        def _close(self) -> None:
            safe.set()

    with ipc_address() as address, served(Watched(), address, lease_s=0.5) as server:
        with process("idle_client.py", address) as client:
            holder = server.status()["holder"]
            assert f"process {client.pid}" in holder
            safe.clear()
            client.kill()
            started = time.monotonic()
            assert safe.wait(PATIENCE_S), "the device was not brought to its safe state"
            assert time.monotonic() - started < 5.0
        with connect(address) as device:
            assert np.array_equal(device.run(inputs(20)), true_states(inputs(20)))
        assert server.status()["traffic"]["expired_leases"] == 1


class NextClient(logging.Handler):
    """When a lease runs out, its holder says goodbye after all, and somebody else takes the device."""

    def __init__(self, address: str, holder: int) -> None:
        super().__init__()
        self._address, self._holder = address, holder
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) != "lease expired":
            return
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.connect(control_address(self._address))
            socket.send(pack_control({"op": "goodbye", "session": self._holder, "id": 1}))
            assert socket.poll(int(PATIENCE_S * 1000))
        self.connection = Connection(self._address)
        self.came.set()


@pytest.mark.slow
def test_who_comes_while_a_lease_runs_out_keeps_the_device() -> None:
    with ipc_address() as address, served(Toy(), address, lease_s=0.5) as server:
        with process("idle_client.py", address) as client:
            coming = NextClient(address, holder=server._lease.number)
            logger = logging.getLogger("reservoir_hw.serving.data_socket")
            logger.addHandler(coming)
            try:
                client.kill()
                assert coming.came.wait(PATIENCE_S)
            finally:
                logger.removeHandler(coming)
        coming.connection.attach()
        coming.connection.close()


@contextlib.contextmanager
def going_silent(front: str, back: str, socket: SocketName, direction: Direction, after: int) -> Iterator[BadNetwork]:
    """A network that is half open from the message on that comes after so many."""
    with BadNetwork(front, back) as network:
        for _ in range(100):
            network.strike(Strike("drop", socket, direction, after))
        yield network


@pytest.mark.parametrize("direction", ["to_device", "to_client"])
def test_data_that_do_not_pass_any_more(direction: Direction) -> None:
    u = inputs(200)
    with ipc_address() as back, ipc_address() as front, served(Toy(), back) as server:
        # The first message is that of ATTACH: 11 chunks pass.
        with going_silent(front, back, "data", direction, 12) as network:
            with connect(front, chunk_steps=10) as device:
                started = time.monotonic()
                with pytest.raises(DeviceTimeout, match="lost") as caught:
                    device.run(u)
                assert time.monotonic() - started < 3.0
                assert caught.value.steps_done == 110
                assert np.array_equal(caught.value.states, true_states(u)[:, :110])
            assert network.struck
        # The goodbye went over the other socket.
        assert server.status()["holder"] is None


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to_device", "to_client"])
def test_control_that_does_not_pass_any_more(direction: Direction) -> None:
    with ipc_address() as back, ipc_address() as front, served(Toy(), back, lease_s=0.6) as server:
        with going_silent(front, back, "control", direction, 2), connect(front) as device:

            def drive_on() -> None:
                until = time.monotonic() + PATIENCE_S
                while time.monotonic() < until:
                    device.reset()
                    device.run(inputs(5))

            with pytest.raises(DeviceDisconnected, match="no answer to 'ping'"):
                drive_on()
            until(lambda: server.status()["holder"] is None, PATIENCE_S)
        with connect(back) as device:
            assert np.array_equal(device.run(inputs(5)), true_states(inputs(5)))


# pyzmq drops an interrupt that comes while it frees a message.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_run_leaves_a_connection_that_works() -> None:
    main = threading.main_thread().ident
    assert main is not None

    class Interrupting(Toy):
        interrupts = True

        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            if self.interrupts and self.t[0] >= 30:
                self.interrupts = False
                signal.pthread_kill(main, signal.SIGINT)
            return super()._run(u, out)

    u, bench = inputs(100), Interrupting()
    with ipc_address() as address, served(bench, address), connect(address, chunk_steps=10) as device:

        def run_until_interrupted() -> None:
            for _ in range(10):
                device.run(u)
                # That interrupt was dropped.
                device.reset()
                bench.interrupts = True

        with pytest.raises(KeyboardInterrupt):
            run_until_interrupted()
        with pytest.raises(StateLost):
            device.run(u)
        device.reset()
        assert np.array_equal(device.run(u), true_states(u))


# pyzmq drops an interrupt that comes while it frees a message.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("scheme", ["ipc", "unix", "shared memory"])
def test_interruptions_at_any_moment(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """After each the connection works as if nothing had been."""
    if scheme == "shared memory":
        monkeypatch.setattr("reservoir_hw.drivers.zeromq.unix_sockets.INLINE_BYTES", 0)
        scheme = "unix"
    u, random = inputs(60), np.random.default_rng(0)
    true = true_states(u)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with (
            ipc_address(scheme) as address,
            served(Toy(), address),
            connect(address, chunk_steps=5, timeout_s=5.0) as device,
        ):
            for _ in range(300):
                device.reset()
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 4e-3))
                    states = device.run(u)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    assert np.array_equal(states, true)
                except KeyboardInterrupt:
                    interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(f"{interrupted} interrupted")
    assert interrupted > 30


class ReadingAhead(Reservoir):
    """Doubles its inputs; free running, without a known clock. It wants the next chunk before it gives the states."""

    def __init__(self) -> None:
        from reservoir_hw.core.spec import ReservoirSpec

        super().__init__(ReservoirSpec(inputs=1, nodes=1, identity=TOY, continuity="free_running"))
        self.safe = threading.Event()

    def _run(self, u: Any, out: Any) -> Any:
        return 2 * u

    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        playing = next(chunks)
        for following in chunks:
            yield 2 * playing
            playing = following
        yield 2 * playing

    def _close(self) -> None:
        self.safe.set()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_a_device_that_waits_for_what_was_lost(scheme: str) -> None:
    """It is not busy, so its client does not wait for ever, and its lease ends."""
    device = ReadingAhead()
    u = np.ones((1, 10, 1), np.float32)
    with ipc_address(scheme) as address, served(device, address, lease_s=0.5) as server:
        connection = Connection(address, timeout_s=0.5)
        connection.attach()
        first = connection.send(Operation.RUN, u, flags=1, batch=1, steps=10, width=1, dtype=1)
        # The second chunk was lost on its way.
        with pytest.raises(DeviceTimeout, match="lost"):
            connection.receive(first)
        device.safe.clear()
        connection.close()
        assert device.safe.wait(PATIENCE_S)
        with connect(address) as client:
            assert np.array_equal(client.run(u), 2 * u)
        assert server.status()["holder"] is None


@pytest.mark.parametrize("scheme", ["ipc", "unix"])
def test_an_answer_is_not_taken_for_that_of_a_later_request(scheme: str) -> None:
    """Somebody was interrupted before the answer came, and asks the same for something else."""
    with ipc_address(scheme) as address, served(SnapshotToy(), address):
        connection = Connection(address, timeout_s=0.5)
        try:
            declaration = connection.attach()

            def ask(value: float) -> Any:
                rows = declaration.states.encode(np.full((1, 1, 4), value))
                return connection.send(Operation.TRANSITION, rows, batch=1, steps=1, width=4, dtype=2)

            ask(1.0)
            second = ask(2.0)
            header, payload = connection.receive(second)
            assert np.array_equal(np.frombuffer(payload), [3.0, 3.0])
            assert header.request == second.request
            with pytest.raises(ReservoirError):
                connection.receive(second._replace(request=2))
        finally:
            connection.close()


def test_a_fault_in_a_stream_hands_out_what_was_harvested() -> None:
    u = inputs(30)

    class Observer:
        def __init__(self) -> None:
            self.driven: list[np.ndarray] = []

        def was_reset(self, *, from_rest: bool) -> None: ...

        def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
            assert states is not None
            self.driven.append(states.copy())

    with ipc_address() as address, served(Toy(fails_at=12), address), connect(address) as device:
        observer = Observer()
        with device.observed_by(observer):
            device.reset()
            with pytest.raises(DeviceFault) as caught:
                list(device.stream([u[:, :10], u[:, 10:]]))
        # Of the chunk that failed.
        assert caught.value.steps_done == 12
        assert np.array_equal(caught.value.states, true_states(u)[:, 10:22])
        assert np.array_equal(np.concatenate(observer.driven, axis=1), true_states(u)[:, :22])
