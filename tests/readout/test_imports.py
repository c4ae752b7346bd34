"""What is loaded when a part is asked for, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import reservoir_hw.readout

LEARNED = """
import numpy as np
from reservoir_hw.readout import RLSReadout, LMSReadout, RidgeReadout
x = np.random.default_rng(0).standard_normal((300, 4))
for readout in (RLSReadout(), LMSReadout(), RidgeReadout()): readout.fit(x, x[:, :1]).predict(x)
dir(reservoir_hw.readout)
"""
TRAIN = """
from reservoir_hw.readout.training import TrainingOptions, CharTokenizer
assert "torch" not in sys.modules
from reservoir_hw.readout.training import train
"""
RUN = (
    "import reservoir_hw.readout.edge.runner, reservoir_hw.readout.edge.verification, reservoir_hw.readout.edge.bundle"
)
HEADER = """
import numpy as np
from reservoir_hw.readout import RidgeReadout
from reservoir_hw.readout.export.headers import c_header
from reservoir_hw.readout.export.recording import record_series
x = np.random.default_rng(0).standard_normal((30, 4))
assert "readout_predict" in c_header(RidgeReadout().fit(x, x[:, :1]))
assert "torch" not in sys.modules
from reservoir_hw.readout import LowRankReadout
assert "readout_predict" in c_header(LowRankReadout(4, 3, 2))
"""
LOADED: dict[str, tuple[str, set[str]]] = {
    "readouts that learn without gradients": (LEARNED, {"torch", "scipy", "numba", "sklearn"}),
    "a bundle": (RUN, {"torch", "onnx", "zarr", "matplotlib", "scipy", "numba", "safetensors"}),
    "a C header": (HEADER, {"onnx", "onnxruntime"}),
    "training": (TRAIN, {"lightning_fabric"}),
}
MISSING = """
sys.modules["torch"] = None
try:
    reservoir_hw.readout.LowRankReadout
except ImportError as error:
    print(type(error).__name__, error)
"""


def said(program: str) -> str:
    """What it prints."""
    program = f"import sys, reservoir_hw.readout\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("part", LOADED)
def test_nothing_is_loaded_that_is_not_needed(part: str) -> None:
    program, heavy = LOADED[part]
    assert said(f"{program}\nprint(sorted({heavy} & set(sys.modules)))") == "[]\n"


def test_names() -> None:
    for name in reservoir_hw.readout.__all__:
        assert getattr(reservoir_hw.readout, name).__doc__, name
    rooms = reservoir_hw.readout
    with pytest.raises(AttributeError, match="no attribute 'Perceptron'"):
        _ = rooms.Perceptron
    assert said(MISSING) == "MissingExtra LowRankReadout needs torch: pip install 'reservoir-hw[train]'\n"
