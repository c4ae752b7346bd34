"""Blocks of samples from and to an instrument: our driver beside pyvisa and a bare socket.

    python benchmarks/instruments.py [--quick] [--json FILE]

An emulated instrument in a process of its own, on loopback. A record of 1 M samples of 16 bits becomes float volts; a
waveform of 1 M samples of 16 bits is uploaded and acknowledged by `*OPC?`. Everything alternates; medians of the paired
ratios. The samples of all sides must be equal, or the benchmark stops.

And what a burst of `kind: visa` takes beside the upload of its waveform, the fetch of its record, the rest before it,
and the device's answer. The bench is emulated in another process.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyvisa

from reservoir_hw import open_reservoir
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

SAMPLES = 1_000_000
# 0x0A is among the bytes.
RECORD = (np.arange(SAMPLES) % 65_536).astype("<u2")
CHUNKS = (20 << 10, 256 << 10, 1 << 20, 4 << 20)

SERVER = """
import sys
import numpy as np
from reservoir_hw.emulators.scpi.messages import Block, definite_block
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.tree import command, query
from reservoir_hw.emulators.servers import HislipServer
from reservoir_hw.emulators.servers import SocketServer

RECORD = (np.arange(1_000_000) % 65_536).astype("<u2")


class Memory(ScpiDevice):
    identity = "benchmark,memory,1,1"
    sum = 0

    @query("WAVeform:DATA", indefinite=True)
    def record(self):
        return definite_block(RECORD.data, digits=8)

    @command("DATA", Block())
    def upload(self, block):
        self.sum = int(np.frombuffer(block, "<u2").sum(dtype=np.int64))

    @query("DATA:SUM")
    def checksum(self):
        return str(self.sum)


device = Memory()
with SocketServer(device, "127.0.0.1") as by_socket, HislipServer(device, "127.0.0.1") as by_hislip:
    print(by_socket, by_hislip, flush=True)
    sys.stdin.read()
"""


def volts(raw: np.ndarray) -> np.ndarray:
    """As after any fetch."""
    return raw.astype(np.float64) * 1e-4 - 3.2


def bare(address: str) -> tuple[Callable[[], np.ndarray], Callable[[], None]]:
    """Fetch and upload on a socket of our own: what loopback allows."""
    connection = socket.create_connection(("127.0.0.1", int(address.split("::")[2])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer = bytearray(10 + 2 * SAMPLES + 1)

    def fetch() -> np.ndarray:
        connection.sendall(b"WAV:DATA?\n")
        filled, view = 0, memoryview(answer)
        while filled < len(answer):
            filled += connection.recv_into(view[filled:])
        return volts(np.frombuffer(answer, "<u2", SAMPLES, 10))

    def upload() -> None:
        connection.sendall(b"DATA #7%d" % (2 * SAMPLES))
        connection.sendall(RECORD.data)
        connection.sendall(b"\n*OPC?\n")
        assert connection.recv(16) == b"1\n"

    return fetch, upload


def with_pyvisa(address: str, chunk: int | None = None) -> tuple[Callable[[], np.ndarray], Callable[[], None]]:
    """As its documentation shows."""
    resource: Any = pyvisa.ResourceManager("@py").open_resource(address)
    resource.timeout = 60_000
    if chunk is None:
        resource.read_termination = resource.write_termination = "\n"
    else:
        resource.chunk_size = chunk

    def fetch() -> np.ndarray:
        return volts(resource.query_binary_values("WAV:DATA?", datatype="H", container=np.array))

    def upload() -> None:
        resource.write_raw(b"DATA #7%d" % (2 * SAMPLES) + RECORD.tobytes() + b"\n")
        assert resource.query("*OPC?").strip() == "1"

    return fetch, upload


def ours(address: str) -> tuple[Callable[[], np.ndarray], Callable[[], None]]:
    """Our driver, whose every fetch asks for errors first."""
    instrument = ScpiInstrument(address).open()

    def fetch() -> np.ndarray:
        return volts(instrument.query_block("WAV:DATA?", "<u2"))

    def upload() -> None:
        instrument.write_block("DATA ", RECORD)
        instrument.finish("the upload", 10)

    return fetch, upload


def compare(sides: dict[str, Callable[[], Any]], rounds: int, check: Callable[[Any], None]) -> dict[str, list[float]]:
    """Seconds of each side, round by round, in turn."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else list(sides)[::-1]:
            started = time.perf_counter()
            answer = sides[name]()
            seconds = time.perf_counter() - started
            check(answer)
            if number:
                taken[name].append(seconds)
    return taken


def ratio(slower: list[float], quicker: list[float]) -> float:
    """Median over the rounds."""
    return statistics.median(one / other for one, other in zip(slower, quicker, strict=True))


