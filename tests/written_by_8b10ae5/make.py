"""How the files in this folder were made, by the code of commit 8b10ae5 alone.

mkdir /lab && cp *.yaml *.py text.txt /lab && cd /lab && python make.py
"""

import hashlib
import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reservoir_hw.configuration import Document
from reservoir_hw.reservoir_config import parse_reservoir
from reservoir_hw.store import StateStore
from typer.testing import CliRunner

from reservoir_hw import RidgeReadout, open_reservoir
from reservoir_hw.backends.simulated import EsnWeights
from reservoir_hw.cli import app
from reservoir_hw.readout import LMSReadout, RLSReadout
from reservoir_hw.readout.edge import EdgeRunner

ESN = {"kind": "esn", "inputs": 2, "nodes": 8}
LOOP = {"kind": "delay_loop", "inputs": 1, "nodes": 8}
GATED = {"kind": "gated_esn", "inputs": 2, "nodes": 6}
FILM = {
    "kind": "python", "call": "film_on_the_bench:measure", "reset_call": "film_on_the_bench:settle",
    "inputs": 1, "nodes": 3, "simulated": False, "continuity": "held", "serial": "film-07",
}  # fmt: skip
RESERVOIRS = {
    "esn": ESN,
    "esn with leaks, links and a bias": {
        **ESN, "leak_rate": [0.1, 0.9], "connections_per_node": 3, "bias_scaling": 0.1, "input_scaling": [0.5, 0.2],
        "weight_distribution": "normal", "activation": "relu", "dtype": "float64", "seed": 5,
    },
    "esn on a ring": {**ESN, "topology": "ring"},
    "esn with jumps": {**ESN, "topology": {"kind": "cycle_jumps", "jump": 3}},
    "esn as drawn": {**ESN, "spectral_radius": None},
    "esn in float16": {**ESN, "weight_storage": "float16"},
    "esn with gradients": {**ESN, "gradients": True},
    "esn behind a mask": {**ESN, "inputs": 3, "input_mask": {"kind": "binary", "scaling": 0.2, "seed": 1}},
    "esn with noise": {**ESN, "nonidealities": {"readout": {"noise": 1e-3}}},
    "esn from a file": {"kind": "esn", "inputs": 2, "weights": "weights.safetensors"},
    "gated esn": GATED,
    "gated esn with biases": {**GATED, "update_bias": 1.0, "reset_bias": -0.5, "connectivity": 0.5},
    "delay loop": LOOP,
    "delay loop, ikeda": {**LOOP, "physics": "ikeda"},
    "delay loop, paquot": {**LOOP, "physics": "paquot", "seed": 2},
    "python": FILM,
    "python, calibrated": {**FILM, "calibration_id": "spring", "firmware": "1.2", "vendor": "lab", "model": "film"},
    "replay": {"kind": "replay", "trace": "recording", "inputs": 1},
    "parallel": {
        "kind": "parallel", "inputs": 2,
        "devices": [{"reservoir": {"kind": "esn", "nodes": 4}}, {"reservoir": LOOP, "channels": [1]}],
    },
}  # fmt: skip
LAYERED = {
    "laerc": {"kind": "laerc", "nodes": 8, "seed": 1},
    "layers": {"kind": "layers", "reservoirs": [{**ESN, "inputs": 4}, {**LOOP, "inputs": 4}]},
}


def call(*arguments: str) -> None:
    # No name of a machine, a user or a folder of theirs in what is kept.
    sys.argv = ["reservoir-hw", *arguments]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)


def run(file: str, folder: str | None = None) -> list[dict[str, float]]:
    call("run", file)
    (made,) = Path("new").iterdir()
    rows = [row["metrics"] for row in json.loads((made / "metrics.json").read_text())["rows"]]
    if folder is not None:
        for large in ("figures", "report.html", "training/000/loss.png"):
            path = made / large
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        Path(folder).parent.mkdir(exist_ok=True)
        made.rename(folder)
    shutil.rmtree("new")
    return rows


