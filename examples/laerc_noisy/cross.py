"""Run the models of a finished run on other reservoirs: the same reservoir weights, other noise and converters.

    python examples/laerc_noisy/cross.py runs/laerc_noisy-experiment-...

Writes `rows/cross.json`: the loss of each model on the test, on the reservoirs that depart from the ideal one in the
same way as that of its training. The noise is drawn with another seed than in the training.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from reservoir_hw.backends.simulated.nonidealities.configuration import Nonidealities
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig
from reservoir_hw.experiment.deploy.trained import TrainedRow, trained_row
from reservoir_hw.experiment.run.by_gradients import model_of, opened_model
from reservoir_hw.experiment.run.text_training import gradient_of
from reservoir_hw.readout.models.token_model import evaluating
from reservoir_hw.readout.training import load_weights
from reservoir_hw.tasks.task import Tokens

HERE = Path(__file__).resolve().parent
NOISE_SEED = 1


def departures(row: TrainedRow) -> dict[str, float]:
    """How the reservoir of a row departs from the ideal one."""
    given, ideal = cast(SimulatedConfig, row.point.config.reservoir).nonidealities, Nonidealities()
    pairs = [(section, key) for section in ("loop", "readout") for key in ("noise", "bits")]
    values = {f"{section}.{key}": getattr(getattr(given, section), key) for section, key in pairs}
    usual = {f"{section}.{key}": getattr(getattr(ideal, section), key) for section, key in pairs}
    return {name: value for name, value in values.items() if value != usual[name]}


def loss_on(row: TrainedRow, reservoir: dict[str, float], text: Tokens) -> float:
    """Of the trained model over whole windows of the test, from rest, on a reservoir with these departures."""
    sections: dict[str, Any] = {"seed": NOISE_SEED}
    for name, value in reservoir.items():
        section, key = name.split(".")
        sections[section] = {key: value}
    config = row.point.config
    other = config.reservoir.model_copy(update={"nonidealities": Nonidealities.model_validate(sections)})
    point = replace(row.point, config=config.model_copy(update={"reservoir": other}))
    context = gradient_of(config).options.context
    tokens = np.asarray(text.tokens_test, np.int64)
    end = (len(tokens) - 1) // context * context
    read, following = (torch.from_numpy(tokens[first : first + end].reshape(-1, context)) for first in (0, 1))
    with opened_model(point, text) as (model, _), evaluating(model):
        load_weights(model, row.file())
        return float(model.loss(read, following))


def main(run: str) -> None:
    """Write rows/cross.json."""
    known = len(json.loads((Path(run) / "provenance.json").read_text())["rows"])
    rows = [trained_row(run, number) for number in range(known)]
    config = rows[0].point.config
    text = model_of(config).tokens_of(config.task.build())
    reservoirs = list({str(departures(row)): departures(row) for row in rows}.values())
    found = [
        {
            "trained": departures(row),
            "run": reservoir,
            "seed": model_of(row.point.config).seed,
            "cross_entropy": loss_on(row, reservoir, text),
        }
        for row in rows
        for reservoir in reservoirs
        if not reservoir or departures(row).keys() <= reservoir.keys()
    ]
    lines = ",\n".join(json.dumps(one) for one in found)
    (HERE / "rows" / "cross.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
