"""Devices behind a socket behave as they do here: the same states, rules, refusals and faults."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from served import free_address, ipc_address, served
from toys import SnapshotToy, Toy

from reservoir_hw import open_reservoir
from reservoir_hw.backends.zeromq import ZmqReservoir
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    InputRangeError,
    NotSupported,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir
from reservoir_hw.drivers.zeromq import Allowed, Encoding, make_keys
from reservoir_hw.drivers.zeromq.security import read_pair, read_public
from reservoir_hw.experiment.states.drive import Recorder
from reservoir_hw.serving import Server

NOISY = {
    "kind": "esn",
    "nodes": 20,
    "inputs": 2,
    "nonidealities": {"loop": {"noise": 0.01}, "readout": {"noise": 0.01}},
}


def built(config: dict[str, Any]) -> Reservoir:
    return build_reservoir(parse_reservoir(Document.from_mapping(config, "test")))


def drive(batch: int, steps: int, inputs: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (batch, steps, inputs))


@pytest.fixture(params=["tcp", "ipc"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "tcp":
        yield free_address()
        return
    with ipc_address() as address:
        yield address


@pytest.fixture(params=["ipc", "unix"])
def same_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # So that all payloads go through shared memory.
    monkeypatch.setattr("reservoir_hw.drivers.zeromq.unix_sockets.INLINE_BYTES", 0)
    with ipc_address(request.param) as address:
        yield address


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Key pairs of a bench, of anna who may drive it, and of berta who may not."""
    for name in ("bench", "anna", "berta"):
        make_keys(tmp_path, name)
    (tmp_path / "clients").mkdir()
    (tmp_path / "anna.key").rename(tmp_path / "clients/anna.key")
    return tmp_path


def connect(address: str, **more: Any) -> ZmqReservoir:
    opened = open_reservoir({"kind": "zmq", "address": address, "timeout_s": 2.0, **more})
    assert isinstance(opened, ZmqReservoir)
    return opened


def security(keys: Path, who: str = "anna", server: str = "bench") -> dict[str, Any]:
    return {"server_key": str(keys / f"{server}.key"), "key": str(keys / f"{who}.key_secret")}


def allowed(keys: Path) -> Allowed:
    return Allowed.from_files(keys / "bench.key_secret", keys / "clients")


def story(reservoir: Reservoir) -> list[Any]:
    """Everything that a caller may do with a held device, from `open` on."""
    told = [reservoir.run(drive(1, 50)), reservoir.run(drive(1, 30, seed=1)), reservoir.step(drive(1, 1)[:, 0])]
    reservoir.reset(3)
    told.append(reservoir.run(drive(3, 40)))
    told += [np.concatenate(list(reservoir.stream(iter(np.array_split(drive(3, 100), 7, axis=1)))), axis=1)]
    reservoir.reset(1)
    reservoir.reset(1)
    told.append(reservoir.run(drive(1, 2000)))
    return told


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("curve", [False, True], ids=["open", "curve"])
def test_the_states_of_a_noisy_device_are_those_of_the_local_one(address: str, keys: Path, curve: bool) -> None:
    local = built(NOISY)
    with served(built(NOISY), address, allowed=allowed(keys) if curve else None):
        for _ in range(2):
            # A new client gets a device that was opened anew, whatever the last one did.
            with local, connect(address, **({"security": security(keys)} if curve else {})) as far:
                assert far.spec == local.spec
                assert_same(story(far), story(local))


@pytest.mark.parametrize("chunk_steps", [7, 5000])
@pytest.mark.parametrize("credits", [1, 8])
def test_chunks_and_credits_change_no_state(same_host: str, chunk_steps: int, credits: int) -> None:
    with (
        served(built(NOISY), same_host),
        connect(same_host, chunk_steps=chunk_steps, credits=credits) as far,
        built(NOISY) as near,
    ):
        assert_same([far.run(drive(1, 500))], [near.run(drive(1, 500))])


