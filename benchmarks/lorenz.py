"""The Lorenz system in a closed loop, beside reservoirpy: valid prediction steps over 20 starts, and times.

    python benchmarks/lorenz.py [--quick] [--json FILE]

The same series, the same starts, and the same judgement for both: a forecast is valid until its error exceeds 0.4
standard deviations of the series (`reservoir_hw.tasks.lorenz`).

"same weights": both have the same network (2000 nodes, 10 % connected) and the same penalty on the same features, so
that what differs is the arithmetic: float32 states by default here, float64 there. Chaos amplifies every rounding
error, so single starts end some steps apart; the first steps of the forecasts must agree, or the benchmark stops.

"own defaults": each library draws a network of that size by its own defaults (ours dense with spectral radius 0.9,
reservoirpy's 10 % connected with spectral radius 1), and our readout standardises, as it does by default. Input
scaling, bias and the number of the penalty are the same. One network each says little about which draws the better
ones.

Times are of one run each, in turn. Training is the drive and the fit, generation the warm-up and the free run of all
starts; we drive them side by side, reservoirpy one after the other, as it can.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
from reservoirpy.nodes import Reservoir as ReservoirpyReservoir
from reservoirpy.nodes import Ridge as ReservoirpyRidge

from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.experiment.states.drive import forecast
from reservoir_hw.networks import EsnWeights, draw_weights
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.tasks.lorenz import LYAPUNOV_EXPONENT, Lorenz
from reservoir_hw.tasks.prediction.task import ClosedLoop
from reservoir_hw.tasks.task import Split

NODES, QUICK_NODES = 2000, 300
LOOP = ClosedLoop(starts=20, warmup_steps=200, forecast_steps=1000)
TIME_STEP = 0.02
LYAPUNOV_PER_STEP = LYAPUNOV_EXPONENT * TIME_STEP
ALPHA = 1e-6
WASHOUT = 200
INPUT_SCALING, BIAS_SCALING = 0.3, 0.5
AGREEMENT = 1e-3


@dataclass(frozen=True)
class Row:
    """One contestant: quartiles of the valid steps, seconds, and its first forecast step against reservoirpy's."""

    case: str
    contestant: str
    q1: float
    median: float
    q3: float
    train_s: float
    generate_s: float
    first_step_difference: float


def ours(
    task: Lorenz, weights: EsnWeights, dtype: Literal["float32", "float64"], standardise: bool
) -> tuple[np.ndarray, float, float]:
    """The forecast, and the seconds of training and of generation."""
    with Esn(weights, dtype=dtype) as reservoir:
        # What is compiled or chosen by timing once must not count.
        reservoir.run(task.train.inputs[:, :50])
        reservoir.reset(LOOP.starts)
        reservoir.step(task.test.inputs[:, 0])
        started = time.perf_counter()
        reservoir.reset()
        states = reservoir.run(task.train.inputs)
        readout = RidgeReadout(ALPHA, standardise=standardise, washout=WASHOUT).fit(states, task.train.targets)
        trained = time.perf_counter()
        outputs = forecast(reservoir, readout, task.test.inputs, LOOP.forecast_steps)
        return outputs, trained - started, time.perf_counter() - trained


def theirs(task: Lorenz, node: ReservoirpyReservoir) -> tuple[np.ndarray, float, float]:
    """The same of reservoirpy, by its documented loop: run the warm-up, then step with the last answer."""
    train, test = (_wide(split) for split in (task.train, task.test))
    ridge = ReservoirpyRidge(ridge=ALPHA)
    node.run(train.inputs[0, :50])
    started = time.perf_counter()
    node.reset()
    states = node.run(train.inputs[0])
    ridge.fit(states, train.targets[0], warmup=WASHOUT)
    trained = time.perf_counter()
    outputs = np.empty(test.targets.shape)
    for start, warmup in enumerate(test.inputs):
        node.reset()
        answer = np.asarray(ridge.run(np.asarray(node.run(warmup))[-1:]))[0]
        for step in range(LOOP.forecast_steps):
            outputs[start, step] = answer
            answer = ridge.step(node.step(answer))
    return outputs, trained - started, time.perf_counter() - trained


