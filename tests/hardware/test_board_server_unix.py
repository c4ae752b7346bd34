"""The C server at a unix address: the ring in shared memory, packets that are none, and who has gone."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from board_server import DEFINES, INPUTS, built, golden, running, wait_until_free

from reservoir_hw.core.errors import DeviceDisconnected
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol import pipes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name is Linux")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a server, and its process."""
    path = tmp_path_factory.mktemp("u") / "d"
    with running(built(DEFINES=DEFINES), address=f"unix://{path}") as (address, process):
        yield address, process.pid
    assert not path.exists()
    assert not Path(f"{path}.control").exists()


@pytest.fixture
def address(server: tuple[str, int]) -> str:
    return server[0]


def inputs(steps: int = 400) -> np.ndarray:
    return np.random.default_rng(3).uniform(-2, 1.9, (1, steps, INPUTS)).astype(np.float32)


def check_states(address: str) -> None:
    with open_reservoir({"kind": "zmq", "address": address}) as device:
        assert np.array_equal(device.run(inputs(50)), golden(inputs(50)))


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("chunk_steps", [1, 60, 400], ids=["inline", "in slots", "in one"])
def test_states_are_those_of_the_golden_model(address: str, checksums: bool, chunk_steps: int) -> None:
    file = {"kind": "zmq", "address": address, "checksums": checksums, "chunk_steps": chunk_steps}
    u = inputs()
    with open_reservoir(file) as device:
        assert np.array_equal(device.run(u), golden(u))
        device.reset(1)
        state = [device.run(u[:, :100]), device.snapshot()]
        device.restore(state.pop())
        assert np.array_equal(np.concatenate([*state, device.run(u[:, 100:])], axis=1), golden(u))


def test_payloads_that_are_larger_than_a_slot(address: str) -> None:
    u = np.tile(inputs(500), (1, 100, 1))
    with open_reservoir({"kind": "zmq", "address": address, "chunk_steps": u.shape[1]}) as device:
        whole = device.run(u)
        device.reset(1)
        assert np.array_equal(device.run(u[:, :1000]), whole[:, :1000])
        assert np.array_equal(whole[:, :500], golden(u[:, :500]))
    assert whole.nbytes // 2 > 1 << 21


@pytest.mark.slow
def test_a_killed_client_loses_the_device_at_once(server: tuple[str, int]) -> None:
    address, pid = server
    idle = str(Path(__file__).parents[1] / "serving" / "idle_client.py")
    with subprocess.Popen([sys.executable, idle, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"driven\n"
        assert "memfd" in Path(f"/proc/{pid}/maps").read_text()
        process.kill()
    wait_until_free(address, 2)
    check_states(address)
    wait_until_free(address, 2)
    time.sleep(0.2)
    assert "memfd" not in Path(f"/proc/{pid}/maps").read_text()
    assert not any("memfd" in os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir())


def test_a_server_goes_on_after_any_packet(address: str) -> None:
    rng = random.Random(1)
    path = address.removeprefix("unix://")
    data, control = pipes.Packets(address, data=True), pipes.Packets(f"unix://{path}.control", data=False)
    for number in range(300):
        packet = bytearray(pipes.prefix(rng.choice([0, 8, 70000, 1 << 63]), rng.randrange(4)))
        packet += wire.pack_data(wire.Header(rng.randrange(10), rng.randrange(3), number), b"")[0]
        packet += rng.randbytes(rng.randrange(20))
        if rng.random() < 0.5:
            packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
        data.send_packet(bytes(packet[: rng.choice([1, 16, 95, 96, 200])]))
        assert code_in(data.receive()) in (wire.E_MALFORMED, wire.E_NO_SESSION)
        control.send([rng.randbytes(rng.randrange(1, 40))])
    data.send_packet(bytes(100_000))
    assert code_in(data.receive()) == wire.E_MALFORMED
    data.close()
    control.close()
    check_states(address)


def code_in(frames: list[bytes]) -> int:
    """Of the error that has come."""
    header, payload = wire.unpack_data(frames)
    assert header.operation == wire.ERROR
    return int(wire.from_msgpack(payload)["code"])


def test_the_file_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "d"))
    with running(built(DEFINES=DEFINES), address=f"unix://{tmp_path}/d") as (address, _):
        check_states(address)
        done = subprocess.run([built(DEFINES=DEFINES), address], capture_output=True, text=True, timeout=5, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "another server listens there" in done.stderr
        check_states(address)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/file.control", "something that is no socket is there"),
        ("/no/folder", "No such file"),
        ("/file", "its control socket FOLDER/file.control: something that is no socket is there"),
    ],
)
def test_a_path_where_no_socket_can_be(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file.control").write_text("mine")
    command = [built(DEFINES=DEFINES), f"unix://{tmp_path}{place}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    assert done.returncode == 1
    assert message.replace("FOLDER", str(tmp_path)) in done.stderr
    assert os.listdir(tmp_path) == ["file.control"]
    assert (tmp_path / "file.control").read_text() == "mine"


@pytest.mark.slow
def test_clients_and_servers_that_are_killed_at_any_moment(server: tuple[str, int], tmp_path: Path) -> None:
    address, pid = server
    moments = np.random.default_rng(7).uniform(0.2, 0.8, 20)
    streaming = str(Path(__file__).parents[1] / "serving" / "streaming_client.py")
    for after_s in moments:
        with subprocess.Popen([sys.executable, streaming, address]) as process:
            time.sleep(after_s)
            process.kill()
        wait_until_free(address, 2)
        check_states(address)
    wait_until_free(address, 2)
    time.sleep(0.2)
    assert "memfd" not in Path(f"/proc/{pid}/maps").read_text()

    mortal = f"unix://{tmp_path}/d"
    program = built(DEFINES=DEFINES)
    for after_s in moments[:20]:
        with subprocess.Popen([program, mortal], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"kind: zmq\n"
            with pytest.raises(DeviceDisconnected):
                drive_and_kill(mortal, process, after_s / 4)


def drive_and_kill(address: str, process: subprocess.Popen[bytes], after_s: float) -> None:
    """Drive a server that is killed after a while, for ever."""
    with open_reservoir({"kind": "zmq", "address": address}) as device:
        until = time.monotonic() + after_s
        while True:
            device.run(inputs(300))
            if time.monotonic() > until:
                process.kill()
