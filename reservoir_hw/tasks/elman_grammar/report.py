"""Results on Elman's grammar beside those that Tong et al. 2007 print, as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel, panels
from reservoir_hw.tasks.elman_grammar.grammar import DISTANCES, VOCABULARY
from reservoir_hw.tasks.report import best, by_label, metric_values, table_of_means
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


VERB_SHARES = (28.03, 38.15, 14.47, 9.93, 5.66, 2.34, 1.42)
"""Table 4: per cent of the verbs at each of `DISTANCES` from their noun."""

AGREEMENT_ERROR = {
    "bigram": (0.00, 0.53, 0.00, 0.48, 0.51, 0.51, 0.54),
    "trigram": (0.00, 0.00, 0.00, 0.23, 0.47, 0.50, 0.42),
    "SRN(70)": (0.00, 0.00, 0.00, 0.39, 0.48, 0.45, 0.57),
    "ESN(50)": (0.02, 0.00, 0.02, 0.47, 0.53, 0.48, 0.47),
    "ESN(300)": (0.04, 0.00, 0.00, 0.29, 0.40, 0.46, 0.61),
    "ESN(1000)": (0.03, 0.00, 0.00, 0.08, 0.26, 0.43, 0.36),
}
"""Table 4: verb agreement error at each of `DISTANCES`."""

AUC = {
    "bigram": (0.93, 0.84, 0.81, 0.78),
    "trigram": (0.93, 0.96, 0.96, 0.93),
    "SRN(70)": (0.96, 0.96, 0.97, 0.94),
    "ESN(50)": (0.95, 0.91, 0.90, 0.80),
    "ESN(300)": (0.96, 0.94, 0.94, 0.86),
    "ESN(1000)": (0.95, 0.96, 0.97, 0.89),
}
"""Table 2: AUC of nouns and of transitive, optionally transitive and intransitive verbs.

