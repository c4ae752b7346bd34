"""Collect what the tables are made from: a finished run, and the search behind its settings.

    python examples/trec_questions/collect.py rz runs/trec_questions-rz-20261125-021500 runs/sweeps/trec-rz

writes `rows/rz.json`: for each seed the metrics, times, and spectral radii and Frobenius norms of the matrices after
training; the trials of the search; for the Gated ESN also how its gates are used on the questions of the test.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from reservoir_hw.backends.simulated.esn.esn import EsnConfig
from reservoir_hw.backends.simulated.gated.gated_esn import GatedEsn, GatedEsnConfig
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.experiment.configuration.experiment import Point, grid
from reservoir_hw.tasks.task import Split

HERE = Path(__file__).resolve().parent


def described(matrix: Any, radius: float | None = None) -> dict[str, float]:
    """Spectral radius and Frobenius norm; a radius that the matrix was scaled to is not computed again."""
    array = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, np.float64)
    found = float(np.abs(np.linalg.eigvals(array)).max()) if radius is None else radius
    return {"radius": found, "norm": float(np.linalg.norm(array))}


def matrices(point: Point, inputs: int, weights: Path) -> dict[str, dict[str, float]]:
    """Those of the state and of both gates, as far as the model has them."""
    reservoir: Any = point.config.reservoir
    if point.config.readout.kind == "ridge":
        if not isinstance(reservoir, EsnConfig | GatedEsnConfig):
            return {}
        drawn = reservoir.for_inputs(inputs).drawn_or_loaded()
        if isinstance(reservoir, GatedEsnConfig):
            return {
                "state": described(drawn.state.recurrent(), reservoir.spectral_radius),
                "reset": described(drawn.reset.recurrent(), reservoir.reset_spectral_radius),
                "update": described(drawn.update.recurrent(), reservoir.update_spectral_radius),
            }
        return {"state": described(drawn.recurrent(), reservoir.spectral_radius)}
    trained = load_file(weights)
    if point.config.readout.kind == "gru":
        state = trained["recurrence.candidate.W"]
    else:
        state = reservoir.for_inputs(inputs).drawn_or_loaded().recurrent()
    reset, update = np.split(trained["recurrence.W"], 2)
    return {"state": described(state), "reset": described(reset), "update": described(update)}


def gates(config: ReservoirConfig, split: Split) -> dict[str, dict[str, float]]:
    """Mean, standard deviation and maximum of both gates over nodes, steps and sequences, without padding."""
    sums: dict[str, list[tuple[float, float, float, int]]] = {"reset": [], "update": []}
    with config.for_inputs(split.inputs.shape[2]).build() as network:
        assert isinstance(network, GatedEsn)
        for steps in np.unique(split.ends + 1):
            rows = split.inputs[split.ends + 1 == steps, :steps]
            found = network.gate_statistics(rows)
            for name, parts in sums.items():
                one = getattr(found, name)
                parts.append((one.mean, one.std**2 + one.mean**2, one.max, rows.shape[0] * rows.shape[1]))
    result = {}
    for name, parts in sums.items():
        means, squares, largest, counts = (np.array(column) for column in zip(*parts, strict=True))
        mean, square = np.average(means, weights=counts), np.average(squares, weights=counts)
        result[name] = {"mean": float(mean), "std": float(np.sqrt(square - mean**2)), "max": float(largest.max())}
    return result


def main() -> None:
    """Write rows/NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the experiment file, without .yaml")
    parser.add_argument("run", type=Path, help="folder of its run")
    parser.add_argument("sweep", type=Path, help="folder of its search")
    given = parser.parse_args()
    points = grid(Document.from_file(given.run / "experiment.yaml"))
    task = points[0].config.task.build()
    rows = json.loads((given.run / "metrics.json").read_text())["rows"]
    provenance = json.loads((given.run / "provenance.json").read_text())
    kept = []
    for number, (point, row) in enumerate(zip(points, rows, strict=False)):
        weights = given.run / "readout" / f"{number:03d}.safetensors"
        kept.append(
            {
                "seed": getattr(point.config.reservoir, "seed", None) or getattr(point.config.readout, "seed", 0),
                "metrics": row["metrics"],
                "seconds": row["seconds"],
                "processor_seconds": row["processor_seconds"],
                "matrices": matrices(point, task.inputs, weights),
            }
        )
    config = points[0].config
    study = json.loads((given.sweep / "metrics.json").read_text())
    result: dict[str, Any] = {
        "title": config.title,
        "time": provenance["time"],
        "reservoir": config.reservoir.model_dump(mode="json", exclude_defaults=True),
        "readout": config.readout.model_dump(mode="json", exclude_defaults=True),
        "rows": kept,
        "trials": [
            {name: trial[name] for name in ("status", "objective", "values", "seconds")} for trial in study["trials"]
        ],
    }
    if config.training.gradient is not None:
        result["gradient"] = config.training.gradient.model_dump(mode="json", exclude_defaults=True)
    if isinstance(config.reservoir, GatedEsnConfig):
        result["gates"] = gates(config.reservoir, task.test)
    (HERE / "rows" / f"{given.name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
