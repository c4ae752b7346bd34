"""Simulated reservoirs on a GPU: states beside those of the CPU, steps per second, and the share of what the card can.

    python benchmarks/gpu.py [--device cuda] [--quick] [--json FILE]

Each case is driven by every engine that it has on the device. `difference` is the largest one to the states of numba,
relative to the largest state; `noisy` is the same with non-idealities, whose noise must be the same numbers. Nothing
that rounds to a converter's levels is in it: a state next to the edge of a level may fall to the other side.

A dense network is measured beside a plain torch loop, and beside a jitted `jax.lax.scan` where jax finds the device.
Repeats alternate between the loops; medians are given. What the card can do is measured by a copy and by a product of
matrices in float32, in the same run. `share` is of the bandwidth where a step has to read more than it multiplies
(weights and states from memory at every step), and else of the FLOP/s. It may be above 100 % where the weights stay in
registers or in a cache. With `--device cpu` the same code runs on the CPU, as a check of this script;
TRITON_INTERPRET=1 adds the Triton kernels, interpreted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, MissingExtra

AGREEMENT = 2e-6
ENGINES = ("torch", "cuda_graphs", "triton")
NOISY = {
    "loop": {"noise": 0.01, "mismatch": 0.05, "drift": 0.01, "saturation": 3.0, "bandwidth": 0.8, "dead_nodes": 0.05},
    "readout": {"noise": 0.01, "offset": 0.01, "stuck_nodes": 0.05, "lost_samples": 0.01},
}
_REPEATS = 3


@dataclass(frozen=True)
class Case:
    """A reservoir and its drive; `links` are the recurrent weights of one step, `link_bytes` the bytes of each."""

    name: str
    config: Mapping[str, Any]
    batch: int
    steps: int
    links: int
    link_bytes: int = 4

    @property
    def nodes(self) -> int:
        """As configured."""
        return self.config["nodes"]

    @property
    def step_bytes(self) -> int:
        """What a step of all sequences reads and writes if nothing stays near the arithmetic."""
        return self.links * self.link_bytes + 12 * self.batch * self.nodes

    @property
    def step_flops(self) -> int:
        """Multiplications and additions of a step of all sequences."""
        return 2 * self.batch * (self.links + self.nodes)


@dataclass(frozen=True)
class Row:
    """One case by one engine. Steps are those of all sequences; None where there is nothing to compare with."""

    case: str
    nodes: int
    batch: int
    engine: str
    difference: float
    noisy: float
    steps_per_s: float
    share: float
    share_of: str
    plain_torch: float | None
    jax: float | None

    @property
    def agrees(self) -> bool:
        """Whether the states are equal within 2e-6 of their scale, with non-idealities too."""
        return max(self.difference, self.noisy) <= AGREEMENT


@dataclass(frozen=True)
class Ceiling:
    """What the device can do: bytes per second of a copy, read and written, and FLOP/s of a product in float32."""

    device: str
    bandwidth: float
    flops: float


def cases(quick: bool) -> list[Case]:
    """All kinds; `quick` has small ones, for a check of the script."""
    esn = {"kind": "esn", "inputs": 1, "input_scaling": 0.5, "bias_scaling": 0.1, "leak_rate": 0.7}
    gated = {"kind": "gated_esn", "inputs": 1}
    if quick:
        return [
            Case("esn dense", {**esn, "nodes": 33}, 3, 40, 33 * 33),
            Case("esn 2 per row", {**esn, "nodes": 200, "connections_per_node": 2}, 2, 40, 400, 8),
            Case("gated_esn", {**gated, "nodes": 17}, 2, 40, 3 * 17 * 17),
            Case("delay_loop", {"kind": "delay_loop", "nodes": 20, "inputs": 1}, 2, 40, 0),
        ]
    found = []
    for nodes, steps in ((100, 4000), (300, 2000), (1000, 1000), (3000, 500), (10_000, 100)):
        found += [Case("esn dense", {**esn, "nodes": nodes}, batch, steps, nodes**2) for batch in (1, 64)]
    for nodes, links in ((1000, 32), (10_000, 10), (65_536, 32)):
        sparse = {**esn, "nodes": nodes, "connections_per_node": links}
        found += [Case(f"esn {links} per row", sparse, batch, 300, nodes * links, 8) for batch in (1, 64)]
    for nodes in (100, 1000):
        found += [Case("gated_esn", {**gated, "nodes": nodes}, batch, 500, 3 * nodes**2) for batch in (1, 64)]
    for physics in ("mackey_glass", "ikeda", "paquot"):
        loop = {"kind": "delay_loop", "nodes": 400, "inputs": 1, "physics": physics}
        found += [Case(f"delay_loop {physics}", loop, batch, 200, 0) for batch in (1, 64)]
    return found


def measure(device: str, quick: bool, notes: list[str]) -> tuple[Ceiling, list[Row]]:
    """What the device can do, and all rows, printed as they come. `notes` gets what was left out, and why."""
    ceiling = _ceiling(device, quick)
    print(
        f"{ceiling.device}: copy {ceiling.bandwidth / 1e9:,.0f} GB/s, product of float32 matrices "
        f"{ceiling.flops / 1e12:,.2f} TFLOP/s",
        flush=True,
    )
    print(_HEAD, flush=True)
    rows = []
    for case in cases(quick):
        for row in _rows(case, device, ceiling, notes):
            rows.append(row)
            print(_line(row), flush=True)
    return ceiling, rows


def _rows(case: Case, device: str, ceiling: Ceiling, notes: list[str]) -> list[Row]:
    u = np.random.default_rng(1).uniform(-1, 1, (case.batch, case.steps, 1)).astype(np.float32)
    short = u[:, : max(1, min(case.steps, 2_000_000 // (case.batch * case.nodes)))]
    noisy_u = short[:, :40]
    wanted, noisy = _states(case, "numba", "cpu", short), _states(case, "numba", "cpu", noisy_u, NOISY)
    peers = _peers(case, device, u)
    found = []
    for engine in ENGINES:
        try:
            difference = _difference(_states(case, engine, device, short), wanted)
        except MissingExtra as missing:
            if (note := f"engine {engine} was left out: {missing}") not in notes:
                notes.append(note)
            continue
        except ConfigurationError:
            # An engine that this kind, or the device, does not have.
            continue
        with open_reservoir({**case.config, "engine": engine, "device": device}) as reservoir:
            inputs = torch.from_numpy(u).to(device)

            def ours(reservoir: Any = reservoir, inputs: Any = inputs) -> Any:
                reservoir.reset(case.batch)
                return reservoir.run(inputs)

            rates = _rates({"ours": ours, **peers}, device, case.batch * case.steps)
        by_memory = rates["ours"] / case.batch * case.step_bytes / ceiling.bandwidth
        by_arithmetic = rates["ours"] / case.batch * case.step_flops / ceiling.flops
        found.append(
            Row(
                case=case.name,
                nodes=case.nodes,
                batch=case.batch,
                engine=engine,
                difference=difference,
                noisy=_difference(_states(case, engine, device, noisy_u, NOISY), noisy),
                steps_per_s=rates["ours"],
                share=max(by_memory, by_arithmetic),
                share_of="bandwidth" if by_memory > by_arithmetic else "FLOP/s",
                plain_torch=rates.get("torch"),
                jax=rates.get("jax"),
            )
        )
    return found


def _states(
    case: Case, engine: str, device: str, u: np.ndarray, nonidealities: Mapping[str, Any] | None = None
) -> np.ndarray:
    more = {} if nonidealities is None else {"nonidealities": nonidealities}
    with open_reservoir({**case.config, "engine": engine, "device": device, **more}) as reservoir:
        reservoir.reset(len(u))
        return np.asarray(reservoir.run(u))


def _difference(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def _peers(case: Case, device: str, u: np.ndarray) -> dict[str, Callable[[], Any]]:
    """The loops of others, with the weights of a dense network."""
    if case.config["kind"] != "esn" or "connections_per_node" in case.config:
        return {}
    with open_reservoir(case.config) as reservoir:
        weights = reservoir.weights  # pyright: ignore[reportAttributeAccessIssue]
    arrays = [one.astype(np.float32) for one in (weights.recurrent(), weights.W_in, weights.bias, weights.leak)]
    peers = {
        "torch": _plain_torch([torch.from_numpy(one).to(device) for one in arrays], torch.from_numpy(u).to(device))
    }
    if (scan := _jax_scan(arrays, u, device)) is not None:
        peers["jax"] = scan
    return peers


def _plain_torch(arrays: list[torch.Tensor], u: torch.Tensor) -> Callable[[], Any]:
    W, W_in, bias, leak = arrays

    @torch.inference_mode()
    def loop() -> torch.Tensor:
        state = u.new_zeros(len(u), len(W))
        states = u.new_empty(*u.shape[:2], len(W))
        drive = torch.matmul(u, W_in.T) + bias
        for step in range(u.shape[1]):
            state = torch.lerp(state, torch.tanh(torch.addmm(drive[:, step], state, W.T)), leak)
            states[:, step] = state
        return states

    return loop


def _jax_scan(arrays: list[np.ndarray], u: np.ndarray, device: str) -> Callable[[], Any] | None:
    """A jitted scan, where jax is installed and finds the device."""
    try:
        jax: Any = import_module("jax")
    except ImportError:
        return None
    platform = "cpu" if device == "cpu" else "gpu"
    try:
        place = jax.devices(platform)[0]
    except RuntimeError:
        return None
    W, W_in, bias, leak = (jax.device_put(one, place) for one in arrays)
    inputs = jax.device_put(np.ascontiguousarray(u.swapaxes(0, 1)), place)

    @jax.jit
    def scan(inputs: Any) -> Any:
        def step(state: Any, drive: Any) -> Any:
            state = (1 - leak) * state + leak * jax.numpy.tanh(state @ W.T + drive)
            return state, state

        zero = jax.numpy.zeros((inputs.shape[1], W.shape[0]), inputs.dtype)
        return jax.lax.scan(step, zero, inputs @ W_in.T + bias)[1]

    def loop() -> Any:
        # In full float32, as the others.
        with jax.default_matmul_precision("float32"):
            return scan(inputs).block_until_ready()

    return loop


def _rates(loops: Mapping[str, Callable[[], Any]], device: str, steps: int) -> dict[str, float]:
    """Steps per second of each loop: medians of calls in turn, after one that sets everything up."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(1 + _REPEATS):
        for name, loop in loops.items():
            began = time.perf_counter()
            loop()
            _wait(device)
            if number:
                seconds[name].append(time.perf_counter() - began)
    return {name: steps / statistics.median(found) for name, found in seconds.items()}


