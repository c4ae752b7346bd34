"""The device protocol beside bare ZeroMQ sockets that carry the same frames.

    python benchmarks/transport.py [--quick] [--json FILE]

*Step*: one step of 256 inputs and 256 nodes on a device that does nothing, against a DEALER and a ROUTER that exchange
frames of the same sizes; median and 99th percentile of the round trip, and processor time of both processes.
*Run*: 100,000 steps of 512 nodes in one `run`, against bare sockets that send the same frames with the same number of
messages under way and throw the answers away, and beside those that put them into an array, which is what `run` is
for. Everything alternates, so that a busy machine slows all alike.
The states that came are checked; the bare sockets check nothing and know no checksums.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir

WIDTH = 256
NODES = 512
STEPS = 100_000
PORT = 47310
_TICK = os.sysconf("SC_CLK_TCK")


@contextmanager
def peer(who: str, address: str, inputs: int, nodes: int) -> Iterator[int]:
    """The other end, in a process of its own; its process id."""
    script = Path(__file__).with_name("_transport_peer.py")
    process = subprocess.Popen([sys.executable, str(script), who, address, str(inputs), str(nodes)])
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def processor_s(pid: int | str) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def connected(address: str) -> zmq.Socket[bytes]:
    """A bare DEALER."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(address)
    return socket


def ping(socket: zmq.Socket[bytes], payload: Any) -> None:
    """One bare round trip of a header and a payload, there and back."""
    socket.send_multipart([b"\x01\x00" + bytes(78), payload])
    socket.recv_multipart()


