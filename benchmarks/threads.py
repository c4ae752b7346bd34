"""Threads beside other work: what a step takes as it is and with one thread, beside 0, 1 and 2 busy processes.

    python benchmarks/threads.py [--quick] [--only WORD] [--beside CHECKOUT] [--json FILE]

Each side is a process of its own. Rounds of both follow each other under the same load, in turn the one and the other
first; a ratio is the median of the ratios within the rounds. Busy processes count, and do nothing else. `--beside` is
another checkout of this project, a third side with threads as they are there.

"sweep" runs twelve trials by one process and by two, with the threads as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

SWEEP = """
task: {kind: narma, train_steps: 4000, test_steps: 2000}
reservoir:
  kind: esn
  nodes: 400
  vary: {seed: [1, 2, 3]}
  search: {spectral_radius: {low: 0.5, high: 1.2}}
readout: {kind: ridge, alpha: 1.0e-4}
sweep: {trials: 12, sampler: random, metric: nrmse}
"""


def driven(config: dict[str, object], batch: int, steps: int) -> Callable[[], float]:
    """Drives a reservoir; seconds of a step."""
    import numpy as np

    from reservoir_hw import open_reservoir

    reservoir = open_reservoir(config).open()
    reservoir.reset(batch)
    u = np.random.default_rng(0).uniform(-1, 1, (batch, steps, reservoir.spec.inputs)).astype(np.float32)

    def once() -> float:
        begin = time.perf_counter()
        reservoir.run(u)
        return (time.perf_counter() - begin) / steps

    return once


def twin(nodes: int = 100, batch: int = 16, steps: int = 10) -> Callable[[], float]:
    """Trains a linear layer through the twin of a device; seconds of a step of the device."""
    import torch

    from reservoir_hw import open_reservoir
    from reservoir_hw.readout import ReservoirLayer

    config = {"kind": "esn", "nodes": nodes, "inputs": 3, "seed": 1}
    layer = ReservoirLayer(
        open_reservoir(config).open(), gradient="twin", twin=open_reservoir({**config, "gradients": True}).open()
    )
    before, after = torch.nn.Linear(3, 3), torch.nn.Linear(nodes, 1)
    optimizer = torch.optim.Adam([*before.parameters(), *after.parameters()])
    u = torch.rand(batch, steps, 3)

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(5):
            optimizer.zero_grad()
            after(layer(before(u).tanh())).square().mean().backward()
            optimizer.step()
        return (time.perf_counter() - begin) / steps / 5

    return once


def ridge() -> Callable[[], float]:
    """Fits a ridge readout; seconds of a fit."""
    import numpy as np

    from reservoir_hw.readout import RidgeReadout

    states = np.random.default_rng(0).normal(size=(4000, 400)).astype(np.float32)

    def once() -> float:
        begin = time.perf_counter()
        RidgeReadout().fit(states, states[:, :1])
        return time.perf_counter() - begin

    return once


ESN = {"kind": "esn", "inputs": 3, "seed": 1}
CASES: dict[str, Callable[[], Callable[[], float]]] = {
    "gated_esn 300, 10 sequences": lambda: driven({**ESN, "kind": "gated_esn", "nodes": 300}, 10, 60),
    "gated_esn 400, 1 sequence": lambda: driven({**ESN, "kind": "gated_esn", "nodes": 400}, 1, 100),
    "esn 1000 dense": lambda: driven({**ESN, "nodes": 1000}, 1, 200),
    "esn 1000 dense, 3 sequences": lambda: driven({**ESN, "nodes": 1000}, 3, 60),
    "esn 300 dense, 10 sequences": lambda: driven({**ESN, "nodes": 300}, 10, 400),
    "esn 3000 sparse": lambda: driven({**ESN, "nodes": 3000, "connectivity": 32 / 3000}, 1, 200),
    "esn 1000 sparse, 32 sequences": lambda: driven({**ESN, "nodes": 1000, "connectivity": 0.032}, 32, 100),
    "twin": twin,
    "ridge 4000 x 400": ridge,
}


def answer(case: str) -> None:
    """The process of one side: a line for each round."""
    once = CASES[case]()
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        once()
    print("ready", flush=True)
    for line in sys.stdin:
        end, taken = time.perf_counter() + float(line), []
        while not taken or time.perf_counter() < end:
            taken.append(once())
        print(statistics.fmean(taken), flush=True)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many other processes that want a core."""
    with ExitStack() as stack:
        for _ in range(count):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(other.kill)
        time.sleep(0.1 if count else 0)
        yield