The table calls its last row SRN(1000); the text says it is the ESN.
"""


_AUC_CLASSES = {
    "nouns": "nouns",
    "transitive": "transitive verbs",
    "optional": "optionally transitive verbs",
    "intransitive": "intransitive verbs",
}
_OVERALL = {
    "cosine": "cosine",
    "max_prediction": "max prediction",
    "auc": "AUC",
    "agreement": "verb agreement",
}
_WORDS = {"cross_entropy_bits": "bits per word", "perplexity": "perplexity", "accuracy": "accuracy"}
_PAPER: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": "crimson", "markeredgewidth": 1.2}
_PROBE = ("boy", "who", "walks", "sees", "cats")
_SHOWN = 6


def tables(rows: Sequence[Row], *, generated: bool = True) -> list[Table]:
    """Table 4, Table 2's first four classes and the overall metrics, rows of one label averaged.

    Beside the paper's figures if the sentences were `generated`. Empty for rows without verb agreement.
    """
    labels = _judged(rows)
    if not labels:
        return []
    shown = {metric: title for metric, title in _OVERALL.items() if generated or metric != "cosine"}
    note = " The paper shows these in its Fig. 3 without numbers." if generated else ""
    overall = table_of_means("Overall", labels, shown, note=note)
    return [_distance_table(labels, generated), _class_table(labels, generated), overall]


def corpus_tables(rows: Sequence[Row], remark: str) -> list[Table]:
    """How well the words of a corpus were predicted, with `remark`, and the tables above where there is agreement."""
    words = table_of_means("The next word of the test's sentences", by_label(rows), _WORDS)
    return [replace(words, note=remark), *tables(rows, generated=False)]


def figures(rows: Sequence[Row], *, generated: bool = True) -> dict[str, Figure]:
    """Figures by file stem, over the same rows as `tables`."""
    labels = _judged(rows)
    if not labels:
        return {}
    found = {"agreement_error": _distance_figure(labels, generated), "roc": _roc_figure(labels)}
    return {**found, "probe": _probe_figure(labels)} if generated else found


def _judged(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return by_label(row for row in rows if "agreement" in row.evaluation.metrics)


def _mean(rows: Sequence[Row], metric: str) -> float:
    values = metric_values(rows, metric)
    return float(values.mean()) if len(values) else float("nan")


def _verbs(rows: Sequence[Row]) -> np.ndarray:
    """Verbs by distance (7,) over all rows."""
    return np.sum([row.evaluation.arrays["verbs/count"] for row in rows], axis=0)


def _beside(ours: float, paper: float | None) -> str:
    if not np.isfinite(ours):
        return "–"
    return f"{ours:.2f}" if paper is None else f"{ours:.2f} ({paper:.2f}, {ours - paper:+.2f})"


def _distance_table(labels: dict[str, list[Row]], generated: bool) -> Table:
    # Every label has seen the same sets, unless a run is missing.
    shares = _verbs(max(labels.values(), key=len))
    shares = 100 * shares / shares.sum()
    papers = AGREEMENT_ERROR if generated else {}
    body = []
    for place, distance in enumerate(DISTANCES):
        cells = [
            _beside(_mean(rows, f"agreement_error/{distance}"), papers[label][place] if label in papers else None)
            for label, rows in labels.items()
        ]
        verbs = f"{shares[place]:.1f} ({VERB_SHARES[place]:.1f})" if generated else f"{shares[place]:.1f}"
        body.append([str(distance), verbs, *cells])
    return Table(
        "Verb agreement error by distance from the noun",
        ["distance", "% of verbs", *labels],
        body,
        ("In brackets: Tong et al. 2007, Table 4, and the difference. " if generated else "") + "Guessing gives 0.50.",
    )


def _class_table(labels: dict[str, list[Row]], generated: bool) -> Table:
    body = []
    for label, rows in labels.items():
        paper = AUC[label] if generated and label in AUC else (None,) * len(_AUC_CLASSES)
        ours = [_mean(rows, f"auc/{name}") for name in _AUC_CLASSES]
        body.append([label, *map(_beside, ours, paper)])
    return Table(
        "Area under the ROC curve by word class",
        ["model", *_AUC_CLASSES.values()],
        body,
        "In brackets: Tong et al. 2007, Table 2 (whose row SRN(1000) is ESN(1000)), and the difference."
        if generated
        else "Guessing gives 0.50.",
    )


def _distance_figure(labels: dict[str, list[Row]], generated: bool) -> Figure:
    figure, axes = one_panel(8.5, 4.6)
    at = np.arange(len(DISTANCES))
    width = 0.84 / len(labels)
    marked = False
    for number, ((label, rows), colour) in enumerate(zip(labels.items(), colours(len(labels)), strict=True)):
        error = np.array([_mean(rows, f"agreement_error/{distance}") for distance in DISTANCES])
        verbs = np.maximum(_verbs(rows), 1)
        x = at + (number - (len(labels) - 1) / 2) * width
        axes.bar(x, error, 0.9 * width, color=colour, label=label)
        axes.errorbar(x, error, np.sqrt(error * (1 - error) / verbs), fmt="none", ecolor="0.35", elinewidth=1)
        if generated and label in AGREEMENT_ERROR:
            name = None if marked else "paper (Table 4)"
            axes.plot(x, AGREEMENT_ERROR[label], "D", markersize=4.5, label=name, clip_on=False, zorder=5, **_PAPER)
            marked = True
    axes.axhline(0.5, color="0.5", linewidth=1, linestyle="--", zorder=0)
    axes.text(-0.5, 0.51, "guessing", color="0.4", fontsize=9, va="bottom")
    axes.set_xticks(at, [str(distance) for distance in DISTANCES])
    axes.set(xlim=(-0.55, len(DISTANCES) - 0.45), ylim=(0, None))
    axes.set(xlabel="words from the noun to its verb (5 and 8 cannot occur)", ylabel="verb agreement error")
    axes.set_title("How often the wrong number is preferred for a verb\n(bars ± one binomial standard error)")
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _roc_figure(labels: dict[str, list[Row]]) -> Figure:
    figure, axes = one_panel(6.4, 4.6)
    # Denser where the curves are steep.
    grid = np.linspace(0, 1, 401) ** 2
    for (label, rows), colour in zip(labels.items(), colours(len(labels)), strict=True):
        curves = [
            np.interp(grid, row.evaluation.arrays["roc/false_alarm"], row.evaluation.arrays["roc/hit"]) for row in rows
        ]
        name = f"{label}, area {_mean(rows, 'auc'):.3f}"
        axes.plot(np.append(0, grid), np.append(0, np.mean(curves, axis=0)), color=colour, linewidth=1.8, label=name)
    axes.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--", label="guessing, area 0.500")
    axes.set(aspect="equal", xlim=(-0.01, 1), ylim=(0, 1.01))
    axes.set(xlabel="impossible word classes taken for possible", ylabel="possible word classes recognised")
    axes.set_title("Possible against impossible word classes (ROC)")
    axes.legend(loc="lower right", frameon=False)
    return figure


def _probe_figure(labels: dict[str, list[Row]]) -> Figure:
    shown, which = best(labels, "agreement", _SHOWN, largest=True)
    size = (2.2 + 2.6 * len(shown), 9.0)
    figure, grid = panels(*size, len(_PROBE), len(shown), sharex=True, sharey=True, squeeze=False)
    at = np.arange(len(VOCABULARY))
    for column, ((label, rows), colour) in enumerate(zip(shown.items(), colours(len(shown)), strict=True)):
        arrays = rows[0].evaluation.arrays
        grid[0, column].set_title(label)
        for row, word in enumerate(_PROBE):
            axes = grid[row, column]
            exact, output = arrays["probe/probabilities"][row], arrays["probe/outputs"][row]
            axes.bar(at, exact, 0.95, color="0.8", label="grammar")
            axes.bar(at, output, 0.5, color=colour, label="output")
            if column == 0:
                axes.set_ylabel(f"after\n“{word}”", rotation=0, ha="right", va="center", labelpad=14)
    for axes in grid[-1]:
        axes.set_xticks(at, [*VOCABULARY[:-1], "stop"], rotation=90, fontsize=7)
    grid[0, 0].set_ylim(0, 1.02)
    grid[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle("Which word comes next in “boy who walks sees cats .”: outputs and true probabilities" + which)
    return figure
