"""What the run folders of a bench hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from reservoir_hw.experiment.run.experiment import Experiment
from reservoir_hw.experiment.run.folder import change_since


@dataclass(frozen=True)
class Rows:
    """The rows of a complete run folder."""

    folder: Path
    metrics: list[dict[str, float]]
    provenance: list[dict[str, Any]]
    warnings: list[str]

    def weights(self, row: int) -> int:
        """How many states the readout of a row has weights for."""
        with safetensors.safe_open(self.folder / self.provenance[row]["readout"]["file"], "numpy") as file:
            return file.get_slice("weights").get_shape()[1]

    def outputs(self, row: int) -> np.ndarray:
        """What the readout of a row answered in the test, (batch, time, outputs)."""
        return np.load(self.folder / self.provenance[row]["readout"]["outputs"])


def complete_rows(experiment: Experiment) -> Rows | None:
    """Those of a complete run with these settings in its folder; None where there is none."""
    folders = sorted(Path(experiment.config.run.folder).glob(f"{experiment.name}-*"))
    complete = [folder for folder in folders if _is_complete(folder)]
    resolved = experiment.resolved() if complete else {}
    return next((rows_in(folder) for folder in complete if change_since(folder, resolved) is None), None)


def rows_in(folder: Path) -> Rows:
    """Those of a folder that is complete."""
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = json.loads((folder / "provenance.json").read_text())["rows"]
    return Rows(folder, [row["metrics"] for row in metrics["rows"]], rows, metrics["warnings"])


def _is_complete(folder: Path) -> bool:
    try:
        return json.loads((folder / "provenance.json").read_text())["status"] == "complete"
    except (OSError, ValueError, KeyError):
        return False