def measured(call: Callable[[], Any], times: int) -> list[float]:
    """Seconds of each call."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


def step_case(quick: bool, ours_at: str, bare_at: str) -> dict[str, Any]:
    """Round trips, µs."""
    rounds, times = (5, 300) if quick else (20, 1000)
    with peer("ours", ours_at, WIDTH, WIDTH) as ours_pid, peer("bare", bare_at, WIDTH, WIDTH) as bare_pid:
        socket, u = connected(bare_at), np.zeros((1, WIDTH), np.float32)
        with opened(ours_at) as device:
            contestants = {
                "ours": (lambda: device.step(u), ours_pid),
                "bare": (lambda: ping(socket, u), bare_pid),
            }
            seconds: dict[str, list[float]] = {name: [] for name in contestants}
            processor = dict.fromkeys(contestants, 0.0)
            for call, _ in contestants.values():
                measured(call, 100)
            for _ in range(rounds):
                for name, (call, pid) in contestants.items():
                    before = processor_s(pid) + processor_s("self")
                    seconds[name] += measured(call, times)
                    processor[name] += processor_s(pid) + processor_s("self") - before
            device.reset(1)
            if not np.array_equal(device.step(u), expected(WIDTH)[:, 0]):
                raise RuntimeError("the states that came are not those of the device")
        socket.close(linger=0)
    row: dict[str, Any] = {"case": f"step, {WIDTH} inputs and nodes"}
    for name, values in seconds.items():
        ordered = sorted(values)
        row[f"{name}_us"] = 1e6 * statistics.median(values)
        row[f"{name}_p99_us"] = 1e6 * ordered[int(0.99 * len(ordered))]
        row[f"{name}_processor_us"] = 1e6 * processor[name] / (rounds * times)
    row["ratio"] = row["ours_us"] / row["bare_us"]
    return row


def run_case(quick: bool, ours_at: str, bare_at: str) -> dict[str, Any]:
    """Throughput of states, bytes per second."""
    repeats = 3 if quick else 9
    inputs = 1
    u: Any = np.zeros((1, STEPS, inputs), np.float32)
    out = np.empty((1, STEPS, NODES), np.float32)
    with peer("ours", ours_at, inputs, NODES), peer("bare", bare_at, inputs, NODES):
        socket = connected(bare_at)
        with opened(ours_at) as device:
            size = device._chunk_steps(1)  # type: ignore[attr-defined]
            credits = device._credits  # type: ignore[attr-defined]

            def ours() -> None:
                device.reset(1)
                device.run(u, out=out)

            def fresh() -> None:
                device.reset(1)
                device.run(u)

            def bare(into: np.ndarray | None = None) -> None:
                chunks = [min(size, STEPS - start) for start in range(0, STEPS, size)]
                sent = 0
                for done in range(len(chunks)):
                    while sent < len(chunks) and sent - done < credits:
                        steps = chunks[sent]
                        socket.send_multipart([steps.to_bytes(2, "little") + bytes(78), u[0, :steps]])
                        sent += 1
                    answer = socket.recv_multipart(copy=False)
                    assert len(answer[1]) == 4 * NODES * chunks[done]
                    if into is not None:
                        states = np.frombuffer(answer[1].buffer, np.float32).reshape(-1, NODES)
                        into[0, done * size : done * size + len(states)] = states

            contestants = {
                "ours": ours,
                "ours, memory not given": fresh,
                "bare": bare,
                "bare, into an array": lambda: bare(np.empty_like(out)),
            }
            for call in contestants.values():
                call()
            seconds: dict[str, list[float]] = {name: [] for name in contestants}
            for _ in range(repeats):
                for name, call in contestants.items():
                    seconds[name] += measured(call, 1)
        reference = expected(NODES)
        for start in range(0, STEPS, size):
            stop = min(start + size, STEPS)
            if not np.array_equal(out[:, start:stop], reference[:, : stop - start]):
                raise RuntimeError("the states that came are not those of the device")
        socket.close(linger=0)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "case": f"run, {STEPS} steps of {NODES} nodes, {size} steps a message, {credits} under way",
        **{f"{name}_s": value for name, value in medians.items()},
        "ours_gb_per_s": out.nbytes / medians["ours"] / 1e9,
        "bare_gb_per_s": out.nbytes / medians["bare"] / 1e9,
        "share": medians["bare"] / medians["ours"],
        "share, memory not given": medians["bare"] / medians["ours, memory not given"],
        "share of bare into an array": medians["bare, into an array"] / medians["ours, memory not given"],
    }


def expected(nodes: int) -> np.ndarray:
    """What the device that does nothing answers first."""
    return np.random.default_rng(0).standard_normal((1, 1 << 14, nodes), dtype=np.float32)


def opened(address: str) -> Reservoir:
    """The client, once the server is there."""
    return open_reservoir({"kind": "zmq", "address": address, "timeout_s": 20})


def main() -> None:
    """Print the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        places = {"tcp": [f"tcp://127.0.0.1:{PORT}", f"tcp://127.0.0.1:{PORT + 2}"]}
        places["ipc"] = [f"ipc://{folder}/ours", f"ipc://{folder}/bare"]
        for transport, (ours_at, bare_at) in places.items():
            row = step_case(arguments.quick, ours_at, bare_at) | {"transport": transport}
            rows.append(row)
            print(
                f"{transport}, {row['case']}: ours {row['ours_us']:.1f} µs (p99 {row['ours_p99_us']:.0f}), bare "
                f"{row['bare_us']:.1f} µs (p99 {row['bare_p99_us']:.0f}): × {row['ratio']:.2f}; processor time a step "
                f"{row['ours_processor_us']:.0f} µs, bare {row['bare_processor_us']:.0f} µs",
                flush=True,
            )
            row = run_case(arguments.quick, ours_at, bare_at) | {"transport": transport}
            rows.append(row)
            print(
                f"{transport}, {row['case']}: ours {row['ours_gb_per_s']:.2f} GB/s, bare {row['bare_gb_per_s']:.2f} "
                f"GB/s: {100 * row['share']:.0f} % ({100 * row['share, memory not given']:.0f} % into fresh memory, "
                f"and of bare sockets that fill fresh memory {100 * row['share of bare into an array']:.0f} %)",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
