"""The device protocol over tcp, ipc and unix, beside bare ZeroMQ sockets that carry the same bytes.

    python benchmarks/transport.py [--quick] [--json FILE]

*Step*: one step of 256 float32 inputs and 256 nodes, 1 kB each way, on a device that does nothing, against a DEALER and
a ROUTER that exchange frames of the same sizes. *Wire alone* is the same exchange by the sockets of the protocol, with
headers and checksums packed and looked at, but without a reservoir at either end.
*Run*: 100,000 steps of 512 nodes in one `run` into a given array, 205 MB in blocks of 2 MiB with 4 under way, against
bare sockets that send the same frames and copy the answers into a given array.

Every round measures each contestant once, every second round in reverse order, so that a busy machine slows all
alike. A ratio is the median of the ratios within the rounds. Processor time is that of both processes, threads
included. What came is compared with what the device has. The bare sockets check nothing and know no checksums.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zmq

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.drivers.zeromq.frames import Header, Operation, array_of, pack_header
from reservoir_hw.drivers.zeromq.transports import dealers

WIDTH = 256
NODES = 512
STEPS = 100_000
BLOCK = (1 << 21) // (4 * NODES)
WINDOW = 4
PORT = 47310
QUANTITIES = {"step": ("µs", 1e6), "run": ("ms", 1e3)}
# What a contestant is measured beside, and the goals: at most, or at least, so many times the speed or the time of it.
GOALS = {
    ("step", "tcp"): ("bare tcp", "time at most", 1.3),
    ("step", "tcp, wire alone"): ("bare tcp", None, None),
    ("step", "unix, wire alone"): ("bare ipc", None, None),
    ("step", "ipc"): ("bare ipc", None, None),
    ("step", "unix"): ("bare ipc", "time at most", 0.4),
    ("step", "unix, checksums"): ("bare ipc", None, None),
    ("run", "tcp"): ("bare tcp", "speed at least", 0.65),
    ("run", "ipc"): ("bare ipc", None, None),
    ("run", "unix"): ("bare ipc", "speed at least", 1.5),
    ("run", "unix, checksums"): ("bare ipc", None, None),
}
PROCESSOR_GOALS = {("run", "tcp"): 2.0}


class Contestant(NamedTuple):
    """Something to be measured: `call` does it once, another process of number `pid` takes part."""

    name: str
    call: Callable[[], Any]
    pid: int


class Figures(NamedTuple):
    """Of one contestant: seconds of each call, by round; processor seconds of a call, by round."""

    seconds: list[list[float]]
    processor: list[float]


@contextlib.contextmanager
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
    """Processor time that the threads of a process have used so far."""
    total = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError):
            total += int(file.read_text().split()[0])
    return total / 1e9


def bare_socket(address: str, held: contextlib.ExitStack) -> zmq.Socket[bytes]:
    """A bare DEALER."""
    context = zmq.Context()
    held.callback(context.destroy, linger=0)
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    return socket


def head(steps: int) -> bytes:
    """As long as a header."""
    return steps.to_bytes(4, "little") + bytes(76)


def contest(contestants: list[Contestant], rounds: int, times: int) -> dict[str, Figures]:
    """Measure them in turn; a round in which nothing is kept comes first."""
    found = {one.name: Figures([], []) for one in contestants}
    for number in range(rounds + 1):
        for one in contestants if number % 2 else contestants[::-1]:
            before = processor_s(one.pid) + processor_s("self")
            seconds = []
            for _ in range(times):
                started = time.perf_counter()
                one.call()
                seconds.append(time.perf_counter() - started)
            if number:
                found[one.name].seconds.append(seconds)
                found[one.name].processor.append((processor_s(one.pid) + processor_s("self") - before) / times)
    return found


def step_case(addresses: dict[str, str], held: contextlib.ExitStack) -> list[Contestant]:
    """Round trips of one step."""
    u: Any = np.random.default_rng(1).uniform(-1, 1, (1, WIDTH)).astype(np.float32)
    contestants = []
    for name, address in addresses.items():
        who = "bare" if name.startswith("bare") else "wire" if name.endswith("wire alone") else "ours"
        pid = held.enter_context(peer(who, address, WIDTH, WIDTH))
        call: Callable[[], Any]
        if who == "bare":
            call = partial(bare_step, bare_socket(address, held), u)
        elif who == "wire":
            call = wire_call(address, u[:, None], held)
        else:
            call = partial(held.enter_context(opened(address, name)).step, u)
        if not np.array_equal(call(), expected(WIDTH)[:, 0]):
            raise RuntimeError(f"{name}: the states that came are not those of the device")
        contestants.append(Contestant(name, call, pid))
    return contestants


def bare_step(socket: zmq.Socket[bytes], u: Any) -> np.ndarray:
    """An exchange of frames of the same sizes."""
    socket.send_multipart([head(1), u])
    return np.frombuffer(socket.recv_multipart()[1], np.float32)[None]


def wire_call(address: str, u: np.ndarray, held: contextlib.ExitStack) -> Callable[[], np.ndarray]:
    """An exchange of a request and a reply, into a given array."""
    (dealer,) = dealers(held, [address], 20.0)
    dealer.reach(address)
    checksums = not address.startswith("unix")
    dealer.agree({"checksums": checksums, "slot_bytes": 0, "credits": 8, "max_frame_bytes": 1 << 28})
    states, requests = np.empty(u.shape, np.float32), itertools.count(1)

    def call() -> np.ndarray:
        request = next(requests)
        header = Header(Operation.RUN, 5, request, step=request, batch=1, steps=1, width=WIDTH, dtype=1)
        dealer.send(pack_header(header, u, checksums=checksums), u, request, request - 1)
        while True:
            with contextlib.suppress(TimeoutError):
                message = dealer.receive()
                break
        header, crc = message.header()
        states[...] = array_of(header, message.payload(header, crc))
        return states[:, 0]

    return call


def run_case(addresses: dict[str, str], held: contextlib.ExitStack) -> list[Contestant]:
    """Long runs into a given array."""
    u: Any = np.zeros((1, STEPS, 1), np.float32)
    out: Any = np.empty((1, STEPS, NODES), np.float32)
    right = expected(NODES)[:, :BLOCK]
    contestants = []
    for name, address in addresses.items():
        who = "bare" if name.startswith("bare") else "ours"
        pid = held.enter_context(peer(who, address, 1, NODES))
        call: Callable[[], Any]
        if who == "bare":
            call = partial(bare_run, bare_socket(address, held), u, out)
        else:
            device = held.enter_context(opened(address, name, credits=WINDOW, chunk_steps=BLOCK))
            call = partial(run_from_rest, device, u, out)
        out[...] = 0
        call()
        for first in range(0, STEPS, BLOCK):
            if not np.array_equal(out[:, first : first + BLOCK], right[:, : STEPS - first]):
                raise RuntimeError(f"{name}: the states that came are not those of the device")
        contestants.append(Contestant(name, call, pid))
    return contestants


def bare_run(socket: zmq.Socket[bytes], u: np.ndarray, out: np.ndarray) -> None:
    """The same frames, `WINDOW` under way, into `out`."""
    sent = 0
    for first in range(0, STEPS, BLOCK):
        while sent < STEPS and sent < first + WINDOW * BLOCK:
            steps = min(BLOCK, STEPS - sent)
            inputs: Any = u[0, sent : sent + steps]
            socket.send_multipart([head(steps), inputs])
            sent += steps
        answer = socket.recv_multipart(copy=False)[1]
        steps = min(BLOCK, STEPS - first)
        out[0, first : first + steps] = np.frombuffer(answer.buffer, np.float32).reshape(steps, NODES)


def run_from_rest(device: Reservoir, u: np.ndarray, out: np.ndarray) -> None:
    """What is measured of ours."""
    device.reset(1)
    device.run(u, out=out)


def expected(nodes: int) -> np.ndarray:
    """What the device that does nothing answers first."""
    return np.random.default_rng(0).standard_normal((1, 1 << 14, nodes), dtype=np.float32)


def opened(address: str, name: str, **more: Any) -> Reservoir:
    """The client, once the server is there."""
    return open_reservoir(
        {"kind": "zmq", "address": address, "timeout_s": 20, "checksums": "checksums" in name, **more}
    )


def rows_of(case: str, found: dict[str, Figures]) -> list[dict[str, Any]]:
    """A row for each contestant: medians, and ratios to the bare sockets."""
    unit, factor = QUANTITIES[case]
    medians = {name: [statistics.median(one) for one in figures.seconds] for name, figures in found.items()}
    rows = []
    for name, figures in found.items():
        every = sorted(second for one in figures.seconds for second in one)
        row: dict[str, Any] = {
            "case": case,
            "transport": name,
            "checksums": not name.startswith("bare") and name not in ("unix", "unix, wire alone"),
            "unit": unit,
            "median": factor * statistics.median(every),
            "p99": factor * every[int(0.99 * len(every))],
            "processor": factor * statistics.median(figures.processor),
        }
        if (case, name) in GOALS:
            beside, kind, goal = GOALS[case, name]
            ratio = statistics.median(ours / bare for ours, bare in zip(medians[name], medians[beside], strict=True))
            processor = statistics.median(
                ours / bare for ours, bare in zip(figures.processor, found[beside].processor, strict=True)
            )
            row |= {"beside": beside, "time_ratio": ratio, "processor_ratio": processor}
            met = []
            if goal is not None:
                met.append(ratio <= goal if kind == "time at most" else 1 / ratio >= goal)
                row["goal"] = f"{kind} × {goal}"
            if (case, name) in PROCESSOR_GOALS:
                met.append(processor <= PROCESSOR_GOALS[case, name])
                row["goal"] += f", processor time at most × {PROCESSOR_GOALS[case, name]}"
            if met:
                row["met"] = all(met)
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> str:
    """A row as a line."""
    unit = row["unit"]
    line = (
        f"{row['case']:5} {row['transport']:16} {'on ' if row['checksums'] else 'off'} {row['median']:7.1f} {unit} "
        f"(p99 {row['p99']:7.1f}), processor {row['processor']:7.1f} {unit}"
    )
    if "beside" in row:
        line += (
            f"; beside {row['beside']}: time × {row['time_ratio']:.2f}, speed × {1 / row['time_ratio']:.2f}, processor "
            f"× {row['processor_ratio']:.2f}"
        )
    if "goal" in row:
        line += f"; goal: {row['goal']}: {'met' if row['met'] else 'MISSED'}"
    return line


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    rows = []
    print("case  transport        checksums")
    for case, make, rounds, times in (
        ("step", step_case, 6 if arguments.quick else 30, 300),
        ("run", run_case, 3 if arguments.quick else 12, 3),
    ):
        with tempfile.TemporaryDirectory(prefix="rhw") as folder, contextlib.ExitStack() as held:
            addresses = {
                "bare tcp": f"tcp://127.0.0.1:{PORT}",
                "tcp": f"tcp://127.0.0.1:{PORT + 2}",
                "bare ipc": f"ipc://{folder}/bare",
                "ipc": f"ipc://{folder}/ipc",
                "unix": f"unix://{folder}/unix",
                "unix, checksums": f"unix://{folder}/checked",
            }
            if case == "step":
                addresses["tcp, wire alone"] = f"tcp://127.0.0.1:{PORT + 4}"
                addresses["unix, wire alone"] = f"unix://{folder}/wire"
            for row in rows_of(case, contest(make(addresses, held), rounds, times)):
                rows.append(row)
                print(shown(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