def test_transitions_and_uploads_travel(same_host: str) -> None:
    u, x = drive(4, 1)[:, 0], drive(4, 1, seed=1)[:, 0]
    with served(SnapshotToy(), same_host), connect(same_host) as far:
        fingerprint = far.spec.identity.fingerprint
        far.reset(2)
        far.run(drive(2, 10))
        np.testing.assert_array_equal(far.transition(u, x), x / 2 + u)
        far.upload({"gain": np.array(3.0)})
        assert far.spec.identity.fingerprint != fingerprint
        np.testing.assert_array_equal(far.transition(u, x), x / 2 + 3 * u)
        with Toy() as near:
            near.reset(2)
            assert_same([far.run(drive(2, 10))], [near.run(drive(2, 10))])
    with served(Toy(not_supported={"snapshot": "a toy"}), same_host), connect(same_host) as far:
        for call in (far.snapshot, lambda: far.transition(u, x), lambda: far.upload({})):
            with pytest.raises(NotSupported):
                call()


def test_weights_reach_a_simulation_and_stay(same_host: str) -> None:
    rng = np.random.default_rng(0)
    weights = {"W": rng.normal(size=(20, 20)) / 20, "W_in": rng.normal(size=(20, 2))}
    near = built(NOISY)
    with served(built(NOISY), same_host), near:
        with connect(same_host) as far:
            drawn = far.spec.identity.fingerprint
            for reservoir in (far, near):
                reservoir.run(drive(1, 10))
                reservoir.upload(weights)
            assert drawn != far.spec.identity.fingerprint == near.spec.identity.fingerprint
            assert_same([far.run(drive(1, 50))], [near.run(drive(1, 50))])
        near.close()
        # The device was closed between two clients and keeps its weights: it does not pass for the old one.
        with connect(same_host) as far, near:
            assert far.spec.identity.fingerprint == near.spec.identity.fingerprint != drawn
            assert_same(story(far), story(near))


@pytest.mark.parametrize(
    "declared",
    [
        {"continuity": "replayed", "memory_steps": 60},
        {"continuity": "replayed", "memory_steps": 60, "max_batch": 2},
        {"continuity": "free_running"},
        {"continuity": "free_running", "max_batch": 1},
        {"max_batch": 1},
        {"max_batch": 2},
    ],
    ids=str,
)
def test_the_rules_of_each_continuity_hold(same_host: str, declared: dict[str, Any]) -> None:
    def outcomes(reservoir: Reservoir) -> Iterator[Any]:
        for act in (
            lambda: reservoir.run(drive(1, 30)),
            lambda: reservoir.run(drive(1, 20, seed=1)),
            lambda: reservoir.reset(3),
            lambda: reservoir.run(drive(3, 30)),
            lambda: reservoir.run(drive(3, 10, seed=1)),
            lambda: reservoir.reset(3),
            lambda: np.concatenate(list(reservoir.stream([drive(3, 10), drive(3, 20, seed=2)])), axis=1),
            lambda: reservoir.run(drive(2, 5)),
        ):
            try:
                yield act()
            except (StateLost, NotSupported, ShapeError) as error:
                yield type(error)

    with served(Toy(**declared), same_host), connect(same_host) as far, Toy(**declared) as near:
        there, here = list(outcomes(far)), list(outcomes(near))
    # The client can feed chunks without a gap where the device can be given a whole run at once only.
    for a, b in zip(there, here, strict=True):
        if isinstance(b, np.ndarray):
            np.testing.assert_array_equal(a, b)
        else:
            assert a is b


def test_memory_that_a_device_does_not_declare(same_host: str) -> None:
    with served(Toy(), same_host), connect(same_host, memory_steps=7) as far:
        assert far.spec.memory_steps == 7


def test_sequences_in_turn_are_frozen_over_the_wire(same_host: str) -> None:
    with served(SnapshotToy(max_batch=2), same_host), connect(same_host) as far, Toy() as near:
        far.reset(5)
        near.reset(5)
        for seed in range(3):
            assert_same([far.run(drive(5, 20, seed=seed))], [near.run(drive(5, 20, seed=seed))])


class Clocked(Toy):
    """Goes on if it is not fed; can be fed chunk by chunk."""

    def __init__(self, fails_in_chunk: int | None = None) -> None:
        super().__init__(continuity="free_running", max_batch=1, step_period_s=1e-3, clock="device")
        self.fails_in_chunk = fails_in_chunk

    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        for number, chunk in enumerate(chunks):
            if number == self.fails_in_chunk:
                raise DeviceFault("the laser is off")
            yield self._run(chunk, None)


