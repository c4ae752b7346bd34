"""The simulated ESN beside its peers: µs per time step, and whether the states agree.

    python benchmarks/esn.py [--quick] [--only WORD] [--json FILE]

Then the ridge readout (`_ridge_case.py`), in seconds per fit.

Every case gives the same weights and inputs to each loop: ours (float32, `kernels.run`), reservoirpy
(float64, the only precision its states have), the best plain torch loop (float32, no compilation: one
fused product per step into preallocated tensors) and, where jax is installed and the matrix dense, a jitted
`jax.lax.scan` (float32). All states are returned. Repeats alternate between the loops, so that a busy machine
slows all of them alike; medians are reported. Agreement is the largest difference between our float32 states
and reservoirpy's float64 states, relative to the largest state.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import reservoirpy
import torch
from _ridge_case import ridge_case, ridge_line
from scipy.sparse import csr_array

from reservoir_hw.backends.simulated.esn import cpu_loop as kernels
from reservoir_hw.backends.simulated.nonidealities.noise import to_float16
from reservoir_hw.networks import EsnWeights, draw_weights

try:
    jax: Any = import_module("jax")
except ImportError:
    jax = None

AGREEMENT = 2e-6
_PAUSE_S = 0.1
INPUTS = 1


@dataclass(frozen=True)
class Case:
    """One network and drive; `steps` per sequence.

    `float16` stores our weights so; `out` gives our loop memory to write to, which it then need not ask for.
    """

    name: str
    nodes: int
    steps: int
    batch: int = 1
    connectivity: float | None = None
    connections_per_node: int | None = None
    float16: bool = False
    out: bool = False


@dataclass(frozen=True)
class Row:
    """Medians in µs per time step of the whole batch, and the largest relative difference of states.

    `jax` is None where it is not installed, and for sparse matrices.
    """

    case: str
    storage: str
    ours: float
    reservoirpy: float
    torch: float
    jax: float | None
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether the states are equal within 2e-6 of their scale."""
        return self.difference <= AGREEMENT


CASES = (
    Case("N=100 dense", 100, 4000),
    Case("N=300 dense", 300, 2000),
    Case("N=300 dense, float16 weights", 300, 2000, float16=True),
    Case("N=1000 dense", 1000, 800),
    Case("N=1000 dense, float16 weights", 1000, 800, float16=True),
    Case("N=1000 10 %", 1000, 1000, connectivity=0.1),
    Case("N=1000 32 per row", 1000, 2000, connections_per_node=32),
    Case("N=3000 dense", 3000, 100),
    Case("N=3000 dense, float16 weights", 3000, 100, float16=True),
    Case("N=3000 32 per row", 3000, 1000, connections_per_node=32),
    Case("N=10000 5 per row", 10_000, 1000, connections_per_node=5),
    Case("N=10000 5 per row, out=", 10_000, 1000, connections_per_node=5, out=True),
    Case("N=10000 32 per row", 10_000, 500, connections_per_node=32),
    Case("N=65536 32 per row", 65_536, 50, connections_per_node=32),
    Case("N=65536 32 per row, batch 32", 65_536, 10, connections_per_node=32, batch=32),
    Case("N=300 dense, batch 4", 300, 1000, batch=4),
    Case("N=100 dense, batch 64", 100, 1000, batch=64),
    Case("N=500 dense, batch 64", 500, 200, batch=64),
    Case("N=500 10 %, batch 64", 500, 200, batch=64, connectivity=0.1),
)


