"""A served device is safe when its client dies, stops, or hangs it: nothing queued by a dead session is begun."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import free_address, served
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.cli import app
from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceFault
from reservoir_hw.drivers.zeromq import release_hung, status_of

LEASE_S, REQUEST_S = 0.6, 0.3


class Slow(Toy):
    """Notes when a request was begun, and when the device was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []
        self.safe: list[float] = []
        self.inside = threading.Event()

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        self.began.append(time.monotonic())
        self.inside.set()
        time.sleep(REQUEST_S)
        return super()._run(u, out)

    def _close(self) -> None:
        super()._close()
        self.safe.append(time.monotonic())


def client(address: str) -> subprocess.Popen[bytes]:
    """Another process, with eight requests under way at any time."""
    return subprocess.Popen([sys.executable, str(Path(__file__).with_name("streaming_client.py")), address])


def death(how: signal.Signals, after_s: float) -> tuple[float, list[float]]:
    """Seconds from the death of a client to the safe state, and to each request that was begun after it."""
    device, address = Slow(), free_address()
    with served(device, address, lease_s=LEASE_S):
        process = client(address)
        try:
            assert device.inside.wait(60)
            # Inside of a request, at any phase of it.
            time.sleep(after_s)
            died = time.monotonic()
            process.send_signal(how)
            while device.safe[-1] < died:
                assert time.monotonic() < died + 20
                time.sleep(0.005)
            time.sleep(2 * REQUEST_S)
        finally:
            process.kill()
            process.wait()
    return device.safe[-2] - died, [began - died for began in device.began if began > died]


def check(how: signal.Signals, after_s: float) -> None:
    safe, begun = death(how, after_s)
    # A process that stops holds its lease until it ends; one that is gone is seen with the next answer.
    lease = 0.0 if how == signal.SIGKILL else LEASE_S
    assert safe <= lease + REQUEST_S + 0.25
    assert all(one <= lease + 0.05 for one in begun)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_that_dies_in_the_middle(how: signal.Signals) -> None:
    check(how, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_clients_that_die_at_any_moment(how: signal.Signals) -> None:
    moments = np.random.default_rng(5).uniform(0, 1.5, 24)
    with ThreadPoolExecutor(3) as three:
        list(three.map(lambda after_s: check(how, float(after_s)), moments))


class Hung(Toy):
    """Does not return from a run until its emergency stop is called."""

    def __init__(self, *, stops: bool, **declared: Any) -> None:
        super().__init__(**declared)
        self.stops, self.stopped, self.let_go = stops, threading.Event(), threading.Event()

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        if u.shape[1] > 5:
            assert self.let_go.wait(60)
        return super()._run(u, out)

    def _emergency_stop(self) -> None:
        self.stopped.set()
        if self.stops:
            self.let_go.set()


class SlowToRest(Hung):
    """Takes longer to come to rest than the lease lasts."""

    def _reset(self, batch: int) -> None:
        time.sleep(0.4)
        super()._reset(batch)


@pytest.mark.slow
def test_a_device_that_hangs_is_stopped_and_kept_until_a_person_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Three times ten steps of 20 ms and a lease of 0.3 s: the watchdog waits for 0.9 s."""
    device, address = Hung(stops=False, step_period_s=0.02), free_address()
    file = {"kind": "zmq", "address": address, "inputs": 2, "timeout_s": 2.0}
    with served(device, address, lease_s=0.3) as server:
        with pytest.raises(ConfigurationError, match="there is nothing to release"):
            release_hung(address)
        with open_reservoir(file) as reservoir:
            reservoir.run(np.zeros((1, 5, 2)))
            started = time.monotonic()
            with pytest.raises(DeviceDisconnected, match="no longer knows this session"):
                reservoir.run(np.zeros((1, 10, 2)))
        assert device.stopped.wait(10)
        assert 0.8 < time.monotonic() - started < 5
        assert "hangs in RUN" in status_of(address)["problem"]
        with pytest.raises(DeviceFault, match=r"its emergency stop was called.*device release"):
            open_reservoir(file)
        with pytest.raises(Exception, match="the request has not come back"):
            release_hung(address)
        device.let_go.set()
        while server.status()["problem"].startswith("the device hangs"):
            time.sleep(0.01)
        with pytest.raises(DeviceFault, match="the device was hanging"):
            open_reservoir(file)
        with pytest.raises(SystemExit) as ended:
            app(["device", "release", address])
        assert ended.value.code == 0
        assert "clients get the device again" in capsys.readouterr().out
        with open_reservoir(file) as reservoir:
            reservoir.run(np.zeros((1, 5, 2)))


def test_what_a_stopped_device_returns_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the emergency stop lets go gives an error, and steps that were to come are not driven."""
    with Hung(stops=True) as device:
        device.run(np.zeros((1, 5, 2)))
        stopping = threading.Timer(0.2, device.emergency_stop)
        stopping.start()
        with pytest.raises(DeviceFault, match="its emergency stop was called"):
            device.run(np.zeros((1, 10, 2)))
        stopping.join()
        with pytest.raises(DeviceFault, match="its emergency stop was called"):
            device.reset()
    with device:
        device.run(np.zeros((1, 5, 2)))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stopped_lab.py").write_text(
        "import time\nlog = []\ndef call(u):\n    log.append('drive')\n    time.sleep(0.05)\n    return u\n"
        "def stop():\n    log.append('stop')\ndef reset():\n    pass\n"
    )
    lab = {"kind": "python", "mode": "step", "call": "stopped_lab:call", "reset_call": "stopped_lab:reset"}
    lab |= {"stop_call": "stopped_lab:stop", "nodes": 1, "inputs": 1, "simulated": True, "continuity": "held"}
    with open_reservoir({**lab, "resource": "a lab that is stopped"}) as device:
        stopping = threading.Timer(0.2, device.emergency_stop)
        stopping.start()
        with pytest.raises(DeviceFault, match="its emergency stop was called") as fault:
            device.run(np.zeros((1, 20, 1)))
        stopping.join()
        log = importlib.import_module("stopped_lab").log
        assert 0 < fault.value.steps_done < 10
        assert log.count("drive") - log.index("stop") <= 1


@pytest.mark.slow
def test_a_device_that_takes_long_to_come_to_rest_is_not_stopped() -> None:
    device, address = SlowToRest(stops=False, step_period_s=0.001), free_address()
    with served(device, address, lease_s=0.1):
        with open_reservoir({"kind": "zmq", "address": address, "inputs": 2}) as reservoir:
            reservoir.reset()
            reservoir.run(np.zeros((1, 5, 2)))
        assert status_of(address)["problem"] is None
    assert not device.stopped.is_set()


@pytest.mark.slow
def test_the_watchdog_is_off_where_no_period_is_declared() -> None:
    device, address = Hung(stops=True), free_address()
    with served(device, address, lease_s=0.1), open_reservoir({"kind": "zmq", "address": address, "inputs": 2}) as one:
        timer = threading.Timer(1.0, device.let_go.set)
        timer.start()
        one.run(np.zeros((1, 10, 2)))
        timer.join()
    assert not device.stopped.is_set()
