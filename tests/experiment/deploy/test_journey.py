"""One readout from a simulation to a lab's function, to a served device, to the edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import ipc_address, served

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir
from reservoir_hw.experiment.deploy.evaluate import HOME, THERE, evaluate
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.readout.edge import EdgeRunner

ESN: dict[str, Any] = {"kind": "esn", "nodes": 30, "spectral_radius": 0.9, "input_scaling": 0.3}
BENCH = f"""\
from reservoir_hw import open_reservoir
twin = open_reservoir({ESN!r}, inputs=1)

def measure(u):
    return twin.run(u[None].astype("float32"))[0]

def settle():
    twin.reset(1)
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_where_states_are_equal_so_are_outputs(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"journey_bench_{dtype}"
    Path(f"{module}.py").write_text(BENCH)
    task = {"kind": "narma", "train_steps": 400, "test_steps": 200}
    readout = {"kind": "ridge", "alpha": 1e-6, "washout": 50}
    run = Experiment({"task": task, "reservoir": ESN, "readout": readout, "run": {"states": None}}).run().folder
    bench = {
        "kind": "python", "call": f"{module}:measure", "reset_call": f"{module}:settle", "nodes": 30, "inputs": 1,
        "simulated": True, "continuity": "held", "dtype": dtype,
    }  # fmt: skip
    Path("bench.yaml").write_text("\n".join(f"{key}: {value}" for key, value in bench.items()))
    home = np.load(run / "outputs" / "000.npy")
    np.testing.assert_array_equal(evaluate(run, reservoir="bench.yaml").outputs[THERE], home)
    exported = export_run(run, "model.rhw")
    with (
        ipc_address() as address,
        served(build_reservoir(parse_reservoir(Document.from_mapping(bench, "test"))), address),
    ):
        Path("served.yaml").write_text(f"kind: zmq\naddress: {address}\n")
        there = evaluate(run, reservoir="served.yaml")
        np.testing.assert_array_equal(there.outputs[THERE], home)
        assert there.scores[THERE] == there.scores[HOME]
        split = there.task.test
        warmup = there.task.train.inputs[:, -200:]
        with EdgeRunner("model.rhw", "served.yaml", any_device=True) as edge:
            answers = edge.run(np.concatenate([warmup, split.inputs], axis=1))[:, warmup.shape[1] :]
            certified = edge.manifest.certificate.segments
    bound = max((one.limit or 0.0) * one.spread for one in certified) + 1e-4
    assert exported.path == Path("model.rhw")
    np.testing.assert_allclose(answers, home, atol=bound)
    with open_reservoir(bench) as reservoir:
        assert reservoir.spec.dtype == dtype
