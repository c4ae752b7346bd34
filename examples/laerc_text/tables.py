"""Make the tables of the README and the figures from the rows of finished runs.

    python -m examples.laerc_text.tables

`rows/NAME.json` is the `metrics.json` of a run of `NAME.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import NullLocator

from examples.kept_rows import LogFit, fit_log10, interval, replace_tables, spread, table
from reservoir_hw.core.figure_style import colours, panels

HERE = Path(__file__).resolve().parent
SIZES = ("d64", "d96", "d128")
# Slopes of Köster & Uchida 2026, Fig. 7.
PRINTED = {"LAERC": -0.81, "gpt": -1.72}
MODELS = {"laerc": "LAERC", "gpt": "gpt"}
ENCODER = "LAERC, encoder only"
V, CONTEXT = 8192, 256
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """All rows of a run."""
    return json.loads((HERE / "rows" / f"{name}.json").read_text())["rows"]


def trained(name: str) -> dict[str, list[Row]]:
    """The trained rows of a run by model, in the order of their seeds."""
    found: dict[str, list[Row]] = {model: [] for model in PRINTED}
    for row in rows_of(name):
        if "training" in row:
            found[MODELS[row["readout"]["kind"]]].append(row)
    return {model: sorted(rows, key=lambda row: row["readout"]["seed"]) for model, rows in found.items()}


def with_encoders(sizes: dict[str, dict[str, list[Row]]]) -> dict[str, dict[str, list[Row]]]:
    """The same, at D = 64 with LAERC on what drives its reservoirs."""
    return {**sizes, "d64": {**sizes["d64"], ENCODER: trained("d64_encoder")["LAERC"]}}


def weights(row: Row) -> int:
    """All trained weights; the vectors of the tokens count once."""
    return int(row["metrics"]["parameters"])


def without_embedding(row: Row) -> int:
    """Trained weights but the vectors of the tokens, and of the positions of the gpt."""
    vectors = V + (CONTEXT if row["readout"]["kind"] == "gpt" else 0)
    return weights(row) - vectors * row["readout"]["width"]


def losses(rows: Sequence[Row]) -> list[float]:
    """Of the test."""
    return [row["metrics"]["cross_entropy"] for row in rows]


def fits(sizes: dict[str, dict[str, list[Row]]], count: Callable[[Row], int]) -> dict[str, LogFit]:
    """Eq. 9 of each model, over all seeds."""
    return {
        model: fit_log10({count(found[model][0]): losses(found[model]) for found in sizes.values()})
        for model in PRINTED
    }


def results(sizes: dict[str, dict[str, list[Row]]]) -> list[str]:
    """Weights, losses and times of each model and size."""
    body = []
    for found in sizes.values():
        for model, rows in found.items():
            # Not those that a second process went on with.
            courses = [row["training"] for row in rows if row["training"]["driving_seconds"] is not None]
            took = [course["evaluations"][-1]["processor_seconds"] for course in courses]
            body.append(
                [
                    str(rows[0]["readout"]["width"]),
                    model,
                    f"{weights(rows[0]):,}",
                    f"{without_embedding(rows[0]):,}",
                    spread(losses(rows)),
                    spread([row["metrics"]["validation_cross_entropy"] for row in rows]),
                    f"{np.mean(took):.0f} s",
                ]
            )
    counted = next(row for row in rows_of("d64") if row["label"] == "bigram")
    body.append(["–", "bigrams", "–", "–", f"{counted['metrics']['cross_entropy']:.3f}", "–", "–"])
    header = ["D", "model", "trained weights", "without embedding", "test, nats per token", "validation"]
    return table([*header, "training"], body)


def differences(sizes: dict[str, dict[str, list[Row]]]) -> list[str]:
    """How far each model is behind LAERC, paired by seed."""
    body = []
    for found in sizes.values():
        for model in [name for name in found if name != "LAERC"]:
            width = found[model][0]["readout"]["width"]
            by_seed = [one - other for one, other in zip(losses(found[model]), losses(found["LAERC"]), strict=False)]
            behind = interval(by_seed) if len(by_seed) > 1 else f"{by_seed[0]:+.3f}"
            body.append([str(width), f"{model} - LAERC", str(len(by_seed)), behind])
    return table(["D", "difference of the test losses", "seeds", "nats per token"], body)


def scaling(sizes: dict[str, dict[str, list[Row]]]) -> list[str]:
    """Slopes of eq. 9."""
    body = []
    for name, count in (("all trained", weights), ("without embedding", without_embedding)):
        for model, fit in fits(sizes, count).items():
            low, high = fit.slope_interval
            printed = f"{PRINTED[model]}" if count is weights else "–"
            body.append([name, model, f"{fit.slope:.3f}", f"[{low:.3f}, {high:.3f}]", f"{fit.intercept:.2f}", printed])
    return table(["weights", "model", "slope a", "95 % interval", "b", "slope in the paper"], body)


def draw_losses(sizes: dict[str, dict[str, list[Row]]], encoders: list[Row]) -> Any:
    """Validation loss over steps, all seeds (the paper's Fig. 6)."""
    figure, grid = panels(9.5, 4.2, 1, 2, sharey=True)
    for axes, model in zip(grid, PRINTED, strict=True):
        for found, colour in zip(sizes.values(), colours(len(sizes)), strict=True):
            for number, row in enumerate(found[model]):
                at = row["training"]["evaluations"]
                label = f"D = {row['readout']['width']}, {weights(row) / 1e6:.2f} M weights" if number == 0 else None
                axes.plot(
                    [one["step"] for one in at],
                    [one["validation_loss"] for one in at],
                    color=colour,
                    lw=1.2,
                    label=label,
                )
        for number, row in enumerate(encoders if model == "LAERC" else []):
            at = row["training"]["evaluations"]
            label = "D = 64, encoder only" if number == 0 else None
            axes.plot(
                [one["step"] for one in at], [one["validation_loss"] for one in at], color="0.4", ls="--", label=label
            )
        axes.set(title=model, xlabel="step (2048 predictions)")
        axes.grid(color="0.92")
        axes.legend(frameon=False)
    grid[0].set_ylabel("validation loss (nats per token)")
    figure.suptitle("Children's books, 8192 byte pairs: three seeds of each size")
    return figure


def draw_scaling(sizes: dict[str, dict[str, list[Row]]]) -> Any:
    """Test loss over the number of weights, and eq. 9 (the paper's Fig. 7)."""
    figure, grid = panels(9.5, 4.2, 1, 2, sharey=True)
    for axes, count, what in zip(
        grid, (weights, without_embedding), ("all trained weights", "trained weights without embedding"), strict=True
    ):
        for (model, fit), colour in zip(fits(sizes, count).items(), colours(len(PRINTED)), strict=True):
            low, high = fit.slope_interval
            label = f"{model}: a = {fit.slope:.2f} [{low:.2f}, {high:.2f}]"
            for found in sizes.values():
                for row in found[model]:
                    axes.plot(count(row), row["metrics"]["cross_entropy"], "o", color=colour, alpha=0.6)
            ends = np.array([count(found[model][0]) for found in sizes.values()])
            axes.plot(ends, fit.at(ends), color=colour, label=label)
        axes.set(xscale="log", xlabel=what)
        ticks = [count(found["LAERC"][0]) for found in sizes.values()]
        axes.set_xticks(ticks, [f"{tick / 1e6:.2f} M" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(color="0.92")
        axes.legend(frameon=False)
    grid[0].set_ylabel("test loss (nats per token)")
    figure.suptitle("Loss after a million predictions, L = a log₁₀ N + b over three seeds")
    return figure


def main() -> None:
    """Write README.md and the figures."""
    sizes = {name: trained(name) for name in SIZES}
    every = with_encoders(sizes)
    parts = {"results": results(every), "differences": differences(every), "scaling": scaling(sizes)}
    replace_tables(HERE / "README.md", parts)
    for name, figure in (("losses", draw_losses(sizes, every["d64"][ENCODER])), ("scaling", draw_scaling(sizes))):
        figure.savefig(HERE / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