def write(name: str, value: object) -> None:
    Path(name).write_text(json.dumps(value, indent=1) + "\n")


def fingerprint(config: Any, inputs: int | None = None) -> str:
    with open_reservoir(config, inputs=inputs) as reservoir:
        return reservoir.spec.identity.fingerprint


def main() -> None:
    platform.node = lambda: "lab"
    platform.platform = lambda *_: "Linux"
    torch.set_num_threads(1)
    expected: dict[str, Any] = {"metrics": {}, "states": {}, "outputs": {}}
    for name in ("esn", "film", "loop"):
        call("harvest", f"{name}.yaml")
    metrics = expected["metrics"]
    for name in ("esn", "film", "loop", "recorded", "replayed"):
        metrics[f"{name}.yaml"] = run(f"{name}.yaml")
    metrics["ridge.yaml"] = run("ridge.yaml", "kept/ridge")
    metrics["text.yaml"] = run("text.yaml", "kept/text")
    for path in [*sorted(Path("harvests").iterdir()), Path("recording")]:
        expected["states"][str(path)] = {
            name: hashlib.sha256(np.ascontiguousarray(dataset.states[:]).tobytes()).hexdigest()
            for name, dataset in StateStore.open(path).datasets.items()
        }

    Path("bundles").mkdir()
    for bundle in ("ridge", "ridge.rhw"):
        call("export", "kept/ridge", "--row", "0", "-o", f"bundles/{bundle}")
    call("export", "kept/text", "-o", "bundles/text.rhw")
    draws = np.random.default_rng(8)
    series = draws.uniform(0, 0.5, (1, 12, 1)).astype(np.float32)
    tokens = draws.integers(0, 5, (1, 12))
    np.save("series.npy", series)
    np.save("tokens.npy", tokens)
    for bundle, file, inputs in (("ridge.rhw", "ridge.yaml", series), ("text.rhw", "text.yaml", tokens)):
        with EdgeRunner(f"bundles/{bundle}", file) as runner:
            expected["outputs"][file] = runner.run(inputs).tolist()

    Path("readouts").mkdir()
    states, more = draws.standard_normal((2, 60, 5))
    targets = states @ draws.standard_normal((5, 2)) + 0.1 * draws.standard_normal((60, 2))
    answers = {"states": more, "targets": targets}
    for name, readout in (
        ("ridge", RidgeReadout("gcv", washout=3)), ("rls", RLSReadout(1e-2)), ("lms", LMSReadout(0.5)),
    ):  # fmt: skip
        readout.fit(states, targets)
        readout.save(f"readouts/{name}.safetensors")
        answers[name] = readout.predict(more)
        if name != "ridge":
            # What it answers while it goes on learning.
            answers[f"{name} follows"] = readout.follow(more, targets)
    np.savez("readouts/answers.npz", **answers)

    call("sweep", "sweep.yaml")
    shutil.rmtree("study/sweeps/tiny/figures", ignore_errors=True)
    for name in ("report.html", ".writing"):
        Path("study/sweeps/tiny", name).unlink(missing_ok=True)
    metrics["sweep.yaml"] = json.loads(Path("study/sweeps/tiny/metrics.json").read_text())["trials"]

    recurrent = draws.standard_normal((4, 4)) / 4
    EsnWeights.from_arrays(recurrent, draws.standard_normal((4, 2))).save("weights.safetensors")
    known: dict[str, Any] = {}
    for name, config in RESERVOIRS.items():
        # A mask spreads the channels of a task.
        inputs = 2 if "input_mask" in config else None
        known[name] = {"config": config, "inputs": inputs, "fingerprint": fingerprint(config, inputs)}
    for name, config in LAYERED.items():
        parsed: Any = parse_reservoir(Document.from_mapping(config, name))
        parts = parsed.configurations(4, 2)
        known[name] = {"config": config, "layers": [fingerprint(part) for part in parts]}
    write("fingerprints.json", known)
    write("expected.json", expected)


main()
