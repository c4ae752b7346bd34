"""Every experiment of the examples on every reservoir file: what is accepted, and why not; a sample of it is run.

    python -m tools.swap_matrix          # the matrix, and the table of docs/swap.md; opens no device
    python -m tools.swap_matrix --run    # 60 random pairs, cut to a few hundred steps, on emulated and served devices

Needs RESERVOIR_HW_DATA. Fails where a pair is refused for another reason than one of `REFUSED`, where a file of
tools/swap_matrix.txt is missing, and where a pair that is run does not end with finite metrics and states that move.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from examples.kept_rows import replace_tables, table
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, ReservoirError
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment import Experiment
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import drop_baselines
from reservoir_hw.tasks.task import Task

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "swap_matrix.txt"
COMMAND = [sys.executable, "-m", "reservoir_hw.cli"]
SEED, PAIRS = 2026, 60

REFUSED = {
    "no gradient passes": "a gradient through what is no differentiable simulation",
    "one step from given states": "a step from given states, which only a simulation can take",
    "a recording has no other inputs": "inputs that were not recorded",
    "does not hold the inputs": "inputs that were not recorded",
    "nothing says in which range": "values without a range, for a device that refuses what lies outside its own",
    "declares no input_range": "hardware that says not how strong its inputs may be",
    "input_mask: none": "a file that refuses to spread channels",
    "closed loop waits for each answer": "a closed loop on a device that does not wait",
    "has no reservoir of its own to replace": "a model that drives no reservoir",
}
"""A part of the message -> the physical reason, for tables."""

EMULATED = {
    "emulate bench --dialect keysight": ["emulate", "bench", "--dialect", "keysight", "--port", "0"],
    "emulate bench --dialect tektronix": ["emulate", "bench", "--dialect", "tektronix", "--port", "0"],
    "emulate bench --dialect red_pitaya": ["emulate", "bench", "--dialect", "red_pitaya", "--port", "0"],
    "emulate bench --dialect smu": ["emulate", "bench", "--dialect", "smu", "--port", "0"],
    "emulate board": ["emulate", "board"],
    "emulate board --text": ["emulate", "board", "--text"],
}
"""Whose printed reservoir files are columns of the matrix."""

SERVED = {
    "examples/remote/bench.yaml": "examples/reservoirs/delay_loop.yaml",
    "examples/boards/server.yaml": "examples/boards/golden.yaml",
    "examples/edge_deploy/bench.yaml": "examples/reservoirs/fpga.yaml",
}
"""What stands behind the addresses of the examples, with one input."""

BOARDS = {
    "examples/boards/firmware.yaml": ["emulate", "board"],
    "examples/boards/serial.yaml": ["emulate", "board"],
    "examples/smu_film/board.yaml": ["emulate", "board", "--text"],
}
BENCHES = {"examples/virtual_bench/bench.yaml": "keysight", "examples/smu_film/film.yaml": "smu"}

CUTS: dict[str, dict[str, Any]] = {
    "narma": {"train_steps": 400, "test_steps": 200},
    "memory_recall": {"train_steps": 400, "test_steps": 200},
    "parity": {"train_steps": 400, "test_steps": 200},
    "channel_equalisation": {"train_steps": 400, "test_steps": 200},
    "sine_square": {"train_periods": 30, "test_periods": 15},
    "mackey_glass": {"train_steps": 400, "test_steps": 200},
    "lorenz": {"train_steps": 400, "test_steps": 200},
    "santa_fe": {"train_steps": 400, "test_steps": 200},
    "elman_grammar": {"sentences": 300},
    "japanese_vowels": {},
    "trec": {"limit": 40, "judge": "validation", "validation": 0.01},
    "text": {"limit": 20_000, "validation": 0.02, "test": 0.02},
}
"""Settings of the tasks that leave a few hundred steps."""

SHORT_TRAINING = {"steps": 3, "batch": 2, "context": 16, "evaluation_windows": 2}


def main() -> int:
    """The exit status."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run", action="store_true", help="run a sample of the pairs, too")
    asked.add_argument("--pairs", type=int, default=PAIRS, help=f"how many ({PAIRS})")
    options = asked.parse_args()
    experiments = LIST.read_text(encoding="utf-8").split()
    missing = [file for file in experiments if not (ROOT / file).is_file()]
    if missing:
        print(f"missing: {', '.join(missing)}")
        return 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        printed = {
            name: stack.enter_context(emulated(folder / f"{n}.yaml", words))
            for n, (name, words) in enumerate(EMULATED.items())
        }
        files = {**{file: Path(file) for file in reservoir_files()}, **printed}
        print(f"{len(experiments)} experiments, {len(files)} reservoir files")
        accepted, unexplained = matrix(experiments, files)
        failed = run_some(accepted, files, options.pairs, folder) if options.run else 0
    return 1 if unexplained or failed else 0


def reservoir_files() -> list[str]:
    """Those of the examples; a recording counts where it is there."""
    found = []
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        data = Document.from_file(path).data
        if "kind" in data and (data["kind"] != "replay" or StateStore.exists(str(ROOT / data["trace"]))):
            found.append(str(path.relative_to(ROOT)))
    return found