class Stopwatch:
    """Seconds within functions, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, function: str, name: str) -> None:
        """Count the time of a method of an object under this name."""
        watched = getattr(owner, function)

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            answer = watched(*arguments, **named)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
            return answer

        setattr(owner, function, timed)


def overhead(dialect: str, steps: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of a burst of so many steps: "whole", and its parts. Records must be equal burst by burst."""
    command = [sys.executable, "-m", "reservoir_hw.cli", "emulate", "bench", "--dialect", dialect, "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as bench:
        try:
            assert bench.stdout is not None
            config = json.loads(bench.stdout.readline())["reservoir"]
            u = np.random.default_rng(0).uniform(-1, 1, (1, steps, 1))
            taken: list[dict[str, float]] = []
            with open_reservoir({**config, "inputs": 1}) as reservoir:
                instruments: Any = reservoir._bench  # pyright: ignore[reportAttributeAccessIssue]
                watch = Stopwatch()
                watch.watch(instruments.generator, "_upload", "upload")
                watch.watch(instruments.generator, "trigger", "device")
                watch.watch(instruments.digitizer, "wait", "device")
                watch.watch(instruments.digitizer, "query_block", "fetch")
                watch.watch(instruments, "load", "upload with settings")
                first = None
                for number in range(rounds + 1):
                    reservoir.reset()
                    watch.seconds.clear()
                    started = time.perf_counter()
                    states = reservoir.run(u)
                    whole = time.perf_counter() - started
                    first = states if first is None else first
                    # The device is noisy.
                    assert np.abs(states - first).std() < 0.1 * first.std()
                    if number:
                        taken.append({"whole": whole, "rest": instruments.settle_s, **watch.seconds})
        finally:
            bench.kill()
    for one in taken:
        one["overhead"] = one["whole"] - one["rest"] - one["device"] - one["upload"] - one["fetch"]
        one["settings"] = one.pop("upload with settings") - one["upload"]
    return {name: 1000 * statistics.median(one[name] for one in taken) for name in taken[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = 5 if options.quick else 21
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        by_socket, by_hislip = server.stdout.readline().split()
        probe = ScpiInstrument(by_socket).open()
        expected, total = volts(RECORD), int(RECORD.sum(dtype=np.int64))

        def fetched(answer: np.ndarray) -> None:
            np.testing.assert_array_equal(answer, expected)

        def uploaded(_: None) -> None:
            assert int(probe.query_number("DATA:SUM?")) == total

        found: dict[str, float] = {}
        socket_sides = {"bare socket": bare(by_socket), "pyvisa": with_pyvisa(by_socket), "ours": ours(by_socket)}
        for index, (what, check, goals) in enumerate((("fetch", fetched, (5, 0.3)), ("upload", uploaded, (3, None)))):
            taken = compare({name: side[index] for name, side in socket_sides.items()}, rounds, check)
            report("SOCKET", what, taken)
            found[f"socket {what}, pyvisa / ours"] = ratio(taken["pyvisa"], taken["ours"])
            found[f"socket {what}, bare socket / ours"] = ratio(taken["bare socket"], taken["ours"])
            print(f"    goals: {goals[0]} x pyvisa" + (f", {goals[1]} x bare socket" if goals[1] else ""))
        chunks = {f"pyvisa, chunks of {chunk >> 10} KiB": with_pyvisa(by_hislip, chunk)[0] for chunk in CHUNKS}
        taken = compare(chunks, rounds, fetched)
        report("HiSLIP", "fetch", taken)
        best = min(taken, key=lambda name: statistics.median(taken[name]))
        # In pairs, so that neither follows another neighbour than the other.
        taken = compare({best: chunks[best], "ours": ours(by_hislip)[0]}, rounds, fetched)
        report("HiSLIP", "fetch", taken)
        found["hislip fetch, best pyvisa / ours"] = ratio(taken[best], taken["ours"])
        print("    goal: 0.9 x the best of pyvisa")
        for dialect in ("keysight", "tektronix"):
            # About 40 more are rest: the longest burst has less than 131,072 samples.
            for steps in (10, 200):
                parts = overhead(dialect, steps, rounds)
                share = parts["overhead"] / parts["whole"]
                found[f"{dialect}, {steps} steps, overhead in ms"] = parts["overhead"]
                found[f"{dialect}, {steps} steps, overhead / whole burst"] = share
                print(f"{dialect} burst of {steps} steps:", ", ".join(f"{n} {ms:.1f} ms" for n, ms in parts.items()))
        for name, value in found.items():
            print(f"{name}: {value:.2f}")
        if options.json:
            options.json.write_text(json.dumps(found, indent=2))
    finally:
        server.kill()
        server.wait()


def report(link: str, what: str, taken: dict[str, list[float]]) -> None:
    """One line for each side."""
    for name, seconds in taken.items():
        print(f"{link} {what:6} {name:30} {2 * SAMPLES / statistics.median(seconds) / 1e6:8.0f} MB/s")


if __name__ == "__main__":
    main()
