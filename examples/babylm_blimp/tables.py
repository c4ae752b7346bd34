"""Make the tables of the README and the figures from the rows of finished runs.

    python -m examples.babylm_blimp.tables

`rows/NAME.json` is the `metrics.json` of a run of `NAME.yaml`.
`rows/blimp/MODEL.json` is what `reservoir-hw blimp RUN --row N --json` (or `--baseline N`) printed of a model of
`models.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.kept_rows import replace_tables, spread, table
from reservoir_hw.core.figure_style import colours, one_panel, panels
from reservoir_hw.core.seeds import generator

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
NAMES = {"lstm": "LSTM(256)", "gpt": "gpt", "esn_lm": "ESN"}
# Validation losses that the papers print: table 4 by connectivity, table 5 by the smallest leak rate, tables 1 and 2
# (in Japanese) by spectral radius.
PRINTED = {
    "links": {1: 5.497, 8: 4.761, 32: 4.794, 128: 4.836, 256: 4.890},
    "leak": {0.0: 4.794, 0.5: 4.861, 1.0: 5.018},
    "radius": {0.5: 4.52, 0.8: 4.45, 0.993: 4.43, 1.3: 4.44, 1.7: 7.80e28},
}


def rows_of(name: str) -> list[Row]:
    """All rows of a run."""
    return json.loads((HERE / "rows" / f"{name}.json").read_text())["rows"]


def name_of(row: Row) -> str:
    """As the papers call it."""
    readout = row["readout"]
    if readout["kind"] == "esn_lm":
        return f"ESN{'+i' if readout['train_input'] else ''}({readout['nodes']})"
    return NAMES[readout["kind"]]


def percent(values: np.ndarray) -> str:
    """The mean over the paradigms in percent, with its interval of 95 % by bootstrap over them."""
    drawn = generator(0, "bootstrap").integers(len(values), size=(2000, len(values)))
    low, high = np.percentile(100 * values[drawn].mean(axis=1), [2.5, 97.5])
    return f"{100 * values.mean():.1f} [{low:.1f}, {high:.1f}]"


def judged() -> dict[str, dict[str, np.ndarray]]:
    """Of each judged model the accuracies by paradigm: its own ("trained") and those of what it must beat."""
    found = {}
    for path in sorted((HERE / "rows" / "blimp").glob("*.json")):
        told = json.loads(path.read_text())
        by_uid = {name: np.array(list(values.values())) for name, values in told["by_uid"].items()}
        by_uid["trained"] = by_uid.pop(told["model"])
        by_uid["per token"] = np.array(list(told["by_uid_per_token"][told["model"]].values()))
        found[path.stem] = by_uid
    return found


def results(rows: Sequence[Row], blimp: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """Weights, losses, BLiMP and time of each model."""
    body = []
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(name_of(row) if "training" in row else row["label"], []).append(row)
    for name, runs in models.items():
        metrics = [row["metrics"] for row in runs]
        test = spread([one["cross_entropy"] for one in metrics])
        if "training" not in runs[0]:
            body.append([name, "–", "–", test, "–", "–", "–"])
            continue
        took = np.mean([row["training"]["evaluations"][-1]["processor_seconds"] for row in runs])
        body.append(
            [
                name,
                f"{metrics[0]['parameters']:,.0f}",
                spread([one["validation_cross_entropy"] for one in metrics]),
                test,
                percent(blimp[name]["trained"]),
                percent(blimp[name]["untrained"]),
                f"{took / 60:.1f} min",
            ]
        )
    header = ["model", "trained weights", "validation, nats per token", "test", "BLiMP, %", "before the training"]
    return table([*header, "training"], body)


def claims(blimp: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """Differences between each model and what it must beat."""
    against = ("untrained", "unigram", "bigram", "the shorter one")
    body = [[model, *(percent(found["trained"] - found[other]) for other in against)] for model, found in blimp.items()]
    return table(["model minus", "itself untrained", "unigrams", "bigrams", "the shorter sentence"], body)


def swept() -> dict[str, list[tuple[float, float]]]:
    """What was changed -> its value and the validation loss."""
    found: dict[str, list[tuple[float, float]]] = {"links": [], "leak": [], "radius": []}
    for row in rows_of("settings"):
        readout, loss = row["readout"], row["metrics"]["validation_cross_entropy"]
        if readout["train_input"]:
            found["radius"].append((readout["spectral_radius"], loss))
        elif readout["leak"] is not None:
            found["leak"].append((readout["leak"][0], loss))
        else:
            found["links"].append((readout["connections"], loss))
            if readout["connections"] == 32:
                found["leak"].append((0.0, loss))
    return {name: sorted(values) for name, values in found.items()}


def draw_losses(rows: Sequence[Row]) -> Any:
    """Validation loss over what was read, and over processor time."""
    trained = [row for row in rows if "training" in row]
    figure, (left, right) = panels(9.5, 4.2, 1, 2, sharey=True)
    names = dict.fromkeys(name_of(row) for row in trained)
    colour_of = dict(zip(names, colours(len(names)), strict=True))
    for number, row in enumerate(trained):
        at, name = row["training"]["evaluations"], name_of(row)
        loss, colour = [one["validation_loss"] for one in at], colour_of[name]
        label = None if name in map(name_of, trained[:number]) else name
        left.plot([one["tokens"] / 1e6 for one in at], loss, color=colour, lw=1.4, label=label)
        right.plot([one["processor_seconds"] / 60 for one in at], loss, color=colour, lw=1.4)
    left.set(xlabel="tokens read (millions)", ylabel="validation loss (nats per token)")
    right.set(xlabel="processor time (min)")
    for axes in (left, right):
        axes.grid(color="0.92")
    left.legend(frameon=False)
    figure.suptitle("English sentences, 8192 byte pairs")
    return figure


def draw_settings() -> Any:
    """Validation loss over each of the three settings."""
    found = swept()
    figure, grid = panels(9.5, 3.4, 1, 3)
    titles = {"links": "links of a node", "leak": "smallest leak rate", "radius": "spectral radius"}
    models = {"links": "ESN(256)", "leak": "ESN(256)", "radius": "ESN+i(256)"}
    for axes, (name, values) in zip(grid, found.items(), strict=True):
        kept = [(value, loss) for value, loss in values if loss < 20]
        axes.plot(*zip(*kept, strict=True), "o-", color="#26547c", label="here")
        printed = [one for one in PRINTED[name].items() if one[1] < 20]
        axes.plot(*zip(*printed, strict=True), "s--", color="0.6", label="the papers: larger, more tokens")
        for value, _ in [one for one in values if one[1] >= 20]:
            axes.axvline(value, color="#d1495b", lw=1, ls="--")
            axes.annotate("diverged ", (value, kept[0][1]), ha="right", va="top", fontsize=8, color="#d1495b")
        axes.set(title=models[name], xlabel=titles[name], xscale="log" if name == "links" else "linear")
        axes.grid(color="0.92")
    grid[0].set_xticks([1, 8, 32, 128, 256], ["1", "8", "32", "128", "256"])
    grid[0].minorticks_off()
    grid[1].legend(frameon=False, fontsize=8)
    grid[0].set_ylabel("validation loss (nats per token)")
    figure.suptitle("After half a million tokens, one seed")
    return figure


def draw_blimp(blimp: dict[str, dict[str, np.ndarray]]) -> Any:
    """Accuracies with intervals."""
    figure, axes = one_panel(7.5, 3.6)
    for place, (_, found) in enumerate(blimp.items()):
        for kind, colour, shift in (("trained", "#26547c", -0.12), ("untrained", "0.6", 0.12)):
            values = 100 * found[kind]
            drawn = generator(0, "bootstrap").integers(len(values), size=(2000, len(values)))
            low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
            label = {"trained": "after 4 million tokens", "untrained": "before"}[kind] if place == 0 else None
            axes.plot([low, high], [place + shift] * 2, color=colour, lw=1.6)
            axes.plot(values.mean(), place + shift, "o", color=colour, label=label)
    first = next(iter(blimp.values()))
    for name, style in (("unigram", ":"), ("bigram", "--"), ("the shorter one", "-.")):
        axes.axvline(100 * first[name].mean(), color="0.3", lw=1, ls=style, label=name)
    axes.set_yticks(range(len(blimp)), list(blimp))
    axes.invert_yaxis()
    axes.set_xlabel("BLiMP accuracy (%), with 95 % intervals over the paradigms")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Write README.md and the figures."""
    rows, blimp = rows_of("models"), judged()
    parts = {
        "results": results(rows, blimp),
        "claims": claims(blimp),
    }
    replace_tables(HERE / "README.md", parts)
    for name, figure in (("losses", draw_losses(rows)), ("settings", draw_settings()), ("blimp", draw_blimp(blimp))):
        figure.savefig(HERE / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
