"""Memory of simulations: estimates beside what torch takes, what fits, and what is said where it runs out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated import Esn, EsnWeights, memory
from reservoir_hw.backends.simulated.memory import DriveMemory
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig
from reservoir_hw.core.errors import OutOfMemory
from reservoir_hw.core.reservoir_config import reservoir_config

torch = pytest.importorskip("torch")

NOISY = {"loop": {"noise": 0.1, "mismatch": 0.1}, "readout": {"noise": 0.1}}
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {"kind": "esn", "nodes": 300},
    "sparse": {"kind": "esn", "nodes": 2000, "connections_per_node": 3},
    "ring": {"kind": "esn", "nodes": 1000, "topology": "ring"},
    "small world": {"kind": "esn", "nodes": 1000, "topology": "small_world"},
    "block": {"kind": "esn", "nodes": 1000, "topology": {"kind": "block", "blocks": 20}},
    "orthogonal": {"kind": "esn", "nodes": 200, "topology": "orthogonal"},
    "gated": {"kind": "gated_esn", "nodes": 100, "connectivity": 0.5},
    "delay_loop": {"kind": "delay_loop", "nodes": 100},
}


def peak(folder: Path, work: Callable[[], Any]) -> int:
    """Bytes that torch takes on the CPU at the worst moment of a call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = work()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    del kept
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    changes = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    # At one time what is freed comes first: the trace has these in any order.
    return int(np.cumsum([change for _, change in sorted(changes)]).max())