def matrix(experiments: list[str], files: dict[str, Path]) -> tuple[list[tuple[str, str]], int]:
    """The pairs that are accepted, and how many are refused for a reason that nobody has named."""
    accepted: list[tuple[str, str]] = []
    reasons: dict[str, Counter[str]] = {name: Counter() for name in files}
    unexplained = 0
    tasks: dict[str, Task] = {}
    for number, experiment in enumerate(experiments, 1):
        for name, file in files.items():
            try:
                Experiment(load_document(experiment, reservoir=file), tasks=tasks).estimate()
            except ReservoirError as error:
                reason = next((why for part, why in REFUSED.items() if part in str(error)), None)
                if reason is None:
                    unexplained += 1
                    print(f"NO REASON: {experiment} on {name}: {error}")
                reasons[name][reason or "no reason"] += 1
            else:
                accepted.append((experiment, name))
        print(f"{number} of {len(experiments)} experiments", file=sys.stderr, flush=True)
    alike: dict[tuple[str, str], list[str]] = {}
    for name, found in reasons.items():
        count = sum(1 for _, one in accepted if one == name)
        refused_for = "; ".join(f"{n}: {why}" for why, n in found.most_common())
        alike.setdefault((str(count), refused_for), []).append(f"`{name}`")
    rows = [[", ".join(names), *outcome] for outcome, names in alike.items()]
    total = len(experiments) * len(files)
    refused = total - len(accepted)
    print(f"{len(accepted)} of {total} pairs are accepted, {refused} refused, {unexplained} without a reason")
    head = f"accepted of {len(experiments)}"
    replace_tables(ROOT / "docs" / "swap.md", {"matrix": table(["reservoir files", head, "refused"], rows)})
    return accepted, unexplained


def run_some(accepted: list[tuple[str, str]], files: dict[str, Path], count: int, folder: Path) -> int:
    """Run random pairs; how many did not end as they should."""
    drawn = random.Random(SEED).sample(sorted(accepted), min(count, len(accepted)))
    ended, short, failed = 0, 0, 0
    for number, (experiment, name) in enumerate(drawn, 1):
        began = time.monotonic()
        with device(name, files[name], folder) as file:
            try:
                share, metrics = cut_run(experiment, file, folder / f"run-{number}")
            except ConfigurationError as error:
                # Cut to a few hundred steps some tasks have nothing left to judge.
                what, short = f"too short when cut: {error}", short + 1
            except ReservoirError as error:
                what, failed = f"FAILED: {type(error).__name__}: {error}", failed + 1
            else:
                finite = all(math.isfinite(value) for value in metrics.values())
                good = finite and (math.isnan(share) or share > 0)
                ended, failed = ended + good, failed + (not good)
                moves = "no states are recorded" if math.isnan(share) else f"{share:.0%} of the nodes move"
                what = f"{len(metrics)} metrics, {'finite' if finite else 'NOT FINITE'}; {moves}"
        print(f"{number:2}. {experiment} on {name}: {what} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{ended} ended with finite metrics and states that move, {short} too short when cut, {failed} failed")
    return failed


def cut_run(experiment: str, reservoir: Path, folder: Path) -> tuple[float, dict[str, float]]:
    """The share of the nodes that move, and the metrics of the first point, cut short."""
    document = load_document(experiment, reservoir=reservoir)
    task, at = document.data["task"], "task"
    if task["kind"] == "validation":
        task, at = task["task"], "task.task"
    cuts = {f"{at}.{key}": value for key, value in CUTS[task["kind"]].items()}
    if task.get("closed_loop"):
        cuts.pop(f"{at}.test_steps", None)
        cuts |= {
            f"{at}.closed_loop.{key}": n for key, n in {"starts": 2, "warmup_steps": 30, "forecast_steps": 20}.items()
        }
    if task.get("level") == "bpe" and task.get("vocabulary"):
        cuts[f"{at}.vocabulary"] = 300
    drop_baselines(document)
    if "gradient" in document.data.get("training", {}):
        labels = task["kind"] == "trec"
        document.set("training.gradient", {"epochs": 1} if labels else SHORT_TRAINING, "the cut")
    run = {"folder": str(folder), "states": None, "record": str(folder / "states"), "point": 0}
    for key, value in {**cuts, "sweep": None, "run": run}.items():
        document.set(key, value, "the cut")
    result = Experiment(document).run(report=False)
    recorded = [store for store in folder.glob("states/**/zarr.json") if StateStore.exists(str(store.parent))]
    stores = [StateStore.open(str(path.parent)) for path in recorded]
    found = [np.asarray(dataset.states[:]) for store in stores for dataset in store.datasets.values()]
    # Steps that were not driven are NaN. Steps from given states are in no recording.
    moving = [np.mean(np.nanstd(states, axis=(0, 1)) > 0) for states in found]
    return float(min(moving, default=math.nan)), result.rows[0].evaluation.metrics


@contextmanager
def device(name: str, file: Path, folder: Path) -> Iterator[Path]:
    """A reservoir file whose device is there."""
    if name in SERVED:
        words = ["serve", SERVED[name], "--inputs", "1", "--bind", "tcp://127.0.0.1:5555"]
        with running(words) as process:
            wait_for_line(process)
            yield file
    elif name in BOARDS:
        with emulated(folder / "board.yaml", BOARDS[name]) as board:
            yield board
    elif name in BENCHES:
        port = ["emulate", "bench", "--dialect", BENCHES[name]]
        with emulated(folder / "bench.yaml", port):
            yield file
    else:
        yield file


@contextmanager
def emulated(out: Path, words: list[str]) -> Iterator[Path]:
    """The reservoir file that an emulator writes, while it runs."""
    out.unlink(missing_ok=True)
    with running([*words, "-o", str(out)]) as process:
        while not (out.is_file() and out.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(words)} ended: {process.stdout.read() if process.stdout else ''}")
            time.sleep(0.05)
        yield out


def wait_for_line(process: subprocess.Popen[str]) -> None:
    """Until it has said that it listens."""
    said = process.stdout.readline() if process.stdout is not None else ""
    if "serving" not in said:
        raise SystemExit(f"the server ended: {said}")


@contextmanager
def running(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command of this package, ended afterwards."""
    process = subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
