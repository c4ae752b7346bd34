"""A bundle made here, on the oldest onnxruntime that is supported: an environment of its own, with numpy 1."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir_hw import open_reservoir
from reservoir_hw.networks.language_weights import reservoir_configurations
from reservoir_hw.readout import (
    LAERC,
    AttentionReadout,
    DrivenCandidate,
    GatedRecurrence,
    LowRankReadout,
    ReservoirLayer,
    ReservoirLM,
    RidgeReadout,
    SequenceClassifier,
    random_embedding,
)
from reservoir_hw.readout.export.exporter import export_model

ROOT = Path(__file__).parents[3]

VERIFY = """
import json, sys
import numpy, onnxruntime
from reservoir_hw.readout.edge.verification import verify
found = {path: verify(path).as_dict() for path in sys.argv[1:]}
print(json.dumps({"numpy": numpy.__version__, "onnxruntime": onnxruntime.__version__, "found": found}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("onnxruntime 1.16.3 has wheels for Python 3.8 to 3.11")
    folder = tmp_path_factory.mktemp("oldest")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    # A copy: building leaves files behind.
    source = folder / "source"
    shutil.copytree(ROOT / "reservoir_hw", source / "reservoir_hw", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wanted = ["onnxruntime==1.16.3", "numpy<2", f"{source}[edge]"]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
    return python


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bundles")
    torch.manual_seed(0)
    with ExitStack() as stack:
        layers = [
            ReservoirLayer(stack.enter_context(open_reservoir(one)), limit=0.9)
            for one in reservoir_configurations(16, 2)
        ]
        laerc = LAERC(30, 16, layers)
        for precision in ("fp32", "int8"):
            export_model(laerc, folder / f"laerc-{precision}.rhw", precision=precision)
        esn = stack.enter_context(open_reservoir({"kind": "esn", "inputs": 4, "nodes": 40}))
        for readout in (AttentionReadout(40, 5, 30), LowRankReadout(40, 30, 3)):
            model = ReservoirLM(random_embedding(30, 4, seed=0), ReservoirLayer(esn), readout)
            export_model(model, folder / f"{type(readout).__name__}.rhw")
        gated = stack.enter_context(open_reservoir({"kind": "esn", "inputs": 23, "nodes": 20}))
        classifier = SequenceClassifier(GatedRecurrence(DrivenCandidate(ReservoirLayer(gated))), classes=4)
        export_model(classifier, folder / "gated")
        u = np.random.default_rng(0).uniform(-1, 1, (1, 300, 4)).astype(np.float32)
        esn.reset()
        export_model(RidgeReadout().fit(esn.run(u), u[..., :2]), folder / "ridge", reservoirs=esn)
    return sorted(folder.iterdir())


@pytest.mark.slow
def test_every_model_agrees(python: Path, bundles: list[Path], tmp_path: Path) -> None:
    names = [str(path) for path in bundles]
    done = subprocess.run(
        [str(python), "-c", VERIFY, *names], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["onnxruntime"] == "1.16.3"
    assert report["numpy"].startswith("1.")
    assert len(report["found"]) == len(bundles) == 6
    for path, found in report["found"].items():
        assert found["passed"], (path, found)


@pytest.mark.slow
def test_a_runtime_that_would_crash_is_not_imported(tmp_path: Path) -> None:
    """What stands for onnxruntime 1.16 ends the process as that does with numpy 2: what is looked at is its version."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/__init__.py").write_text("import os\nos._exit(139)\n")
    for version, code in (("1.16.3", 1), ("1.19.0", 139)):
        place = tmp_path / f"onnxruntime-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n")
        program = "from reservoir_hw.readout.edge.sessions import import_onnxruntime as f; f()"
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert ("was built for numpy 1 and would crash" in done.stderr) is (code == 1)
        shutil.rmtree(place)