def _ceiling(device: str, quick: bool) -> Ceiling:
    size, side = (1 << 22, 256) if quick else (1 << 28, 8192)
    source = torch.ones(size // 4, device=device)
    target, factor = torch.empty_like(source), torch.ones(side, side, device=device)
    copies = _rates({"copy": lambda: target.copy_(source)}, device, 1)["copy"]
    products = _rates({"product": lambda: factor @ factor}, device, 1)["product"]
    name = torch.cuda.get_device_name(device) if device != "cpu" else "CPU, by torch"
    return Ceiling(name, 2 * size * copies, 2 * side**3 * products)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


_HEAD = (
    f"{'kind':<24}{'nodes':>7}{'batch':>6}  {'engine':<12}{'difference':>11}{'noisy':>9}{'steps/s':>13}"
    f"{'share':>16}{'× torch':>9}{'× jax':>8}"
)


def _line(row: Row) -> str:
    torch_ratio, jax_ratio = (
        "" if rate is None else f"{row.steps_per_s / rate:.2f}" for rate in (row.plain_torch, row.jax)
    )
    return (
        f"{row.case:<24}{row.nodes:>7}{row.batch:>6}  {row.engine:<12}{row.difference:>11.1e}{row.noisy:>9.1e}"
        f"{row.steps_per_s:>13,.0f}{row.share:>7.1%} {row.share_of:<9}{torch_ratio:>8}{jax_ratio:>8}"
        + ("" if row.agrees else "  DIFFERS")
    )


def main() -> int:
    """Print the table; 1 where states differ by more than 2e-6 of their scale, 3 where there is no such device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--quick", action="store_true", help="small networks: a check of this script")
    parser.add_argument("--json", type=Path, help="write the rows there")
    arguments = parser.parse_args()
    if arguments.device != "cpu" and not torch.cuda.is_available():
        print("torch finds no CUDA device here: nothing was measured")
        return 3
    torch.backends.cuda.matmul.allow_tf32 = False
    if arguments.device != "cpu":
        torch.cuda.set_device(torch.device(arguments.device))
    notes: list[str] = []
    ceiling, rows = measure(arguments.device, arguments.quick, notes)
    for note in notes:
        print(note)
    if arguments.json is not None:
        found = {
            "machine": {"torch": torch.__version__, "cuda": torch.version.cuda, "cpus": os.cpu_count()},
            "ceiling": asdict(ceiling),
            "rows": [{**asdict(row), "agrees": row.agrees} for row in rows],
            "left_out": notes,
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.agrees for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