def test_a_clocked_device_is_fed_in_chunks(same_host: str) -> None:
    with served(Clocked(), same_host), connect(same_host, chunk_steps=8) as far, Clocked() as near:
        assert_same([far.run(drive(1, 100))], [near.run(drive(1, 100))])
        with pytest.raises(StateLost, match="free running"):
            far.run(drive(1, 1))
        far.reset(1)
        near.reset(1)
        chunks = np.array_split(drive(1, 100, seed=1), 9, axis=1)
        assert_same(list(far.stream(chunks)), list(near.stream(chunks)))
        assert far.provenance()["device_time"]["period_s"] == 1e-3


@pytest.mark.parametrize("chunk", [0, 1, 5])
def test_a_clocked_device_that_fails_says_so_at_once(same_host: str, chunk: int) -> None:
    with served(Clocked(fails_in_chunk=chunk), same_host), connect(same_host, chunk_steps=10) as far:
        started = time.monotonic()
        with pytest.raises(DeviceFault, match="the laser is off") as caught:
            far.run(drive(1, 100))
        assert time.monotonic() - started < 1
        assert caught.value.steps_done == 10 * chunk
        with Clocked() as near:
            np.testing.assert_array_equal(caught.value.states, near.run(drive(1, 100))[:, : 10 * chunk])
        far.reset(1)
        with pytest.raises(DeviceFault, match="the laser is off"):
            list(far.stream(np.array_split(drive(1, 100), 10, axis=1)))


def test_tensors_come_back_as_tensors(same_host: str) -> None:
    torch = pytest.importorskip("torch")
    with served(Toy(), same_host), connect(same_host) as far, Toy() as near:
        states: Any = far.run(torch.from_numpy(drive(1, 10)))
        assert isinstance(states, torch.Tensor)
        assert_same([states.numpy()], [near.run(drive(1, 10))])
        with pytest.raises(Exception, match="gradient"):
            far.run(torch.from_numpy(drive(1, 10)).requires_grad_())


def test_a_torch_backend_can_be_served(same_host: str) -> None:
    pytest.importorskip("torch")
    config = {"kind": "esn", "nodes": 10, "inputs": 2, "gradients": True}
    with served(built(config), same_host), connect(same_host) as far, built(config) as near:
        assert near.spec.differentiable
        assert not far.spec.differentiable
        assert_same([far.run(drive(1, 50))], [np.asarray(near.run(drive(1, 50)))])


def test_fixed_point_states_are_off_by_half_a_step_at_most(same_host: str) -> None:
    step = 2.0**-13
    with served(Toy(dtype="float32"), same_host, states=Encoding(3, step)), connect(same_host) as far, Toy() as near:
        assert far.spec.output_bits == 16
        error = far.run(drive(1, 1000)) - near.run(drive(1, 1000))
        assert 0.4 * step < np.abs(error).max() <= 0.5 * step * (1 + 1e-3)
        far.reset(1)
        with pytest.raises(DeviceFault, match="do not fit int16 with a scale"):
            far.run(np.full((1, 10, 2), 9.0))
        with pytest.raises(StateLost):
            far.run(drive(1, 1))
        far.reset(1)
        far.run(drive(1, 1))


def test_fixed_point_inputs_are_declared(same_host: str) -> None:
    u = np.rint(drive(1, 50) * 127) / 128
    with served(Toy(), same_host, inputs=Encoding(5, 1 / 128)), connect(same_host) as far, Toy() as near:
        assert far.spec.input_bits == 8
        assert_same([far.run(u)], [near.run(u)])
        assert far.spec.input_range == (-1.0, 127 / 128)
        with pytest.raises(InputRangeError, match="outside the range"):
            far.run(u + 5)
        # Nothing was sent.
        assert_same([far.run(u)], [near.run(u)])


def test_a_readout_runs_on_the_device(same_host: str) -> None:
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(3, 20)), rng.normal(size=3)
    quiet = {"kind": "esn", "nodes": 20, "inputs": 2}
    with served(built(quiet), same_host), connect(same_host) as far, built(quiet) as near:
        expected = near.run(drive(1, 40)) @ weights.T + bias
        dtypes: tuple[tuple[Literal["int8", "int16", "float32"], float], ...]
        dtypes = (("float32", 1e-5), ("int16", 1e-3), ("int8", 0.2))
        for dtype, tolerance in dtypes:
            far.reset(1)
            far.set_readout(weights, bias, dtype=dtype)
            outputs = far.run_outputs(drive(1, 40))
            np.testing.assert_allclose(outputs, expected, atol=tolerance)


