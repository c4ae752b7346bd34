"""A model at the edge, per token: what the runner costs beyond its graphs and its device; beside torch and numpy.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/edge.py [--quick] [--only NAME] [--json FILE]

One token or step at a time, one thread. The figure is runner / bare: "bare" are the same calls of onnxruntime on the
same bound arrays, and in between the device's own `step`. Both are timed in each of many short rounds, one after the
other, and the figure is the median of the rounds' ratios, for fp32 and int8. The devices answer at once, so that what
they cost is what the library does around them.

"torch" and "numpy" compute the digital part alone, without the devices; their outputs must agree with the runner's,
or the benchmark stops. "Bound" reads as many bytes as the model's weights have, as one matrix-vector product by BLAS:
what the memory allows. An embedding is looked up, so its bytes count only where they are the last projection too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.readout import LAERC, AttentionReadout, ReservoirLayer, ReservoirLM, RidgeReadout, random_embedding
from reservoir_hw.readout.edge.runner import EdgeRunner
from reservoir_hw.readout.edge.sessions import SegmentStage
from reservoir_hw.readout.export.exporter import export_model

# Relative to the largest output where that is above 1.
AGREEMENT = 1e-5

Step = Callable[[], Any]


class Immediate(Reservoir):
    """A device whose states are always the same, and that takes no time to give them."""

    checks_states = True

    def __init__(self, inputs: int, nodes: int) -> None:
        identity = Identity(vendor="benchmark", model="immediate", simulated=True, content=f"{inputs} {nodes}")
        super().__init__(ReservoirSpec(inputs=inputs, nodes=nodes, state_range=(-1, 1), identity=identity))
        self.states = np.random.default_rng(nodes).uniform(-1, 1, nodes).astype(np.float32)

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        states = np.empty((*u.shape[:2], len(self.states)), np.float32) if out is None else out
        states[...] = self.states
        return states


@dataclass(frozen=True)
class Case:
    """A model, how it is computed by torch and by numpy, and what it is fed with."""

    name: str
    model: Any
    devices: list[Immediate]
    in_torch: Callable[[Any], Tensor]
    in_numpy: Callable[[Any], np.ndarray]
    given: Any
    weights: int


@dataclass(frozen=True)
class Row:
    """Medians in µs per token, and of the ratio of runner and bare calls in each round."""

    case: str
    runner: float
    bare: float
    ratio: float
    int8: float
    int8_ratio: float
    torch: float
    numpy: float
    bound: float


# ---- the models


def laerc(width: int, layers: int, vocabulary: int) -> Case:
    """A LAERC with R = 4 D."""
    torch.manual_seed(0)
    devices = [Immediate(width, 4 * width).open() for _ in range(layers)]
    model = LAERC(vocabulary, width, [ReservoirLayer(device) for device in devices]).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.alpha.fill_(0.5)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    states = [torch.from_numpy(device.states)[None, None] for device in devices]

    def in_torch(token: int) -> Tensor:
        x = model.embedding(torch.tensor([[token]]))
        for block, answer in zip(model.blocks, states, strict=True):
            block.norm_res(x)  # pyright: ignore[reportCallIssue]
            x = block.mix(x, answer)  # pyright: ignore[reportCallIssue]
        return model.readout(model.norm(x))[0]

    return Case(
        name=f"LAERC, D = {width}, L = {layers}, V = {vocabulary}",
        model=model,
        devices=devices,
        in_torch=in_torch,
        in_numpy=laerc_in_numpy(model, [device.states for device in devices]),
        given=3,
        weights=sum(parameter.numel() for parameter in model.parameters()),
    )


def laerc_in_numpy(model: LAERC, states: list[np.ndarray]) -> Callable[[int], np.ndarray]:
    """Eq. A1-A18 as one writes them."""
    from scipy.special import erf

    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean()
        x = x / np.sqrt((x * x).mean() + 1e-5)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"] if f"{name}.weight" in weights else x

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + erf(x * np.float32(math.sqrt(0.5))))

    def step(token: int) -> np.ndarray:
        x = weights["embedding.weight"][token]
        for number, answer in enumerate(states):
            block = f"blocks.{number}"
            norm(x, f"{block}.norm_res")
            hidden = gelu(linear(norm(answer, f"{block}.norm_states"), f"{block}.reservoir_mlp.0"))
            r = np.exp(weights[f"{block}.beta"]) * linear(hidden, f"{block}.reservoir_mlp.2")
            g = 1 / (1 + np.exp(-linear(norm(np.concatenate([x, r]), f"{block}.norm_mix"), f"{block}.gate")))
            m = g * r + (1 - g) * x
            inner = gelu(linear(norm(m, f"{block}.norm_ffn"), f"{block}.ffn.0"))
            x = m + weights[f"{block}.alpha"] * linear(inner, f"{block}.ffn.2")
        return weights["embedding.weight"] @ norm(x, "norm")

    return step


def aerc(nodes: int, hidden: int, vocabulary: int) -> Case:
    """An attention readout behind a frozen embedding."""
    torch.manual_seed(0)
    device = Immediate(16, nodes).open()
    readout = AttentionReadout(nodes, hidden, vocabulary)
    model = ReservoirLM(random_embedding(vocabulary, 16, seed=0), ReservoirLayer(device), readout).eval()
    states = torch.from_numpy(device.states)[None, None]
    values = {name: value.detach().numpy() for name, value in readout.named_parameters()}

    def in_torch(token: int) -> Tensor:
        model.embedding(torch.tensor([[token]]))
        return readout(states)[0]

    def in_numpy(token: int) -> np.ndarray:
        del token
        r = device.states
        h = np.maximum(values["net.weight"] @ r + values["net.bias"], 0)
        attention = (values["attention.weight"] @ h + values["attention.bias"]).reshape(hidden, nodes)
        return values["out.weight"] @ (attention @ r) + values["out.bias"]

    return Case(
        name=f"AERC, N = {nodes}, H = {hidden}, V = {vocabulary}",
        model=model,
        devices=[device],
        in_torch=in_torch,
        in_numpy=in_numpy,
        given=3,
        weights=sum(parameter.numel() for parameter in readout.parameters()),
    )


def ridge(nodes: int, outputs: int) -> Case:
    """A ridge readout of a wide device."""
    device = Immediate(4, nodes).open()
    random = np.random.default_rng(0)
    readout = RidgeReadout(1.0).fit(random.uniform(-1, 1, (300, nodes)), random.standard_normal((300, outputs)))
    weights = torch.from_numpy(readout.weights_.astype(np.float32))
    bias = torch.from_numpy(readout.bias_.astype(np.float32))
    states = torch.from_numpy(device.states)[None]

    def in_torch(u: np.ndarray) -> Tensor:
        del u
        return torch.nn.functional.linear(states, weights, bias)

    def in_numpy(u: np.ndarray) -> np.ndarray:
        del u
        return readout.predict(device.states)

    return Case(
        name=f"ridge, N = {nodes} -> {outputs}",
        model=readout,
        devices=[device],
        in_torch=in_torch,
        in_numpy=in_numpy,
        given=np.zeros(4, np.float32),
        weights=nodes * outputs,
    )


def cases(quick: bool) -> list[Callable[[], Case]]:
    """Made one after the other: the largest has 300 MB of weights."""
    small = [
        lambda: laerc(64, 4, 65),
        lambda: laerc(256, 4, 65),
        lambda: aerc(150, 25, 59),
        lambda: ridge(4096, 65),
    ]
    large = [
        lambda: laerc(768, 4, 65),
        lambda: laerc(64, 4, 50257),
        lambda: laerc(256, 4, 50257),
        lambda: laerc(768, 4, 50257),
    ]
    return small if quick else small + large


# ---- measuring


def compare(case: Case, folder: Path, repeats: int, per_repeat: int) -> Row:
    """All sides in turn."""
    with ExitStack() as stack:
        for device in case.devices:
            stack.callback(device.close)
        runners = {}
        for precision in ("fp32", "int8"):
            path = folder / f"{precision}.rhw"
            reservoirs = case.devices if isinstance(case.model, RidgeReadout) else ()
            export_model(case.model, path, reservoirs=reservoirs, precision=precision, probe=False)
            runners[precision] = stack.enter_context(EdgeRunner(path, case.devices))
        given = np.asarray(case.given)[None]
        sides: dict[str, Step] = {
            "fp32": lambda: runners["fp32"].step(given),
            "int8": lambda: runners["int8"].step(given),
            "torch": lambda: case.in_torch(case.given),
            "numpy": lambda: case.in_numpy(case.given),
        }
        with torch.no_grad():
            for runner in runners.values():
                runner.reset()
            outputs = {name: side() for name, side in sides.items()}
            check(case, {name: np.array(y.numpy() if isinstance(y, Tensor) else y) for name, y in outputs.items()})
            sides |= {f"bare {name}": bare(runner) for name, runner in runners.items()}
            sides["bound"] = bound(case.weights)
            times: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(repeats + 1):
                # A pair lies side by side, and each of the two is first in every other round.
                order = sorted(sides, key=lambda name: (name.split()[-1], name), reverse=bool(number % 2))
                for name in order:
                    if name in runners:
                        runners[name].reset()
                    else:
                        for device in case.devices:
                            device.reset()
                    side = sides[name]
                    side()  # The first step resets the device.
                    begun = time.perf_counter()
                    for _ in range(per_repeat):
                        side()
                    if number:
                        times[name].append((time.perf_counter() - begun) / per_repeat * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {
        name: statistics.median(ours / theirs for ours, theirs in zip(times[name], times[f"bare {name}"], strict=True))
        for name in runners
    }
    return Row(
        case=case.name,
        runner=medians["fp32"],
        bare=medians["bare fp32"],
        ratio=ratios["fp32"],
        int8=medians["int8"],
        int8_ratio=ratios["int8"],
        torch=medians["torch"],
        numpy=medians["numpy"],
        bound=medians["bound"],
    )


def check(case: Case, outputs: dict[str, np.ndarray]) -> None:
    """Stop where a side computes something else; int8 is judged by its certificate, here only for its size."""
    expected = outputs["torch"].reshape(-1)
    scale = max(1.0, float(np.abs(expected).max()))
    for name, output in outputs.items():
        error = float(np.abs(output.reshape(-1) - expected).max()) / scale
        if error > (0.1 if name == "int8" else AGREEMENT):
            raise RuntimeError(f"{case.name}: {name} differs from torch by {error:.2g}: the times mean nothing")


def bare(runner: EdgeRunner) -> Step:
    """The graphs on the runner's own bound arrays, and the device's own step in between."""
    made = runner._bound
    assert made is not None
    values, calls = made._values, []

    def crossing(device: Reservoir, drive: np.ndarray, states: np.ndarray) -> Step:
        def step() -> None:
            states[:, 0] = device.step(drive[:, 0])

        return step

    for (call, _), stage in zip(made.calls, runner._stages, strict=True):
        if isinstance(stage, SegmentStage):
            calls.append(call)
        else:
            names = stage.crossing
            calls.append(crossing(stage.reservoir, values[names.drive], values[names.states]))

    def run() -> None:
        for call in calls:
            call()

    return run


def bound(weights: int) -> Step:
    """One product with a matrix of as many numbers."""
    columns = 1024 if weights >= 1 << 20 else 128
    matrix = np.ones((max(1, weights // columns), columns), np.float32)
    x, out = np.ones(columns, np.float32), np.empty(len(matrix), np.float32)
    return lambda: np.matmul(matrix, x, out=out)


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small models only")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| case | runner, µs | bare | runner / bare | int8, µs | int8 / bare | torch | numpy | bound |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for make in cases(arguments.quick):
            case = make()
            if arguments.only not in case.name:
                continue
            large = case.weights > 1 << 21
            row = compare(case, Path(folder), repeats=40 if large else 400, per_repeat=4 if large else 20)
            rows.append(row)
            print(
                f"| {row.case} | {row.runner:.1f} | {row.bare:.1f} | {row.ratio:.3f} | {row.int8:.1f} | "
                f"{row.int8_ratio:.3f} | {row.torch:.1f} | {row.numpy:.1f} | {row.bound:.1f} |",
                flush=True,
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
