"""What many tests need: inputs, a small simulation, a small experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw import open_reservoir
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment import Experiment


def uniform(batch: int = 1, steps: int = 20, channels: int = 1, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Inputs (batch, time, channels) in -1 to 1."""
    return np.random.default_rng(seed).uniform(-1, 1, (batch, steps, channels)).astype(dtype)


def esn(**keys: Any) -> Reservoir:
    """An open network of 30 nodes with two inputs, with other keys where they are given."""
    return open_reservoir({"kind": "esn", "nodes": 30, "inputs": 2, "seed": 1, **keys})


def narma(folder: Path, **sections: Any) -> Experiment:
    """NARMA10 on a network of 30 nodes, its runs and states in a folder. Keys are added; `None` drops one."""
    document: dict[str, Any] = {
        "task": {"kind": "narma", "train_steps": 400, "test_steps": 200},
        "reservoir": {"kind": "esn", "nodes": 30},
        "readout": {"kind": "ridge", "washout": 50},
        "run": {"folder": str(folder / "runs"), "states": str(folder / "states"), "chunk_steps": 100},
    }
    for section, given in sections.items():
        merged = {**document.get(section, {}), **given} if isinstance(given, dict) else given
        document[section] = merged
        if isinstance(merged, dict):
            document[section] = {key: value for key, value in merged.items() if value is not None}
    return Experiment(document)