def test_a_recording_knows_of_drives_whose_states_nobody_saw(same_host: str, tmp_path: Path) -> None:
    u = drive(1, 30)
    with served(Toy(), same_host), connect(same_host) as far, Recorder(far, tmp_path / "trace") as recorder:
        far.set_readout(np.eye(2), np.zeros(2), dtype="float32")
        first = far.run(u[:, :10])
        far.run_outputs(u[:, 10:20])
        far.run(u[:, 20:])
        assert far.counters.steps == 30
    before, after = recorder.store.datasets.values()
    assert [(part.steps, part.facts["from_rest"]) for part in (before, after)] == [(10, True), (10, False)]
    with open_reservoir({"kind": "replay", "trace": str(tmp_path / "trace")}) as replay:
        assert np.array_equal(replay.run(u[:, :10]), first)
        with pytest.raises(InputRangeError, match="data set 001 does not begin at rest"):
            replay.run(u[:, 20:])


def test_another_client_is_told_who_has_the_device(same_host: str) -> None:
    with served(Toy(), same_host) as server:
        with connect(same_host) as far:
            with pytest.raises(DeviceBusy, match=r"is in use by .* on .* \(process \d+\) since"):
                connect(same_host)
            far.run(drive(1, 3))
            assert far.status()["traffic"]["clients"] == 1
        with connect(same_host) as far:
            assert far.run(drive(1, 3)).shape == (1, 3, 2)
        assert server.status()["traffic"]["clients"] == 2


def test_the_device_is_in_its_safe_state_between_clients(same_host: str) -> None:
    toy = Toy()
    with served(toy, same_host):
        assert toy.closed == 1
        with connect(same_host):
            assert toy.is_open
        until = time.monotonic() + 5
        while toy.is_open and time.monotonic() < until:
            time.sleep(0.01)
        assert toy.closed == 2
        with connect(same_host) as far:
            far.run(drive(1, 3))
    assert (toy.is_open, toy.closed) == (False, 3)


def test_another_number_of_inputs_is_refused_by_name(same_host: str) -> None:
    with served(Toy(), same_host):
        with pytest.raises(ConfigurationError, match=r"has 2 inputs, but 3 are wanted: leave"):
            connect(same_host, inputs=3)
        masked = open_reservoir(
            {"kind": "zmq", "address": same_host, "inputs": 2, "input_mask": {"kind": "binary", "seed": 1}}, inputs=3
        )
        with masked:
            assert masked.spec.inputs == 3
            assert masked.run(drive(1, 5, 3)).shape == (1, 5, 2)


# ---- who may, and where ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        ({"who": "berta"}, "does not let us in: our public key is not in its list"),
        ({"who": "anna", "server": "berta"}, "not the device that security.server_key belongs to"),
        (None, "it asks for keys"),
    ],
    ids=["wrong own key", "wrong server key", "no key"],
)
def test_without_the_right_keys_nothing_is_told(
    address: str, keys: Path, offered: dict[str, str] | None, message: str
) -> None:
    with served(Toy(), address, allowed=allowed(keys)) as server:
        more = {} if offered is None else {"security": security(keys, **offered)}
        started = time.monotonic()
        with pytest.raises(DeviceError, match=message) as caught:
            connect(address, **more)
        assert time.monotonic() - started < 4
        assert "toy" not in str(caught.value)
        assert "\n" not in str(caught.value)
        traffic = server.status()["traffic"]
        assert set(traffic.values()) == {0}
        with connect(address, security=security(keys)) as far:
            far.run(drive(1, 3))


def test_keys_for_a_device_without_keys(address: str, keys: Path) -> None:
    with served(Toy(), address), pytest.raises(DeviceError, match="or it uses no keys"):
        connect(address, security=security(keys))


def test_mistakes_with_key_files(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"holds no \.key file"):
        Allowed.from_files(keys / "bench.key_secret", tmp_path / "empty")
    with pytest.raises(ConfigurationError, match="is not a folder"):
        Allowed.from_files(keys / "bench.key_secret", tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="public key only"):
        read_pair(keys / "bench.key")
    with pytest.raises(ConfigurationError, match="is not a key file"):
        read_public(keys / "nobody.key")
    with pytest.raises(ConfigurationError, match="is not a key file"):
        connect("ipc:///tmp/x", security={"server_key": "short", "key": str(keys / "anna.key_secret")})
    public = read_public(keys / "bench.key").decode()
    assert read_public(public) == public.encode()


