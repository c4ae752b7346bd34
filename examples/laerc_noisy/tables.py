"""Make the table of the README and the figures from the rows of `cross.py`.

python -m examples.laerc_noisy.tables

`rows/experiment.json` and `rows/encoder.json` are the `metrics.json` of the runs of these files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from examples.kept_rows import interval, replace_tables, spread, table
from reservoir_hw.core.figure_style import colours, new_figure, panels

HERE = Path(__file__).resolve().parent
Departures = dict[str, float]
# What an axis of the figures is called, and its levels, from the ideal reservoir on.
AXES: dict[str, tuple[str, list[float | None]]] = {
    "loop.noise": ("noise in the loop (standard deviation)", [None, 0.1, 0.3, 1]),
    "readout.noise": ("noise of the readout (standard deviation)", [None, 0.1, 0.3, 1]),
    "readout.bits": ("bits of the converter", [None, 4, 3, 2]),
}


def losses() -> dict[tuple[str, str], np.ndarray]:
    """Test losses of all seeds, by the reservoir of the training and that of the test."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for one in json.loads((HERE / "rows" / "cross.json").read_text()):
        found.setdefault((name(one["trained"]), name(one["run"])), {})[one["seed"]] = one["cross_entropy"]
    return {pair: np.array([by_seed[seed] for seed in sorted(by_seed)]) for pair, by_seed in found.items()}


def name(departures: Departures) -> str:
    """Of a reservoir, for tables."""
    forms = {"loop.noise": "loop noise {:g}", "readout.noise": "readout noise {:g}", "readout.bits": "{:g} bits"}
    return ", ".join(forms[key].format(value) for key, value in departures.items()) or "ideal"


def axis(key: str) -> list[str]:
    """Names of the reservoirs of an axis."""
    return [name({} if level is None else {key: level}) for level in AXES[key][1]]


def without_reservoir() -> dict[str, np.ndarray]:
    """Test losses of what has no reservoir: the same model on the encoder alone, by seed, and counted letters."""
    read = {
        stem: json.loads((HERE / "rows" / f"{stem}.json").read_text())["rows"] for stem in ("encoder", "experiment")
    }
    by_seed = sorted(read["encoder"], key=lambda row: row["readout"]["seed"])
    found = {"encoder only": np.array([row["metrics"]["cross_entropy"] for row in by_seed])}
    for row in read["experiment"]:
        if "readout" not in row:
            found[f"{row['label']}s"] = np.array([row["metrics"]["cross_entropy"]])
    return found


def results(found: dict[tuple[str, str], np.ndarray], baselines: dict[str, np.ndarray]) -> list[str]:
    """The three ways to come to each reservoir, and what has none."""
    body = []
    for there in dict.fromkeys(pair[1] for pair in found):
        own, ideal, back = found[there, there], found["ideal", there], found[there, "ideal"]
        gain = "–" if there == "ideal" else interval(ideal - own)
        worth = interval(baselines["encoder only"] - own)
        body.append([there, spread(ideal), spread(own), gain, worth, spread(back)])
    body += [[f"none: {what}", "–", spread(values), "–", "–", "–"] for what, values in baselines.items()]
    header = ["reservoir", "trained on the ideal one, run here", "trained and run here", "gain"]
    return table([*header, "ahead of encoder only", "trained here, run on the ideal one"], body)


def draw_curves(found: dict[tuple[str, str], np.ndarray], baselines: dict[str, np.ndarray]) -> Any:
    """Loss over each axis: trained on the ideal reservoir, and trained there; what has no reservoir as lines."""
    figure, grid = panels(10.5, 4.0, 1, len(AXES), sharey=True)
    first, second = colours(2)
    for axes, (key, (what, levels)) in zip(grid, AXES.items(), strict=True):
        names = axis(key)
        for label, colour, there in (
            ("trained on the ideal reservoir", first, [("ideal", one) for one in names]),
            ("trained on the same reservoir", second, [(one, one) for one in names]),
        ):
            values = np.array([found[pair] for pair in there])
            axes.plot(values.mean(axis=1), "-", color=colour, label=label)
            for seed in values.T:
                axes.plot(seed, "o", color=colour, markersize=4, alpha=0.6)
        for what_else, style in (("encoder only", "--"), ("trigrams", ":")):
            axes.axhline(baselines[what_else].mean(), color="0.3", ls=style, lw=1, label=f"no reservoir: {what_else}")
        axes.set_xticks(range(len(levels)), ["ideal" if level is None else f"{level:g}" for level in levels])
        axes.set(xlabel=what)
        axes.grid(color="0.92")
    grid[0].set_ylabel("test loss (nats per letter)")
    grid[0].legend(frameon=False)
    figure.suptitle("A layered model with the same reservoir weights throughout: three seeds")
    return figure


def draw_maps(found: dict[tuple[str, str], np.ndarray]) -> Any:
    """Mean loss of every model on every reservoir of its axis."""
    low = min(values.mean() for values in found.values())
    figure = new_figure(12.5, 4.2)
    grid, images = figure.subplots(1, len(AXES)), []
    for axes, (key, (what, levels)) in zip(grid, AXES.items(), strict=True):
        names = axis(key)
        values = np.array([[found[trained, run].mean() for run in names] for trained in names])
        images.append(axes.imshow(values, cmap="viridis_r", vmin=low, vmax=low + 1))
        for (row, column), value in np.ndenumerate(values):
            colour = "white" if value > low + 0.5 else "black"
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=9, color=colour)
        ticks = ["ideal" if level is None else f"{level:g}" for level in levels]
        axes.set_xticks(range(len(names)), ticks)
        axes.set_yticks(range(len(names)), ticks)
        axes.set(xlabel="run on", ylabel="trained on", title=what)
    figure.colorbar(images[0], ax=grid, shrink=0.8, extend="max", label="test loss (nats per letter)")
    figure.suptitle("Every model on every reservoir of its kind: means of three seeds")
    return figure


def main() -> None:
    """Write README.md and the figures."""
    found, baselines = losses(), without_reservoir()
    replace_tables(HERE / "README.md", {"results": results(found, baselines)})
    for figure, stem in ((draw_curves(found, baselines), "curves"), (draw_maps(found), "maps")):
        figure.savefig(HERE / f"{stem}.png", dpi=110)


if __name__ == "__main__":
    main()
