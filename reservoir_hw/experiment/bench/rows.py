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
from reservoir_hw.experiment.run.folder import write_json


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


# ---- What the experiments of a bench may have taken of the device, over all calls.


@dataclass(frozen=True)
class Cost:
    """Of a device. `seconds` is None where no step period is declared."""

    steps: int
    seconds: float | None

    def __add__(self, other: Cost) -> Cost:
        known = self.seconds is not None and other.seconds is not None
        return Cost(self.steps + other.steps, (self.seconds or 0) + (other.seconds or 0) if known else None)


NOTHING = Cost(0, 0.0)


@dataclass(frozen=True)
class Ledger:
    """A file with a line for each experiment that was begun.

    It is written before the device is driven. So an experiment that was killed counts in full, and one that is complete
    counts once, because it is not begun again.
    """

    path: Path

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was begun, in order: `experiment`, `steps`, `seconds`."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    @property
    def spent(self) -> Cost:
        """The sum."""
        return sum((Cost(one["steps"], one["seconds"]) for one in self.entries), NOTHING)

    def begin(self, experiment: str, cost: Cost) -> None:
        """Write down what an experiment may take at most."""
        entry = {"experiment": experiment, "steps": cost.steps, "seconds": cost.seconds}
        write_json(self.path, [*self.entries, entry])
