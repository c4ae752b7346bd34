"""A board whose layers are devices behind sockets: numpy, onnxruntime and pyzmq are enough for it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from served import free_address, served

from reservoir_hw import open_reservoir
from reservoir_hw.readout import LAERC, ReservoirLayer
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.readout.export import export_model
from reservoir_hw.readout.training import CharTokenizer

# As where only the extras `edge` and `zmq` are installed.
ON_THE_BOARD = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "scipy", "onnx", "onnxscript", "numba", "zarr", "matplotlib"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from reservoir_hw.cli import main
main()
"""


@pytest.mark.slow
def test_layers_of_two_devices(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = CharTokenizer.from_text("the cat sat on the mat")
    addresses = [free_address(), free_address()]
    with ExitStack() as stack:
        devices = [
            stack.enter_context(open_reservoir({"kind": "esn", "inputs": 8, "nodes": 12, "seed": seed}))
            for seed in range(2)
        ]
        model = LAERC(tokenizer.vocabulary, 8, [ReservoirLayer(device) for device in devices])
        export_model(model, tmp_path / "text.rhw", tokenizer=tokenizer)
        with EdgeRunner(tmp_path / "text.rhw", devices) as runner:
            wanted = "".join(runner.generate("the ", 20, seed=1))
        for device, address in zip(devices, addresses, strict=True):
            stack.enter_context(served(device, address))
        listed = [f"  - {{kind: zmq, address: '{address}'}}\n" for address in addresses]
        (tmp_path / "bench.yaml").write_text("kind: layers\nreservoirs:\n" + "".join(listed))
        words = ["infer", "text.rhw", "--reservoir", "bench.yaml", "--prompt", "the ", "--tokens", "20", "--seed", "1"]
        done = subprocess.run(
            [sys.executable, "-c", ON_THE_BOARD, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == wanted + "\n"
