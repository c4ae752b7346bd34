"""What the run folders of a bench hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from reservoir_hw.core.configuration import Document, decisive
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.run.experiment import Experiment


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
    """Those of a complete run with these settings in its folder, whatever it was labelled; None where there is none."""
    folders = sorted(Path(experiment.config.run.folder).glob(f"{experiment.name}-*"))
    wanted = _settings(experiment.points)
    return next((rows_in(folder) for folder in folders if _is_complete(folder) and _made_with(folder) == wanted), None)


def _made_with(folder: Path) -> list[Any] | None:
    """The settings of a run; None where a later version does not know them any more."""
    try:
        return _settings(Experiment(Document.from_file(folder / "experiment.yaml")).points)
    except ConfigurationError:
        return None


def _settings(points: Sequence[Point]) -> list[Any]:
    """What decides about the rows."""
    sections = ("task", "reservoir", "readout", "training")
    return [[decisive(getattr(point.config, section)) for section in sections] for point in points]


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
