"""Make the tables of the README and the figure from the rows of finished runs.

    python -m examples.trec_questions.tables

`rows/NAME.json` is what `collect.py` has kept of the run of `NAME.yaml` and of the search before it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from examples.kept_rows import interval, replace_tables, spread, table
from reservoir_hw.core.figure_style import colours, new_figure
from reservoir_hw.tasks.trec import WIDTH

HERE = Path(__file__).resolve().parent
MODELS = {"esn": "ESN", "gated": "Gated ESN", "leaky": "leaky ESN", "rz": "Gated ESN RZ", "gru": "GRU"}
"""In the order of the paper's Table 2 and Figure 3."""
BASELINES = {
    "encoder": "encoder only (the last word)",
    "register": "register of the last words",
    "sum": "sum of the words",
    "unlinked": "nodes without links",
}
NAMES = MODELS | BASELINES
UNTRAINED = ("esn", "gated", "leaky")


def values(found: dict[str, Any], metric: str) -> np.ndarray:
    """The metric by seed."""
    return np.array([row["metrics"][metric] for row in sorted(found["rows"], key=lambda row: row["seed"])])


def nodes(found: dict[str, Any]) -> int:
    """Those of the network or the encoder; of a register the numbers in it."""
    reservoir = found["reservoir"]
    if reservoir.get("kind") == "nvar":
        return WIDTH * reservoir["lags"]
    return reservoir.get("of", reservoir).get("nodes") or found["readout"]["nodes"]


def weights(found: dict[str, Any]) -> int:
    """Trained weights; a ridge readout has one for each node and a bias, for each of six classes."""
    return round(found["rows"][0]["metrics"].get("parameters", 6 * (nodes(found) + 1)))


def results(runs: dict[str, Any]) -> list[str]:
    """Accuracy, weights and times of each model."""
    base = np.mean([row["processor_seconds"] for row in runs["esn"]["rows"]])
    body = []
    for name, found in runs.items():
        took = np.mean([row["processor_seconds"] for row in found["rows"]])
        body.append(
            [
                NAMES[name],
                f"{nodes(found):,}",
                f"{weights(found):,}",
                str(len(found["rows"])),
                spread(values(found, "accuracy"), ".3f"),
                spread(values(found, "accuracy/unseen"), ".3f"),
                f"{took:.1f} s",
                f"{took / base:.2f}",
            ]
        )
    header = [
        "model",
        "nodes",
        "trained weights",
        "seeds",
        "accuracy",
        "without the 10",
        "processor time",
        "of the ESN's",
    ]
    return table(header, body)


def best_untrained(runs: dict[str, Any]) -> str:
    """The untrained model of the best mean on the test, which is generous to it."""
    return max(UNTRAINED, key=lambda name: values(runs[name], "accuracy").mean())


def differences(runs: dict[str, Any]) -> list[str]:
    """Paired by seed."""
    pairs = [("rz", best_untrained(runs)), ("rz", "gru"), ("gru", best_untrained(runs)), ("gated", "esn")]
    pairs += [("leaky", "gated"), ("leaky", "esn")]
    pairs += [(model, "unlinked") for model in MODELS]
    body = []
    for one, other in dict.fromkeys(pairs):
        # A register has one row for all seeds.
        by_seed = [
            values(runs[one], metric) - values(runs[other], metric) for metric in ("accuracy", "accuracy/unseen")
        ]
        body.append([f"{NAMES[one]} - {NAMES[other]}", str(len(by_seed[0])), *map(interval, by_seed)])
    return table(["difference", "seeds", "accuracy", "without the 10"], body)


def draw(runs: dict[str, Any]) -> Any:
    """Accuracy and time of each model (the paper's Figure 3)."""
    figure = new_figure(11, 5.6)
    left, right = figure.subplots(1, 2)
    for height, ((name, found), colour) in enumerate(zip(runs.items(), colours(len(runs)), strict=True)):
        accuracy = values(found, "accuracy")
        took = np.array([row["processor_seconds"] for row in found["rows"]])
        left.plot(accuracy, np.full(len(accuracy), height), "o", color=colour, markersize=4, alpha=0.5)
        wider, slower = (one.std(ddof=1) if len(one) > 1 else 0.0 for one in (accuracy, took))
        left.errorbar(accuracy.mean(), height, xerr=wider, fmt="s", color=colour, capsize=4)
        left.annotate(
            f"{accuracy.mean():.3f}", (accuracy.mean(), height), xytext=(0, 9), textcoords="offset points", ha="center"
        )
        right.barh(height, took.mean(), xerr=slower, color=colour, height=0.6, capsize=3)
        right.annotate(
            f" {took.mean():.0f} s", (took.mean() + slower, height), va="center", xytext=(3, 0),
            textcoords="offset points",
        )  # fmt: skip
        del name
    for axes in (left, right):
        axes.set_yticks(range(len(runs)), [NAMES[name] for name in runs])
        axes.set_ylim(len(runs) - 0.5, -0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="0.92")
        axes.set_axisbelow(True)
    right.set_xlim(right=1.18 * right.get_xlim()[1])
    left.set_xlabel("accuracy on 500 questions: each seed, mean ± standard deviation")
    right.set_xlabel("processor time of one seed (s)")
    figure.suptitle("What does a question ask for? Five models with about 19,400 trained weights each, and baselines")
    return figure


def main() -> None:
    """Write README.md and the figure."""
    runs = {name: json.loads((HERE / "rows" / f"{name}.json").read_text()) for name in NAMES}
    parts = {"results": results(runs), "differences": differences(runs)}
    replace_tables(HERE / "README.md", parts)
    draw(runs).savefig(HERE / "accuracy.png", dpi=110)


if __name__ == "__main__":
    main()