def compare(nodes: int) -> list[Row]:
    """Both comparisons; raises RuntimeError where the same weights do not give the same first step."""
    task = Lorenz(time_step=TIME_STEP, train_steps=5000, closed_loop=LOOP)
    draw = partial(draw_weights, nodes, 3, seed=0, input_scaling=INPUT_SCALING, bias_scaling=BIAS_SCALING)
    weights = draw(spectral_radius=0.6, connectivity=0.1)
    same = ReservoirpyReservoir(W=weights.recurrent(), Win=weights.W_in, bias=weights.bias)
    rows = _rows(
        task,
        "same weights",
        {
            "reservoirpy": theirs(task, same),
            "ours": ours(task, weights, "float32", standardise=False),
            "ours, float64": ours(task, weights, "float64", standardise=False),
        },
    )
    worst = max(row.first_step_difference for row in rows)
    if not worst < AGREEMENT:
        raise RuntimeError(f"first steps differ by {worst:.1e}: the contestants compute different things")
    bias = np.random.default_rng(0).uniform(-BIAS_SCALING, BIAS_SCALING, nodes)
    drawn = ReservoirpyReservoir(nodes, input_scaling=INPUT_SCALING, bias=bias, seed=0)
    return rows + _rows(
        task,
        "own defaults",
        {"reservoirpy": theirs(task, drawn), "ours": ours(task, draw(), "float32", standardise=True)},
    )


def _rows(task: Lorenz, case: str, results: dict[str, tuple[np.ndarray, float, float]]) -> list[Row]:
    reference = results["reservoirpy"][0]
    rows = []
    for contestant, (outputs, train_s, generate_s) in results.items():
        q1, median, q3 = np.percentile(task.evaluate(outputs).arrays["valid_steps"], [25, 50, 75])
        difference = float(np.abs(outputs[:, 0] - reference[:, 0]).max())
        rows.append(Row(case, contestant, float(q1), float(median), float(q3), train_s, generate_s, difference))
    return rows


def _wide(split: Split) -> Split:
    return Split(split.inputs.astype(np.float64), split.targets.astype(np.float64))


def _table(rows: list[Row]) -> str:
    lines = [
        f"{'case':<14}{'contestant':<15}{'valid steps: median (quartiles)':>33}{'Lyapunov times':>16}"
        f"{'training s':>12}{'generation s':>14}{'times as fast':>16}{'first step':>12}"
    ]
    for row in rows:
        peer = next(other for other in rows if other.case == row.case and other.contestant == "reservoirpy")
        valid = f"{row.median:g} ({row.q1:g} to {row.q3:g})"
        faster = f"{peer.train_s / row.train_s:.1f} / {peer.generate_s / row.generate_s:.1f}"
        lines.append(
            f"{row.case:<14}{row.contestant:<15}{valid:>33}{row.median * LYAPUNOV_PER_STEP:>16.2f}"
            f"{row.train_s:>12.2f}{row.generate_s:>14.2f}{faster:>16}{row.first_step_difference:>12.1e}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_NODES} nodes instead of {NODES}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    arguments = parser.parse_args()
    nodes = QUICK_NODES if arguments.quick else NODES
    rows = compare(nodes)
    print(f"{nodes} nodes, {LOOP.starts} starts")
    print(_table(rows))
    print("Times as fast: training / generation, than reservoirpy. First step: largest difference from its first step.")
    if arguments.json:
        report = {
            "nodes": nodes,
            "rows": [asdict(row) for row in rows],
            "versions": {"numpy": np.__version__, "reservoirpy": version("reservoirpy")},
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