def test_other_hosts_need_keys() -> None:
    for address in ("tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://192.168.1.5:5555"):
        with pytest.raises(ConfigurationError, match="can be reached by other hosts"):
            Server(Toy(), address)
        Server(Toy(), address, insecure=True)
    with pytest.raises(ConfigurationError, match="can be reached by other hosts"):
        Server(Toy(), "tcp://127.0.0.1:5555", control="tcp://0.0.0.0:5556")


def test_an_address_is_served_once(address: str) -> None:
    with served(Toy(), address):
        with pytest.raises(ConfigurationError, match="cannot listen at"), served(Toy(), address):
            pass
        with connect(address) as far:
            assert far.run(drive(1, 3)).shape == (1, 3, 2)


def test_the_other_internet_protocol() -> None:
    address = free_address().replace("127.0.0.1", "[::1]")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    with served(Toy(), address), connect(address) as far:
        assert far.run(drive(1, 3)).shape == (1, 3, 2)


@pytest.mark.slow
def test_a_server_that_is_not_there(same_host: str) -> None:
    for address in (free_address(), same_host):
        started = time.monotonic()
        with pytest.raises(DeviceTimeout, match=r"no connection within 0\.5 s.*Is the server running"):
            connect(address, timeout_s=0.5)
        assert time.monotonic() - started < 2


def test_something_else_listens_there() -> None:
    address = free_address()
    port = int(address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port + 1)), pytest.raises(DeviceError, match="no device of this protocol"):
        connect(address, timeout_s=0.5)


def test_a_server_that_ends_says_so(same_host: str) -> None:
    with (
        connect_and_end(same_host) as far,
        pytest.raises(DeviceDisconnected, match=r"gone|shutting down|no longer be used"),
    ):
        far.run(drive(1, 3))


def connect_and_end(address: str) -> ZmqReservoir:
    with served(Toy(), address):
        return connect(address, timeout_s=0.5)


# ---- the page -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_ten_lines_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/zeromq.md").read_text()
    recipe = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
    assert len([line for line in recipe.splitlines() if line.strip()]) == 10
    address = free_address()
    (tmp_path / "film.py").write_text(recipe.replace("tcp://127.0.0.1:5555", address))
    command = [sys.executable, "-u", "film.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with connect(address, timeout_s=20.0) as far:
            u = drive(1, 10, 1).astype(np.float32)
            np.testing.assert_array_equal(far.run(u), np.tanh(u @ [[1.0, -0.5, 0.2]]).astype(np.float32))
            assert (far.spec.identity.model, far.spec.identity.simulated) == ("film", False)
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    # Once after a look at what it is, once after the client.
    assert output == "laser off\nlaser off\n"


@pytest.mark.parametrize("chunk_steps", [None, 10])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_states_that_are_not_finite_end_the_run_where_they_came(
    same_host: str, chunk_steps: int | None, value: float
) -> None:
    class Broken(Toy):
        # The server does not look at the states of this one.
        checks_states = True

        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            before = int(self.t[0])
            states = super()._run(u, out).copy()
            if before <= 37 < before + u.shape[1]:
                states[0, 37 - before, 1] = value
            return states

    u = drive(1, 60)
    with Toy() as here:
        true = here.run(u)
    with served(Broken(), same_host), built({"kind": "zmq", "address": same_host, "chunk_steps": chunk_steps}) as far:
        assert isinstance(far, ZmqReservoir)
        assert far._declaration.finite
        far._declaration = replace(far._declaration, finite=False)
        with pytest.raises(DeviceFault, match=r"not finite \(sequence 0, step 37, node 1\)") as caught:
            far.run(u)
        assert caught.value.steps_done == 37
        assert np.array_equal(caught.value.states, true[:, :37])
        with pytest.raises(StateLost):
            far.run(u)
        far.reset()
        parts = [drive(1, 60)[:, i : i + 20] for i in (0, 20, 40)]
        with pytest.raises(DeviceFault, match="not finite"):
            list(far.stream(parts))
