"""Make the tables of the README and the figures from the rows of finished runs.

    python -m examples.shakespeare_char.tables

`rows/NAME.json` is the `metrics.json` of a run of `NAME.yaml`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from examples.kept_rows import interval, replace_tables, spread, table
from reservoir_hw.core.figure_style import colours, new_figure

HERE = Path(__file__).resolve().parent
MODELS = {"linear": "RC", "attention": "AERC", "transformer": "transformer"}
WITHOUT = {
    ("45k_encoder", "RC"): "RC, encoder only",
    ("45k_encoder", "AERC"): "AERC, encoder only",
    ("45k_register", "AERC"): "AERC, last six letters",
}
"""The readouts of 45,000 weights without their reservoirs."""
Rows = dict[str, list[dict[str, Any]]]


def rows_of(name: str) -> Rows:
    """The trained rows of a run by model, in the order of their seeds."""
    found: Rows = {model: [] for model in MODELS.values()}
    for row in every_row(name):
        if "training" in row:
            found[MODELS[row["readout"]["kind"]]].append(row)
    return {model: sorted(rows, key=lambda row: row["readout"]["seed"]) for model, rows in found.items()}


def every_row(name: str) -> list[dict[str, Any]]:
    """All rows of a run."""
    return json.loads((HERE / "rows" / f"{name}.json").read_text())["rows"]


def counted() -> dict[str, float]:
    """Test losses of n-grams."""
    return {row["label"]: row["metrics"]["cross_entropy"] for row in every_row("45k_encoder") if "training" not in row}


def results(sizes: dict[str, Rows]) -> list[str]:
    """Loss, overlaps and times of each model."""
    body = []
    for size, found in sizes.items():
        for model, rows in found.items():
            metrics = [row["metrics"] for row in rows]
            trained = [row["training"]["evaluations"][-1]["processor_seconds"] for row in rows]
            driven = [row["training"]["driving_seconds"] for row in rows]
            written = [row["sample"]["seconds"] for row in rows]
            without = [row["sample"]["seconds"] - row["sample"]["driving_seconds"] for row in rows]
            body.append(
                [
                    size,
                    model,
                    f"{metrics[0]['parameters']:,.0f}",
                    spread([one["cross_entropy"] for one in metrics], ".3f"),
                    *(spread([one[f"overlap/{n}"] for one in metrics], ".3f") for n in (7, 8)),
                    f"{np.mean(trained):.0f} s",
                    f"{np.mean(trained) - np.mean(driven):.0f} s" if model != "transformer" else "–",
                    f"{np.mean(written):.0f} s",
                    f"{np.mean(without):.0f} s" if model != "transformer" else "–",
                ]
            )
    for (name, model), what in WITHOUT.items():
        rows = rows_of(name)[model]
        took = np.mean([row["training"]["evaluations"][-1]["processor_seconds"] for row in rows])
        loss = spread([row["metrics"]["cross_entropy"] for row in rows], ".3f")
        count = f"{rows[0]['metrics']['parameters']:,.0f}"
        body.append(["45k", what, count, loss, "–", "–", f"{took:.0f} s", "–", "–", "–"])
    body += [["–", f"{name}s", "–", f"{loss:.3f}", *["–"] * 6] for name, loss in counted().items()]
    header = ["file", "model", "weights", "test, nats per letter", "7-grams", "8-grams"]
    return table([*header, "training", "without reservoir", "writing", "without reservoir"], body)


def differences(sizes: dict[str, Rows]) -> list[str]:
    """RC - AERC and transformer - AERC on the test, paired by seed."""
    body = []
    for size, found in sizes.items():
        test = {m: np.array([row["metrics"]["cross_entropy"] for row in rows]) for m, rows in found.items()}
        body.append([size, *(interval(test[m] - test["AERC"]) for m in ("RC", "transformer"))])
    return table(["file", "RC - AERC", "transformer - AERC"], body)


def draw_losses(sizes: dict[str, Rows]) -> Any:
    """Validation loss against predictions, and against processor time."""
    figure = new_figure(9.5, 6.8)
    grid = figure.subplots(len(sizes), 2, sharey="row")
    for (size, found), line in zip(sizes.items(), grid, strict=True):
        for (model, rows), colour in zip(found.items(), colours(len(found)), strict=True):
            for number, row in enumerate(rows):
                at = row["training"]["evaluations"]
                loss = [one["validation_loss"] for one in at]
                label = model if number == 0 else None
                line[0].plot([one["tokens"] / 1e6 for one in at], loss, color=colour, lw=1.2, label=label)
                line[1].plot([one["processor_seconds"] for one in at], loss, color=colour, lw=1.2)
        line[1].set_xscale("log")
        line[0].set(title=f"{size[:-1]},000 weights", xlabel="predictions (millions)", ylabel="validation loss (nats)")
        line[1].set(title=f"{size[:-1]},000 weights", xlabel="processor time, reservoir included (s)")
        for axes in line:
            axes.grid(color="0.92")
            axes.spines[["top", "right"]].set_visible(False)
    for ((name, model), what), style in zip(WITHOUT.items(), (":", "--", "-."), strict=True):
        for number, row in enumerate(rows_of(name)[model]):
            at = row["training"]["evaluations"]
            loss = [one["validation_loss"] for one in at]
            label = what if number == 0 else None
            grid[-1, 0].plot([one["tokens"] / 1e6 for one in at], loss, color="0.4", ls=style, lw=1, label=label)
    figure.suptitle("Shakespeare's letters: three seeds of each model")
    grid[0, 0].legend(frameon=False)
    grid[-1, 0].legend(handles=grid[-1, 0].get_lines()[-3 * len(WITHOUT) :: 3], frameon=False, fontsize=8)
    return figure


def draw_times(sizes: dict[str, Rows]) -> Any:
    """Seconds for a million predictions and for writing 1000 letters, by the number of weights (the paper's Fig. 4)."""
    figure = new_figure(9.5, 4.2)
    left, right = figure.subplots(1, 2)
    for model, colour in zip(MODELS.values(), colours(3), strict=True):
        weights, training, driving, writing, stepping = [], [], [], [], []
        for found in sizes.values():
            rows = found[model]
            last = [row["training"]["evaluations"][-1] for row in rows]
            millions = last[0]["tokens"] / 1e6
            weights.append(rows[0]["metrics"]["parameters"])
            training.append(np.mean([one["processor_seconds"] for one in last]) / millions)
            driving.append(np.mean([row["training"]["driving_seconds"] for row in rows]) / millions)
            letters = rows[0]["sample"]["tokens"] / 1000
            writing.append(np.mean([row["sample"]["seconds"] for row in rows]) / letters)
            stepping.append(np.mean([row["sample"]["driving_seconds"] for row in rows]) / letters)
        for axes, whole, part in ((left, training, driving), (right, writing, stepping)):
            axes.plot(weights, whole, "o-", color=colour, label=model)
            if model != "transformer":
                rest = np.subtract(whole, part)
                axes.plot(weights, rest, "o--", color=colour, markerfacecolor="white", label=f"{model}, no reservoir")
    for axes, what in ((left, "training: s per million predictions"), (right, "writing: s per 1000 letters")):
        axes.set(xlabel="trained weights", ylabel=what, yscale="log")
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    left.legend(frameon=False, fontsize=8)
    figure.suptitle("Time of one thread, with and without the simulated reservoir")
    return figure


def main() -> None:
    """Write README.md and the figures."""
    sizes = {name: rows_of(name) for name in ("15k", "45k")}
    parts = {
        "results": results(sizes),
        "differences": differences(sizes),
    }
    replace_tables(HERE / "README.md", parts)
    for name, figure in (("losses", draw_losses(sizes)), ("times", draw_times(sizes))):
        figure.savefig(HERE / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
