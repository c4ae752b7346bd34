"""Count the symbols that only one of two equalisers has wrong, of the same test.

    reservoir-hw run examples/delay_loop/equalisation.yaml --set run.folder=runs/loop
    reservoir-hw run examples/delay_loop/equalisation.yaml --set run.folder=runs/filter --set baselines=[] \
        --set "reservoir={kind: volterra, taps: [13, 7, 4]}"
    python examples/delay_loop/paired.py runs/loop/* runs/filter/*

It writes rows/equalisation_paired.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reservoir_hw import Experiment
from reservoir_hw.tasks.channel_equalisation import decided

HERE = Path(__file__).resolve().parent


def wrong(run: Path) -> dict[float, NDArray[np.bool_]]:
    """SNR in dB -> whether each symbol was decided wrongly, of the device of a run."""
    found = {}
    rows = json.loads((run / "provenance.json").read_text())["rows"]
    for point, row in zip(Experiment.from_file(run / "experiment.yaml").points, rows, strict=True):
        targets = point.config.task.build().test.targets.ravel()
        outputs = np.load(run / row["readout"]["outputs"]).ravel()
        found[point.values["task.snr_db"]] = decided(outputs) != decided(targets)
    return found


def main() -> None:
    """Keep the counts."""
    loop, others = wrong(Path(sys.argv[1])), wrong(Path(sys.argv[2]))
    rows = [
        {
            "snr_db": snr,
            "loop_alone": int((loop[snr] & ~others[snr]).sum()),
            "filter_alone": int((others[snr] & ~loop[snr]).sum()),
        }
        for snr in loop
    ]
    (HERE / "rows" / "equalisation_paired.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
