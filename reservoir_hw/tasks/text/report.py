"""Language models beside each other, as tables and figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ShapeError
from reservoir_hw.core.figure_style import colours, one_panel
from reservoir_hw.tasks.report import about_spread, by_label, mean_and_spread, metric_values
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_COLUMNS = {
    "parameters": "trained weights",
    "cross_entropy": "nats per token",
    "bits_per_character": "bits per character",
    "perplexity": "perplexity",
    "accuracy": "accuracy",
}
_SAMPLE_WIDTH = 90
_SAMPLE_SHOWN = 600
# Characters in a line: the legend stands beside the axes, and leaves them room.
_LEGEND_WIDTH = 30
_VALIDATION: dict[str, Any] = {
    "marker": "o", "linestyle": "--", "markersize": 4, "linewidth": 1, "markerfacecolor": "white",
}  # fmt: skip


def tables_of(rows: Sequence[Row], level: str, unit: str | None) -> list[Table]:
    """Metrics on the test part, rows of one label averaged, and the first sample of each."""
    labels = by_label(rows)
    known = {name for row in rows for name in row.evaluation.metrics}
    overlaps = sorted((name for name in known if name.startswith("overlap/")), key=lambda name: int(name[8:]))
    columns = {**_COLUMNS, **{name: f"{name[8:]}-gram overlap" for name in overlaps}}
    shown = {name: title for name, title in columns.items() if name in known}
    repeated = any(len(same) > 1 for same in labels.values())
    body = [
        [label, *([str(len(same))] if repeated else []), *(_cell(same, name) for name in shown)]
        for label, same in labels.items()
    ]
    what = {"char": "characters", "word": "words", "bpe": "byte pairs"}[level]
    found = [
        Table(
            f"The next of the test's {what}",
            ["model", *(["runs"] if repeated else []), *shown.values()],
            body,
            _note(rows, unit) + (" " + about_spread(rows) if repeated else ""),
        )
    ]
    samples = [
        [_wrapped(_beginning(str(same[0].evaluation.arrays["sample"]))), label]
        for label, same in labels.items()
        if "sample" in same[0].evaluation.arrays
    ]
    if samples:
        found.append(Table("What they write", ["⟦prompt⟧ and text", "model"], samples))
    return found


def figures_of(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem: of the training, and of the test loss where several models were trained."""
    trained = by_label([row for row in rows if "training/step" in row.evaluation.arrays])
    found: dict[str, Figure] = {}
    if trained:
        found["training"] = _training_figure(trained)
    if len(trained) > 1:
        others = by_label([row for row in rows if "parameters" not in row.evaluation.metrics])
        found["loss_by_weights"] = _weights_figure(trained, others)
    return found


def _cell(rows: Sequence[Row], name: str) -> str:
    values = metric_values(rows, name)
    if name == "parameters" and len(values):
        return f"{values.mean():,.0f}"
    return mean_and_spread(rows, name, ".2f" if name == "perplexity" else ".4f")


def _note(rows: Sequence[Row], unit: str | None) -> str:
    if unit is not None:
        return f"Each {unit} of the test is read from rest."
    lengths = sorted({int(row.evaluation.arrays["context"]) for row in rows if "context" in row.evaluation.arrays})
    if not lengths:
        return ""
    return (
        f"Language models begin at rest with every {' or '.join(map(str, lengths))} tokens, as in training; other "
        "models and baselines read the test as one sequence."
    )


def _beginning(sample: str) -> str:
    left = len(sample) - _SAMPLE_SHOWN
    return sample if left <= 0 else f"{sample[:_SAMPLE_SHOWN]}… (and {left:,} characters more in its file)"


def _wrapped(sample: str) -> str:
    lines = (textwrap.wrap(line, _SAMPLE_WIDTH, drop_whitespace=False) or [""] for line in sample.split("\n"))
    return "\n".join(part for parts in lines for part in parts)


def _training_figure(labels: dict[str, list[Row]]) -> Figure:
    figure, axes = one_panel(8.5, 4.4)
    for (label, rows), colour in zip(labels.items(), colours(len(labels)), strict=True):
        for number, row in enumerate(rows):
            arrays = row.evaluation.arrays
            axes.plot(
                arrays["training/step"],
                arrays["training/loss"],
                color=colour,
                linewidth=1.2,
                label=textwrap.fill(label, _LEGEND_WIDTH) if number == 0 else None,
            )
            if len(arrays["validation/step"]):
                axes.plot(arrays["validation/step"], arrays["validation/loss"], color=colour, **_VALIDATION)
    if any(len(row.evaluation.arrays["validation/step"]) for rows in labels.values() for row in rows):
        axes.plot([], [], color="0.4", label="validation", **_VALIDATION)
    axes.set(xlabel="step", ylabel="cross-entropy (nats per token)", title="Loss over the training")
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _weights_figure(trained: dict[str, list[Row]], others: dict[str, list[Row]]) -> Figure:
    figure, axes = one_panel(8.5, 4.4)
    for (label, rows), colour in zip(trained.items(), colours(len(trained)), strict=True):
        axes.plot(
            metric_values(rows, "parameters"),
            metric_values(rows, "cross_entropy"),
            "o",
            color=colour,
            markersize=7,
            label=textwrap.fill(label, _LEGEND_WIDTH),
        )
    for (label, rows), style in zip(others.items(), [":", "--", "-.", "-"] * len(others), strict=False):
        axes.axhline(
            metric_values(rows, "cross_entropy").mean(), color="0.5", linewidth=1, linestyle=style, label=label
        )
    axes.set_xscale("log")
    axes.set(xlabel="trained weights", ylabel="cross-entropy of the test (nats per token)")
    axes.set_title("Test loss by the number of trained weights")
    figure.legend(loc="outside right center", frameon=False)
    return figure


# ---- How much of what a model writes stands in a text (Köster & Uchida 2026, eq. 8).


def ngram_overlap(written: np.ndarray, reference: np.ndarray, n: int) -> float:
    """|G ∩ R| / |G|: of the different n-grams of tokens `written` (time,), the share that `reference` (time,) has.

    Raises `ShapeError` where one of them is shorter than n.
    """
    if min(len(written), len(reference)) < n:
        raise ShapeError(f"{n}-grams need at least {n} tokens; there are {len(written)}, and {len(reference)} to find")
    found = np.unique(_ngrams(written, n))
    return float(np.isin(found, _ngrams(reference, n)).mean())


def _ngrams(tokens: np.ndarray, n: int) -> np.ndarray:
    """Every run of n tokens as one item of bytes, (time - n + 1,)."""
    runs = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, dtype=np.int32), n)
    return np.ascontiguousarray(runs).view(f"V{4 * n}").ravel()
