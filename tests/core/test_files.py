"""Files that are replaced as a whole."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reservoir_hw.core.files import write_safetensors

TENSORS = {"b": np.arange(5.0), "a": np.arange(3, dtype=np.float32)}
FACTS = {f"fact {number}": "é" * number for number in range(8)}


def test_equal_tensors_give_equal_bytes_that_all_may_read(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    written = set()
    for number in range(6):
        path = tmp_path / f"{number}.safetensors"
        write_safetensors(path, save_file, TENSORS, FACTS)
        written.add(path.read_bytes())
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
        assert {name: array.tolist() for name, array in load_file(path).items()} == {
            name: array.tolist() for name, array in TENSORS.items()
        }
    assert len(written) == 1


def test_the_error_of_the_system_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write"):
        write_safetensors(tmp_path / "nowhere" / "w.safetensors", save_file, TENSORS)
