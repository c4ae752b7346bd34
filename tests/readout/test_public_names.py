"""The names of `reservoir_hw.readout`: all there, and none loads torch before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import reservoir_hw.readout

WITHOUT_TORCH = """
import sys
import reservoir_hw.readout as readout
readout.RidgeReadout, readout.RLSReadout, dir(readout)
assert "torch" not in sys.modules
sys.modules["torch"] = None
try:
    readout.LowRankReadout
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("name", reservoir_hw.readout.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(reservoir_hw.readout, name).__doc__


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Perceptron'"):
        _ = reservoir_hw.readout.Perceptron


def test_torch_is_loaded_when_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "MissingExtra LowRankReadout needs torch: pip install 'reservoir-hw[train]'\n"