@contextmanager
def side(case: str, checkout: Path, environment: dict[str, str]) -> Iterator[Callable[[float], float]]:
    """Seconds of a step in a round of so many seconds, in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--answer", case]
    own = {**os.environ, "PYTHONPATH": str(checkout), **environment}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own, text=True) as process:
        to, back = process.stdin, process.stdout
        assert to is not None
        assert back is not None
        if back.readline() != "ready\n":
            raise SystemExit(f"{case}: the process of a side has ended")

        def a_round(seconds: float) -> float:
            process.send_signal(signal.SIGCONT)
            to.write(f"{seconds}\n")
            to.flush()
            found = float(back.readline())
            # What it left spinning is its own, not the next one's.
            process.send_signal(signal.SIGSTOP)
            return found

        yield a_round
        process.kill()


def measured(case: str, rounds: int, seconds: float, beside: Path | None) -> Iterator[tuple[int, dict[str, float]]]:
    """For each number of busy processes the medians of seconds by side, and of the ratios to one thread."""
    places = {"as it is": (HERE, {}), "one thread": (HERE, ONE)}
    if beside is not None:
        places["beside"] = (beside, {})
    with ExitStack() as stack:
        sides = {name: stack.enter_context(side(case, *place)) for name, place in places.items()}
        for load in (0, 1, 2):
            found: dict[str, list[float]] = {name: [] for name in places}
            with busy(load):
                for number in range(rounds):
                    for name in list(sides) if number % 2 else reversed(sides):
                        found[name].append(sides[name](seconds))
            row = {name: statistics.median(taken) for name, taken in found.items()}
            for name in places:
                if name != "one thread":
                    ratios = [here / one for here, one in zip(found[name], found["one thread"], strict=True)]
                    row[f"{name} / one thread"] = statistics.median(ratios)
            yield load, row


def swept(processes: int, checkout: Path) -> float:
    """Seconds of a sweep of twelve trials."""
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    (folder / "experiment.yaml").write_text(SWEEP)
    command = [sys.executable, "-m", "reservoir_hw.cli", "sweep", "experiment.yaml"]
    own = {**os.environ, "PYTHONPATH": str(checkout)}
    begin = time.perf_counter()
    running = [
        subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(processes)
    ]
    if sum(process.wait() for process in running):
        raise SystemExit(f"a sweep has failed, see {folder}")
    taken = time.perf_counter() - begin
    shutil.rmtree(folder)
    return taken


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer(given.answer)
        return
    rounds, seconds = (5, 0.15) if given.quick else (15, 0.3)
    table: dict[str, dict[str, float]] = {}
    for case in (name for name in CASES if given.only in name):
        for load, row in measured(case, rounds, seconds, given.beside):
            table[f"{case}, {load} busy"] = row
            print(
                f"{case:32}{load} busy",
                *(f"{k} {v * (1 if '/' in k else 1e6):.4g}" for k, v in row.items()),
                flush=True,
            )
    if given.only in "sweep":
        for name, place in {"as it is": HERE, **({"beside": given.beside} if given.beside else {})}.items():
            taken = {count: [swept(count, place) for _ in range(1 if given.quick else 2)] for count in (1, 2)}
            row = {f"{count} processes": min(times) for count, times in taken.items()}
            table[f"sweep, {name}"] = {**row, "gain": row["1 processes"] / row["2 processes"]}
            print("sweep", name, table[f"sweep, {name}"], flush=True)
    if given.json:
        given.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