def esn_cases(quick: bool, only: str = "") -> list[Row]:
    """Run the cases with `only` in their names; `quick` has a fifth of the steps, three repeats and not seven."""
    rows = []
    for case in CASES:
        if only not in case.name:
            continue
        case = replace(case, steps=case.steps // 5) if quick else case
        rows.append(_compare(case, repeats=3 if quick else 7))
        print(_line(rows[-1]), flush=True)
    return rows


def medians(loops: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each loop, called in turn: a, b, c, a, b, c, ..."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(repeats):
        for name, loop in loops.items():
            # Threads of the loop before spin on for a while: nobody shall pay for another's.
            time.sleep(_PAUSE_S)
            begin = time.perf_counter()
            loop()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _compare(case: Case, repeats: int) -> Row:
    weights = _weights(case)
    u = np.random.default_rng(1).uniform(-1, 1, (case.batch, case.steps, INPUTS)).astype(np.float32)
    loops = {
        "ours": _ours(case, weights, u),
        "reservoirpy": _reservoirpy(weights, u),
        "torch": _torch(weights, u),
    }
    storage = "csr" if isinstance(weights.W, csr_array) else "dense"
    if jax is not None and storage == "dense":
        loops["jax"] = _jax(weights, u)
    # The first call compiles, allocates and warms the caches; it also gives the states to compare.
    states = {name: loop() for name, loop in loops.items()}
    reference = states["reservoirpy"]
    difference = np.abs(states["ours"] - reference).max() / np.abs(reference).max()
    for name in loops:
        if np.abs(states[name] - reference).max() > 1e-4 * np.abs(reference).max():
            raise RuntimeError(f"{case.name}: the loop of {name} computes something else: its time means nothing")
    per_step = {name: s / case.steps * 1e6 for name, s in medians(loops, repeats).items()}
    return Row(case.name, storage, difference=float(difference), **{"jax": None, **per_step})


def _weights(case: Case) -> EsnWeights:
    drawn = draw_weights(
        case.nodes,
        INPUTS,
        seed=0,
        spectral_radius=None,
        connectivity=case.connectivity,
        connections_per_node=case.connections_per_node,
        input_scaling=0.5,
        bias_scaling=0.1,
        leak_rate=0.5,
    )
    # The circular law's radius suffices here; at 0.9 of it the network forgets, so that rounding
    # differences do not grow with the length of the sequence.
    links = np.count_nonzero(drawn.W.data if isinstance(drawn.W, csr_array) else drawn.W) / case.nodes
    weights = replace(drawn, spectral_scale=0.9 / np.sqrt(links / 3))
    if not case.float16:
        return weights
    # The same rounded weights for everyone: what differs is how we store them.
    W, W_in, bias = (to_float16(array) for array in (weights.recurrent(), weights.W_in, weights.bias))
    return EsnWeights.from_arrays(W, W_in, bias, weights.leak)


def _ours(case: Case, weights: EsnWeights, u: np.ndarray) -> Callable[[], np.ndarray]:
    prepared = kernels.prepare(weights, storage=np.float16 if case.float16 else None)
    out = kernels.run(prepared, u, np.zeros((len(u), weights.nodes), np.float32)) if case.out else None

    def loop() -> np.ndarray:
        return kernels.run(prepared, u, np.zeros((len(u), weights.nodes), np.float32), out=out)

    return loop


def _reservoirpy(weights: EsnWeights, u: np.ndarray) -> Callable[[], np.ndarray]:
    """A single series as an array, a batch as the 3-D array its documentation calls multi-series.

    reservoirpy drives the series of a batch one after another; `workers=-1` sends them to processes, with
    the states pickled on their way back, which is slower here: both are tried, the quicker is kept.
    """
    W = weights.recurrent()
    # Its own initialisers make scipy CSR matrices, and `@` on them is what it is tuned for.
    node = reservoirpy.nodes.Reservoir(
        W=W, Win=weights.W_in, bias=weights.bias, lr=float(weights.leak[0]), input_dim=INPUTS
    )
    series = u.astype(np.float64)

    def loop(workers: int = 1) -> np.ndarray:
        if node.initialized:
            node.reset()
        if len(series) == 1:
            return np.asarray(node.run(series[0]))[None]
        return np.asarray(node.run(series, workers=workers))

    if len(series) == 1:
        return loop
    in_processes = partial(loop, -1)
    in_processes()
    seconds = medians({"one": loop, "all": in_processes}, repeats=1)
    return loop if seconds["one"] <= seconds["all"] else in_processes


def _torch(weights: EsnWeights, u: np.ndarray) -> Callable[[], np.ndarray]:
    """The plain loop with the most done at once: input products up front, then one product per step.

    With one thread or with all of them, whichever is the quicker here.
    """
    W = weights.recurrent()
    sparse = isinstance(W, csr_array)
    if sparse:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            parts = (torch.tensor(W.indptr), torch.tensor(W.indices), torch.tensor(W.data))
            recurrent = torch.sparse_csr_tensor(*parts, W.shape, dtype=torch.float32, check_invariants=True)
    else:
        recurrent = torch.tensor(W, dtype=torch.float32)
    W_in = torch.tensor(weights.W_in, dtype=torch.float32)
    bias = torch.tensor(weights.bias, dtype=torch.float32)
    leak = float(weights.leak[0])
    inputs = torch.from_numpy(u)
    batch, steps, _ = u.shape
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def single() -> np.ndarray:
        states = torch.empty(steps, weights.nodes)
        drive = torch.addmm(bias, inputs[0], W_in.T)
        state = torch.zeros(weights.nodes)
        for step in range(steps):
            response = torch.addmv(drive[step], recurrent, state).tanh_()
            state = torch.lerp(state, response, leak, out=states[step])
        return states.numpy()[None]

    def batched() -> np.ndarray:
        states = torch.empty(steps, weights.nodes, batch)
        drive = torch.einsum("ni,bti->tnb", W_in, inputs) + bias[:, None]
        state = torch.zeros(weights.nodes, batch)
        for step in range(steps):
            response = torch.addmm(drive[step], recurrent, state).tanh_()
            state = torch.lerp(state, response, leak, out=states[step])
        return states.permute(2, 0, 1).numpy()

    @torch.inference_mode()
    def loop(threads: int) -> np.ndarray:
        torch.set_num_threads(threads)
        return single() if batch == 1 else batched()

    one, all_threads = (partial(loop, threads) for threads in (1, cores))
    all_threads()
    seconds = medians({"one": one, "all": all_threads}, repeats=2)
    return one if seconds["one"] <= seconds["all"] else all_threads


def _jax(weights: EsnWeights, u: np.ndarray) -> Callable[[], np.ndarray]:
    """A jitted scan with the input products up front; the quicker of s Wᵀ with Wᵀ stored and with W stored."""
    jax.config.update("jax_platforms", "cpu")
    W = weights.recurrent().astype(np.float32)
    matrices = {"W": jax.numpy.asarray(W), "W transposed": jax.numpy.asarray(np.ascontiguousarray(W.T))}
    W_in, bias = (jax.numpy.asarray(array, np.float32) for array in (weights.W_in, weights.bias))
    leak = np.float32(weights.leak[0])
    # Time first, as scan wants it; a single sequence is a vector.
    inputs = jax.numpy.asarray(u[0] if len(u) == 1 else u.transpose(1, 0, 2))
    rest = np.zeros((*inputs.shape[1:-1], weights.nodes), np.float32)

    @partial(jax.jit, static_argnames="transposed")
    def scan(matrix: Any, inputs: Any, transposed: bool) -> Any:
        def step(state: Any, drive: Any) -> tuple[Any, Any]:
            product = state @ matrix if transposed else (matrix @ state.T).T
            state = (1 - leak) * state + leak * jax.numpy.tanh(product + drive)
            return state, state

        return jax.lax.scan(step, rest, inputs @ W_in.T + bias)[1]

    def loop(stored: str) -> np.ndarray:
        states = np.asarray(scan(matrices[stored], inputs, transposed=stored != "W").block_until_ready())
        return states[None] if len(u) == 1 else states.transpose(1, 0, 2)

    either = {stored: partial(loop, stored) for stored in matrices}
    for compiling in either.values():
        compiling()
    seconds = medians(either, repeats=2)
    return either[min(seconds, key=seconds.__getitem__)]


def _line(row: Row) -> str:
    jax_time, jax_ratio = ("–", "–") if row.jax is None else (f"{row.jax:.2f}", f"{row.jax / row.ours:.2f}")
    return (
        f"{row.case:<32}{row.storage:<7}{row.ours:>10.2f}{row.reservoirpy:>13.1f}{row.torch:>10.1f}{jax_time:>10}"
        f"{row.reservoirpy / row.ours:>14.2f}{row.torch / row.ours:>9.2f}{jax_ratio:>9}{row.difference:>12.1e}"
        f"  {'yes' if row.agrees else 'NO'}"
    )


_HEADER = (
    f"{'':<39}{'µs per step (of the whole batch)':^43}{'times as fast as':^32}{'states':>12}\n"
    f"{'case':<32}{'stored':<7}{'ours':>10}{'reservoirpy':>13}{'torch':>10}{'jax':>10}"
    f"{'reservoirpy':>14}{'torch':>9}{'jax':>9}{'difference':>12}  equal"
)
_FOOTER = (
    "reservoirpy computes in float64, the others in float32: about a factor 2 of the large dense ratios is\n"
    f"the precision. Equal: within {AGREEMENT:g} of the largest state of reservoirpy."
)
_WITHOUT_JAX = "jax is not installed, its columns stay empty: pip install jax"


def main() -> int:
    """Print the table; exit status 1 where states differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the steps, three repeats")
    parser.add_argument("--only", metavar="WORD", default="", help="the cases with this in their names, no ridge")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    arguments = parser.parse_args()
    if jax is None:
        print(_WITHOUT_JAX)
    print(_HEADER)
    rows = esn_cases(arguments.quick, arguments.only)
    print(_FOOTER, end="\n\n")
    ridge = [] if arguments.only else ridge_case(arguments.quick)
    for row in ridge:
        print(ridge_line(row))
    if arguments.json:
        report = {
            "esn": [asdict(row) for row in rows],
            "ridge": ridge,
            "versions": {module.__name__: module.__version__ for module in (np, torch, jax) if module is not None},
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row.agrees for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
