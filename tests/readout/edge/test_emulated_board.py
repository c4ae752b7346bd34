"""The bundle of the walk-through on a processor of another architecture: an emulated Cortex-A72."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from edge_runs import run_of
from served import free_address, served

from reservoir_hw import open_reservoir
from reservoir_hw.core.reservoir_config import reservoir_config
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.tasks.narma import Narma

ROOT = Path(__file__).parents[3]
QEMU, ARM64 = shutil.which("qemu-aarch64"), os.environ.get("RESERVOIR_HW_ARM64_ROOT")


@pytest.mark.slow
@pytest.mark.skipif(QEMU is None, reason="there is no qemu-aarch64 (qemu-user) on this machine")
@pytest.mark.skipif(not ARM64, reason="RESERVOIR_HW_ARM64_ROOT names no folder with an arm64 Debian (CONTRIBUTING.md)")
def test_the_walk_through_on_a_cortex_a72(tmp_path: Path) -> None:
    text = (ROOT / "examples/edge_deploy/narma.yaml").read_text(encoding="utf-8")
    run = run_of(tmp_path, text.replace("folder: runs", "folder: FOLDER/runs"), baselines=[])
    export_run(run, tmp_path / "narma.rhw")
    inputs = Narma(train_steps=2000, test_steps=300).test.inputs
    np.save(tmp_path / "series.npy", inputs[0])
    address = free_address()
    # The emulated side takes its time.
    (tmp_path / "bench.yaml").write_text(f"kind: zmq\naddress: {address}\ntimeout_s: 60\n")

    def on_the_board(*words: str) -> None:
        python = f"{ARM64}/usr/bin/python3"
        done = subprocess.run(
            [str(QEMU), "-cpu", "cortex-a72", "-L", str(ARM64), python, "-m", "reservoir_hw.cli", *words],
            cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    on_the_board("bundle", "verify", "narma.rhw")
    with open_reservoir(reservoir_config(run / "experiment.yaml").for_inputs(1)) as device, served(device, address):
        with EdgeRunner(tmp_path / "narma.rhw", tmp_path / "bench.yaml") as runner:
            here = runner.run(inputs)[0]
        words = ["--reservoir", "bench.yaml", "--input", "series.npy", "--output", "there.npy"]
        on_the_board("infer", "narma.rhw", *words)
    # Behind the warm-up.
    here, there = (outputs.reshape(300, 1)[200:] for outputs in (here, np.load(tmp_path / "there.npy")))
    assert np.abs(there - here).max() <= 1e-5 * here.std()
