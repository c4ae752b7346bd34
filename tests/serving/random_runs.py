"""Randomly drawn runs on a device behind a bad network, each compared with the same run on the spot."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from served import free_address, ipc_address, served

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import DeviceError, ReservoirError, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir, open_reservoir, parse_reservoir
from reservoir_hw.drivers.zeromq import Encoding
from reservoir_hw.serving import Server
from reservoir_hw.serving.chaos import ChaosProxy
from reservoir_hw.serving.faults import FAULTS, ChaosConfig

from .unix_proxy import UnixProxy

TIMEOUT_S = 0.3
LEASE_S = 0.5
RUNS_OF_A_SETTING = 10
# Every wait has an end of its own after a second at most; this is for a machine that does many other things.
LONGEST_RUN_S = 20.0
INPUTS = 2

Program = list[tuple[str, Any]]


@dataclass
class Outcome:
    """What many runs came to."""

    runs: int = 0
    correct: int = 0
    after_a_fault: int = 0
    exceptions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FAULTS, 0)))
    messages: int = 0
    longest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.runs += other.runs
        self.correct += other.correct
        self.after_a_fault += other.after_a_fault
        self.exceptions += other.exceptions
        self.faults.update(other.faults)
        self.messages += other.messages
        self.longest_s = max(self.longest_s, other.longest_s)
        self.wrong += other.wrong

    def __str__(self) -> str:
        lines = [
            f"{self.runs} runs, {self.messages} messages, longest run {self.longest_s:.2f} s",
            f"  correct     {self.correct} ({self.after_a_fault} on a connection that had failed before)",
            *(f"  {name:<26} {count}" for name, count in sorted(self.exceptions.items())),
            "faults: " + ", ".join(f"{name} {self.faults[name]}" for name in FAULTS),
        ]
        return "\n".join(lines)


def esn(dtype: str = "float32") -> Reservoir:
    section = {"kind": "esn", "nodes": 12, "inputs": INPUTS, "seed": 1, "dtype": dtype}
    return build_reservoir(parse_reservoir(Document.from_mapping(section, "test")))


def draw_setting(number: int, seed: int) -> ChaosConfig:
    """One kind of fault that comes in turn, sometimes with others, which may be rare."""
    random = np.random.default_rng([seed, number])
    in_turn = FAULTS[number % len(FAULTS)]
    kinds = sorted({in_turn, *map(str, random.choice(FAULTS, size=random.integers(0, 3)))})
    rarest = {kind: 0.015 if kind == in_turn else 0.003 for kind in kinds}
    return ChaosConfig.model_validate(
        {
            "seed": number,
            "sockets": [("data",), ("control",), ("data", "control")][random.choice(3, p=[0.45, 0.1, 0.45])],
            "directions": [("to_device",), ("to_client",), ("to_device", "to_client")][random.integers(3)],
            "delay_s": random.choice([0.001, 0.01, 0.4], p=[0.5, 0.4, 0.1]),
            "jitter_s": random.choice([0.0, 0.005]),
            "reorder_s": random.choice([0.001, 0.01]),
            **{kind: float(np.exp(random.uniform(np.log(least), np.log(0.08)))) for kind, least in rarest.items()},
        }
    )


def draw_program(random: np.random.Generator, *, settable: bool) -> tuple[int, Program]:
    """Sequences, and what is done with the device after a reset to so many."""
    batch = int(random.choice([1, 1, 2, 5]))

    def inputs(steps: int) -> np.ndarray:
        return random.uniform(-1, 1, (batch, steps, INPUTS)).astype(np.float32)

    program: Program = []
    for _ in range(random.integers(1, 5)):
        match random.choice(["run", "run", "step", "stream", "go back", "transition"]):
            case "run":
                program.append(("run", inputs(int(random.integers(1, 40)))))
            case "step":
                program += [("step", inputs(1)[:, 0]) for _ in range(random.integers(1, 5))]
            case "stream":
                program.append(("stream", [inputs(int(n)) for n in random.integers(1, 8, random.integers(1, 6))]))
            case "go back":
                program += [("snapshot", None), ("run", inputs(int(random.integers(1, 10)))), ("restore", None)]
                program.append(("run", inputs(int(random.integers(1, 10)))))
            case "transition" if settable:
                states = random.uniform(-1, 1, (batch, 12)).astype(np.float32)
                program.append(("transition", (inputs(1)[:, 0], states)))
    return batch, program


def execute(device: Reservoir, program: Program) -> list[Any]:
    """All states that the program gets. A fault in a run carries what was harvested of that run."""
    results: list[Any] = []
    snapshot: Mapping[str, np.ndarray] = {}
    for operation, given in program:
        match operation:
            case "run":
                results.append(device.run(given))
            case "step":
                results.append(device.step(given))
            case "stream":
                results += list(device.stream(given))
            case "snapshot":
                snapshot = device.snapshot()
            case "restore":
                device.restore(snapshot)
            case "transition":
                results.append(device.transition(*given))
    return results


class Bench:
    """A server with a bad network in front of it, and the same reservoir on the spot."""

    def __init__(self, number: int, seed: int, scheme: str, *, checksums: bool, spares_payloads: bool) -> None:
        self.scheme, self.checksums, self.spares_payloads = scheme, checksums, spares_payloads
        self.random = np.random.default_rng([seed, number])
        self.seed = seed
        self.number = number
        self.outcome = Outcome()
        # The first is float64 over tcp (or unix), the second sends its states as integers.
        self.dtype = "float64" if number == 0 else "float32"
        self.states = Encoding(3, 2.0**-12) if number == 1 else None
        self.local = esn(self.dtype)

    def work(self, next_setting: Callable[[], int | None]) -> None:
        """Do settings until there are no more."""
        unix = partial(UnixProxy, spares_payloads=self.spares_payloads)
        proxy_between = ChaosProxy if self.scheme == "ipc" else unix
        with ipc_address(self.scheme) as back, ipc_address(self.scheme) as front:
            if self.number == 0 and self.scheme == "ipc":
                front = free_address()
            options = {"lease_s": LEASE_S, "credits": 4, "states": self.states}
            with served(esn(self.dtype), back, **options) as server, self.local:
                while (setting := next_setting()) is not None and not self.outcome.wrong:
                    with proxy_between(draw_setting(setting, self.seed), front=front, back=back) as proxy:
                        self._runs(front, server)
                        self.outcome.faults.update(proxy.counts)
                        self.outcome.messages += proxy.messages
                    self._without_faults(back, server)

    def _runs(self, front: str, server: Server) -> None:
        device, failed = None, False
        for _ in range(RUNS_OF_A_SETTING):
            batch, program = draw_program(self.random, settable=self.states is None)
            expected = self._expected(batch, program)
            if device is None:
                self._wait_until_free(server)
            started = time.monotonic()
            try:
                device = device or self._open(front)
                device.reset(batch)
                self._compare(execute(device, program), expected)
                self.outcome.correct += 1
                self.outcome.after_a_fault += failed
            except (DeviceError, StateLost) as error:
                self.outcome.exceptions[type(error).__name__] += 1
                self._compare_harvest(error, program, expected)
                # Going on after a reset is tried once: it must work, or say so.
                if device is not None and (failed or self.random.random() < 0.5):
                    device.close()
                    device = None
                failed = device is not None
            except Exception:
                self.outcome.wrong.append(f"no error of this package:\n{traceback.format_exc()}")
                return
            finally:
                self.outcome.runs += 1
                self.outcome.longest_s = max(self.outcome.longest_s, time.monotonic() - started)
        if device is not None:
            device.close()

    def _without_faults(self, address: str, server: Server) -> None:
        """Whatever has happened before: the device is free again, and right."""
        self._wait_until_free(server)
        batch, program = draw_program(self.random, settable=self.states is None)
        try:
            with self._open(address, timeout_s=10.0) as device:
                device.reset(batch)
                self._compare(execute(device, program), self._expected(batch, program))
        except ReservoirError:
            self.outcome.wrong.append(f"a fresh client without faults:\n{traceback.format_exc()}")

    def _open(self, address: str, timeout_s: float = TIMEOUT_S) -> Reservoir:
        choice = self.random.choice
        return open_reservoir(
            {
                "kind": "zmq",
                "address": address,
                "timeout_s": timeout_s,
                "credits": [None, 1, 2, 4][choice(4)],
                "chunk_steps": [None, 1, 3, 7][choice(4)],
                "checksums": self.checksums,
            }
        )

    def _wait_until_free(self, server: Server) -> None:
        until = time.monotonic() + LONGEST_RUN_S
        while server.status()["holder"] is not None:
            if time.monotonic() > until:
                raise AssertionError(f"the device was not given back: {server.status()}")
            time.sleep(0.01)

    def _expected(self, batch: int, program: Program) -> list[np.ndarray]:
        self.local.reset(batch)
        states = execute(self.local, program)
        if self.states is None:
            return states
        return [self._as_sent(array, self.states) for array in states]

    @staticmethod
    def _as_sent(array: np.ndarray, encoding: Encoding) -> np.ndarray:
        values = np.empty_like(array)
        encoding.decode(encoding.encode(array), values)
        return values

    def _compare(self, results: list[np.ndarray], expected: list[np.ndarray]) -> None:
        same = len(results) == len(expected) and all(map(np.array_equal, results, expected))
        if not same:
            self.outcome.wrong.append(f"wrong states: {results} instead of {expected}")

    def _compare_harvest(self, error: ReservoirError, program: Program, expected: list[np.ndarray]) -> None:
        """What an exception hands out of a run must be right too."""
        if not isinstance(error, DeviceError) or error.states is None:
            return
        if error.states.shape[1] != error.steps_done:
            self.outcome.wrong.append(f"{error.steps_done} steps done, but states {error.states.shape}")
        if error.steps_done and not any(
            array.ndim == 3 and np.array_equal(array[:, : error.steps_done], error.states) for array in expected
        ):
            self.outcome.wrong.append(f"wrong states in an exception: {error.states}")


def random_runs(
    runs: int,
    benches: int,
    seed: int,
    limit_s: float,
    scheme: str = "ipc",
    *,
    checksums: bool = False,
    spares_payloads: bool = False,
) -> Outcome:
    """So many runs, on several benches at once: most of the time is spent waiting for what was lost."""
    settings = iter(range(-(-runs // RUNS_OF_A_SETTING)))
    guard = threading.Lock()
    outcome = Outcome()

    def next_setting() -> int | None:
        with guard:
            return next(settings, None)

    def work(bench: Bench) -> None:
        try:
            bench.work(next_setting)
        except BaseException:
            bench.outcome.wrong.append(traceback.format_exc())
        with guard:
            outcome.add(bench.outcome)

    # Not waited for at the end of the program, in case that one of them hangs.
    threads = [
        threading.Thread(
            target=work,
            args=(Bench(n, seed, scheme, checksums=checksums, spares_payloads=spares_payloads),),
            name=f"bench {n}",
            daemon=True,
        )
        for n in range(benches)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        outcome.wrong.append(f"not at the end after {limit_s:g} s")
    return outcome