def configured(kind: str, **more: Any) -> SimulatedConfig:
    config = reservoir_config({**CONFIGS[kind], "inputs": 3, "engine": "torch", **more})
    assert isinstance(config, SimulatedConfig)
    return config


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("kind", ["dense", "sparse", "gated", "delay_loop"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_a_drive_takes_what_is_estimated(kind: str, noisy: bool, dtype: str, tmp_path: Path) -> None:
    config = configured(kind, dtype=dtype, nonidealities=NOISY if noisy else {})
    need = config.drive_memory()
    # The second is more than what noise is drawn for at once.
    for batch, steps in ((2, 150), (128, 12_000 // need.nodes)):
        u = torch.zeros(batch, steps, 3, dtype=getattr(torch, dtype))
        with open_reservoir(config) as reservoir:
            reservoir.reset(batch)
            before = reservoir.run(u)
            taken = peak(tmp_path, lambda reservoir=reservoir, u=u: reservoir.run(u)) + before.nbytes + 2 * u.nbytes
            assert reservoir._drive_memory() == need  # pyright: ignore[reportAttributeAccessIssue]
        assert taken <= need.bytes(batch, steps) <= 1.35 * taken


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_weights_take_what_is_estimated(kind: str, dtype: str, tmp_path: Path) -> None:
    config = configured(kind, dtype=dtype)
    opened: list[Any] = []
    # What comes and goes within a microsecond is not seen every time.
    taken = max(peak(tmp_path, lambda: opened.append(open_reservoir(config))) for _ in range(3))
    for one in opened:
        one.close()
    if kind == "delay_loop":
        assert taken < 10_000
    else:
        assert config.weight_bytes() == pytest.approx(taken, rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["torch", "cuda_graphs", "triton"])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_drive_on_a_gpu_takes_no_more_than_is_estimated(engine: str, noisy: bool) -> None:
    config = configured("dense", engine=engine, device="cuda", nonidealities=NOISY if noisy else {})
    u = torch.zeros(64, 2000, 3, device="cuda")
    with open_reservoir(config) as reservoir:
        reservoir.reset(64)
        before = reservoir.run(u)
        held = torch.cuda.memory_allocated() - before.nbytes
        torch.cuda.reset_peak_memory_stats()
        reservoir.run(u)
        taken = torch.cuda.max_memory_allocated() - held
    need = config.drive_memory().bytes(64, 2000)
    # What the libraries take for themselves.
    assert need / 2 < taken < need + (64 << 20)


def test_weights_of_a_file_are_counted_as_they_are(tmp_path: Path) -> None:
    weights = EsnWeights.from_arrays(np.eye(50), np.ones((50, 2)))
    weights.save(tmp_path / "w.safetensors")
    config = reservoir_config({"kind": "esn", "weights": str(tmp_path / "w.safetensors"), "inputs": 2})
    assert isinstance(config, SimulatedConfig)
    assert config.weight_bytes() == 4 * 50 * (50 + 2 + 2)
    assert config.drive_memory().nodes == 50


@pytest.mark.parametrize(
    "need", [DriveMemory(100, 1), DriveMemory(100, 2, 8, noisy=True), DriveMemory(9, 1, graphs=True)]
)
def test_what_fits_fits_and_one_more_does_not(need: DriveMemory) -> None:
    for free in (10**5, 10**8, 10**11):
        steps, sequences = need.steps_that_fit(free, 8), need.sequences_that_fit(free, 50)
        assert need.bytes(8, steps) <= free or steps == 0
        assert need.bytes(8, steps + 1) > free
        assert need.bytes(sequences, 50) <= free or sequences == 0
        assert need.bytes(sequences + 1, 50) > free
    assert need.steps_that_fit(0, 8) == 0


@pytest.mark.parametrize(
    ("engine", "device"), [("torch", "cpu"), ("numba", "cpu"), pytest.param("torch", "cuda", marks=pytest.mark.gpu)]
)
def test_a_drive_that_is_too_long_is_one_sentence_with_what_fits(engine: Any, device: str) -> None:
    # More than any machine has; the inputs are not.
    nodes = 200_000
    sparse = pytest.importorskip("scipy.sparse")
    weights = EsnWeights.from_arrays(sparse.csr_array(sparse.eye_array(nodes)), np.ones((nodes, 1)))
    with Esn(weights, engine=engine, device=device) as reservoir:
        reservoir.reset(2)
        with pytest.raises(OutOfMemory) as raised:
            reservoir.run(np.zeros((2, 5_000_000, 1), np.float32))
        said = re.fullmatch(
            rf"the states of 2 sequences of 5,000,000 steps take about .* TB of memory on {device}, where .*B are "
            r"free: ([\d,]+) steps of as many sequences would fit at a time",
            str(raised.value),
        )
        assert said is not None, str(raised.value)
        assert 0 < int(said[1].replace(",", "")) < 5_000_000


_SMALL_MACHINE = """
import resource
from reservoir_hw.backends.simulated import Esn
from reservoir_hw.core.errors import OutOfMemory
from reservoir_hw.networks import draw_weights
import torch
weights = draw_weights(4000, 1, seed=0, spectral_radius=None)
(pages, *_) = open("/proc/self/statm").read().split()
most = int(pages) * resource.getpagesize() + (32 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    Esn(weights, engine="torch")
except OutOfMemory as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_weights_that_do_not_fit_are_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", _SMALL_MACHINE], capture_output=True, text=True)
    assert re.fullmatch(
        r"the weights of 4,000 nodes take about 64 MB of memory on cpu, where .* are free: choose fewer nodes, or "
        r"fewer connections_per_node\n",
        done.stdout,
    ), done.stdout + done.stderr


def test_the_error_of_a_gpu_is_one_sentence_and_other_errors_stay() -> None:
    with pytest.raises(OutOfMemory, match=r"^that many$"), memory.out_of_memory_said(lambda: "that many"):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(RuntimeError, match="something else"), memory.out_of_memory_said(lambda: "that many"):
        raise RuntimeError("something else")


def test_the_sentence_names_sequences_where_fewer_would_fit() -> None:
    need = DriveMemory(1000, 1)
    free = need.bytes(3, 10)
    assert "3 sequences of as many steps would fit" in memory.does_not_fit(need, 40, 10, free, "cuda")
    assert memory.does_not_fit(need, 40, 10, 100, "cuda").endswith("not even one step would fit")


def test_steps_of_a_graph_are_those_that_are_recorded() -> None:
    from reservoir_hw.backends.simulated.kernels import cuda_graphs

    assert memory._GRAPH_STEPS == cuda_graphs._GRAPH_STEPS
