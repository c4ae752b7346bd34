"""A trained language model judged on minimal pairs: how often it finds the acceptable sentence more probable."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.tokenizer import BpeTokenizer, Documents, joined
from reservoir_hw.experiment.deploy.trained import trained_baseline, trained_row
from reservoir_hw.experiment.run.by_gradients import model_of, opened_model
from reservoir_hw.experiment.run.report import complete
from reservoir_hw.experiment.run.result import InFolder, new_run_folder
from reservoir_hw.experiment.states.progress import Progress, StepCounter
from reservoir_hw.readout.baselines.ngram import NGram
from reservoir_hw.tasks.datasets import FOLDER_VARIABLE
from reservoir_hw.tasks.task import Table, Tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# As shipped, one field and one phenomenon of the paper have two spellings.
_MERGED = {"syntax/semantics": "syntax_semantics", "s-selection": "argument_structure"}

PUBLISHED = {"ngram": "5-gram", "lstm": "LSTM", "txl": "Transformer-XL", "gpt2": "GPT-2"}
"""Models with published accuracies: their name in the file, and for people."""


@dataclass(frozen=True)
class Paradigm:
    """The pairs of one UID: of two sentences, the first is acceptable. `published` are accuracies by model."""

    uid: str
    phenomenon: str
    field: str
    pairs: list[tuple[str, str]]
    published: dict[str, float]


def read_blimp(folder: str | Path | None = None, *, most: int | None = None) -> list[Paradigm]:
    """All paradigms, in the order of their UIDs, with at most so many pairs of each.

    `folder` has `BLiMP.zip`, and perhaps `models_summary.jsonl` and `human_validation_summary.csv`; by default it is
    `blimp` in the folder of `RESERVOIR_HW_DATA`. Raises `ConfigurationError` where it is not there, or damaged.
    """
    if folder is None:
        data = os.environ.get(FOLDER_VARIABLE)
        if data is None:
            raise ConfigurationError(
                f"BLiMP is looked for in the folder blimp of {FOLDER_VARIABLE}, which is not set: set it, or name the "
                "folder with --data (github.com/alexwarstadt/blimp has BLiMP.zip)"
            )
        folder = Path(data) / "blimp"
    folder = Path(folder)
    try:
        published = _published(folder)
        with zipfile.ZipFile(folder / "BLiMP.zip") as archive:
            names = sorted(name for name in archive.namelist() if Path(name).match("data/[!.]*.jsonl"))
            return [_paradigm(archive.read(name).decode(), published, most) for name in names if "__MACOSX" not in name]
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no {error.filename}") from None
    except (OSError, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise ConfigurationError(f"{folder}/BLiMP.zip is damaged: {error}; copy it again") from error


def _paradigm(lines: str, published: dict[str, dict[str, float]], most: int | None) -> Paradigm:
    found = [json.loads(line) for line in lines.splitlines()]
    said = (str(found[0][key]) for key in ("UID", "linguistics_term", "field"))
    uid, phenomenon, field = (_MERGED.get(one, one) for one in said)
    pairs = [(one["sentence_good"], one["sentence_bad"]) for one in found[:most]]
    return Paradigm(uid, phenomenon, field, pairs, published.get(uid, {}))


def _published(folder: Path) -> dict[str, dict[str, float]]:
    """By UID, then by model and "human"; nothing where the files are not there."""
    found: dict[str, dict[str, float]] = {}
    models, people = folder / "models_summary.jsonl", folder / "human_validation_summary.csv"
    if models.is_file():
        for line in models.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            found[one["UID"]] = {name: one[key] for key, name in PUBLISHED.items()}
    if people.is_file():
        for row in csv.DictReader(io.StringIO(people.read_text(encoding="utf-8"))):
            if row["Condition"] in found:
                found[row["Condition"]]["human"] = float(row["total_mean"])
    return found


UNTRAINED, UNIGRAM, BIGRAM, SHORTER = "untrained", "unigram", "bigram", "the shorter one"
_RESAMPLES = 2000

Scores = Mapping[str, np.ndarray]
"""By UID: of each pair 1 where the acceptable sentence scores higher, 1/2 where both score the same (pairs,)."""


@dataclass(kw_only=True)
class BlimpResult(InFolder):
    """Accuracies of a model and of what it must beat, by UID, from the log-probabilities of whole sentences.

    `scores` are by sums over the tokens, `per_token` by means. "The shorter one" takes the sentence with fewer tokens.
    """

    model: str
    paradigms: Sequence[Paradigm]
    scores: dict[str, Scores]
    per_token: dict[str, Scores]

    def accuracies(self, scores: Scores) -> np.ndarray:
        """Of each UID, in the order of `paradigms`."""
        return np.array([scores[one.uid].mean() for one in self.paradigms])

    def published(self, name: str) -> np.ndarray:
        """Accuracies of a published model, or of people; NaN where they are not known."""
        return np.array([one.published.get(name, np.nan) for one in self.paradigms])

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""

        def by_uid(of: dict[str, Scores]) -> dict[str, dict[str, float]]:
            return {name: {uid: float(one.mean()) for uid, one in found.items()} for name, found in of.items()}

        return {
            **super().metrics,
            "model": self.model,
            "pairs": sum(len(one.pairs) for one in self.paradigms),
            "accuracy": {name: float(self.accuracies(found).mean()) for name, found in self.scores.items()},
            "by_uid": by_uid(self.scores),
            "by_uid_per_token": by_uid(self.per_token),
        }

    def tables(self) -> list[Table]:
        """Accuracies by field, differences with intervals, and accuracies by phenomenon."""
        known = [name for name in (*PUBLISHED.values(), "human") if not np.isnan(self.published(name)).any()]
        rows = {name: self.accuracies(found) for name, found in self.scores.items()}
        rows |= {f"{name}, per token": self.accuracies(found) for name, found in self.per_token.items()}
        rows |= {f"published: {name}": self.published(name) for name in known}
        fields = list(dict.fromkeys(one.field for one in self.paradigms))
        body = [
            [name, _percent(found), *(f"{100 * found[self._in('field', field)].mean():.1f}" for field in fields)]
            for name, found in rows.items()
        ]
        note = "Percent of pairs where the acceptable sentence is more probable. Intervals: 95 %, over the paradigms."
        tables = [Table("BLiMP", ["model", "all", *fields], body, note)]
        own = self.accuracies(self.scores[self.model])
        body = [[f"{self.model} - {name}", _percent(own - rows[name])] for name in self.scores if name != self.model]
        tables.append(Table("Differences", ["", "percent"], body, "With intervals of 95 %, over the paradigms."))
        shown = [self.model, UNTRAINED, *(f"published: {name}" for name in known if name in ("GPT-2", "human"))]
        phenomena = sorted({one.phenomenon for one in self.paradigms})
        body = [
            [name, *(f"{100 * rows[one][self._in('phenomenon', name)].mean():.1f}" for one in shown)]
            for name in phenomena
        ]
        return [*tables, Table("By phenomenon", ["phenomenon", *shown], body)]

    def figures(self) -> dict[str, Figure]:
        """Accuracies by phenomenon. Needs the `report` extra."""
        from reservoir_hw.core.figure_style import one_panel

        phenomena = sorted({one.phenomenon for one in self.paradigms})
        figure, axes = one_panel(8.0, 1.6 + 0.35 * len(phenomena))
        looks: dict[str, dict[str, Any]] = {
            self.model: {"color": "#26547c", "marker": "o", "markersize": 7},
            UNTRAINED: {"color": "0.6", "marker": "s", "markersize": 5},
            "GPT-2": {"color": "#d1495b", "marker": "x", "markersize": 6},
            "human": {"color": "black", "marker": "|", "markersize": 10},
        }
        for name, look in looks.items():
            found = self.accuracies(self.scores[name]) if name in self.scores else self.published(name)
            means = [100 * found[self._in("phenomenon", one)].mean() for one in phenomena]
            if not np.isnan(means).any():
                axes.plot(means, range(len(phenomena)), linestyle="", label=name, **look)
        axes.axvline(50, color="0.8", linewidth=1, linestyle="--")
        axes.set_yticks(range(len(phenomena)), [name.replace("_", " ") for name in phenomena])
        axes.invert_yaxis()
        axes.set_xlabel("accuracy (%; dashed: guessing)")
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        return {"by_phenomenon": figure}

    def _in(self, key: str, value: str) -> np.ndarray:
        return np.array([getattr(one, key) == value for one in self.paradigms])


def blimp(
    run: str | Path,
    *,
    row: int | None = None,
    baseline: int | None = None,
    data: str | Path | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> BlimpResult:
    """Judge the language model of a run folder on BLiMP; its reservoir is opened and driven.

    Parameters
    ----------
    run, row, baseline
        A run folder, and which of its rows, by default the only one; or which of its trained baselines, from 0.
    data
        The folder with `BLiMP.zip`; by default `blimp` in that of `RESERVOIR_HW_DATA`.
    most
        Pairs of each of the 67 paradigms; by default all 1000.

    A new folder in `run.folder` gets metrics, a figure and a report. Raises `ConfigurationError` for a readout that is
    no language model, for a text that is not there any more, and for a vocabulary without these sentences.
    """
    from reservoir_hw.readout.models.configuration import TokenModelConfig
    from reservoir_hw.readout.models.token_model import log_probabilities
    from reservoir_hw.readout.training import load_weights

    trained = trained_row(run, row) if baseline is None else trained_baseline(run, baseline)
    config = trained.point.config
    if not isinstance(config.readout, TokenModelConfig):
        raise ConfigurationError(f"{run}: readout {config.readout.kind} is no language model, and has no sentences")
    paradigms = read_blimp(data, most=most)
    text = model_of(config).tokens_of(config.task.build())
    sentences = _encoded(text, paradigms)
    resolved = config.model_dump(mode="json", serialize_as_any=True)
    counter = StepCounter(progress, 2 * sum(map(len, sentences)))
    with opened_model(trained.point, text) as (model, devices):
        counter.say(f"{trained.label}: before the training")
        untrained = log_probabilities(model, sentences, counter.add)
        load_weights(model, trained.file())
        counter.say(f"{trained.label}: judging")
        own = log_probabilities(model, sentences, counter.add)
        records = [{"label": trained.label, "reservoir": device.provenance()} for device in devices]
    lengths = np.array([len(one) - 1 for one in sentences])
    counts = np.bincount(joined(text.tokens_train), minlength=text.vocabulary) + 1
    unigram, bigram = np.log(counts / counts.sum()), NGram(text.tokens_train, text.vocabulary, 2)
    found = {
        trained.label: own,
        UNTRAINED: untrained,
        # Rounded once: sentences with the same tokens, in whatever order, are a tie.
        BIGRAM: np.array([math.fsum(np.log(bigram.judged(one)[0])) for one in sentences]),
        UNIGRAM: np.array([math.fsum(unigram[one[1:]]) for one in sentences]),
        SHORTER: -lengths.astype(float),
    }
    result = BlimpResult(
        title=f"BLiMP: {trained.label}",
        folder=new_run_folder(config.run.folder, f"blimp-{Path(run).resolve().name}"),
        provenance={**provenance.collect(resolved), "rows": records},
        model=trained.label,
        paradigms=paradigms,
        scores={name: _scores(paradigms, values) for name, values in found.items()},
        per_token={name: _scores(paradigms, found[name] / lengths) for name in (trained.label, UNTRAINED)},
    )
    complete(result)
    return result


def _encoded(text: Tokens, paradigms: Sequence[Paradigm]) -> list[np.ndarray]:
    """Good and bad sentence of each pair in turn, each behind the token that begins a text.

    Where a model has learned from sentences, the token that ends one is judged, too (Ueda et al. 2025, eq. 5).
    """
    begin = BpeTokenizer.END if isinstance(text.tokenizer, BpeTokenizer) else "\n"
    end = BpeTokenizer.END if isinstance(text.tokens_train, Documents) else ""
    encode: Callable[[str], np.ndarray] = text.encode
    try:
        return [
            encode(f"{begin}{sentence}{end}").astype(np.int64)
            for one in paradigms
            for pair in one.pairs
            for sentence in pair
        ]
    except InputRangeError as error:
        raise ConfigurationError(f"a sentence of BLiMP cannot be encoded: {error} (task.unknown: token)") from error


def _scores(paradigms: Sequence[Paradigm], values: np.ndarray) -> Scores:
    """From a number for each sentence, good and bad in turn."""
    good, bad = values[::2], values[1::2]
    higher = (good > bad) + 0.5 * (good == bad)
    ends = np.cumsum([len(one.pairs) for one in paradigms])
    return {one.uid: part for one, part in zip(paradigms, np.split(higher, ends[:-1]), strict=True)}


def _percent(values: np.ndarray) -> str:
    """The mean in percent with its interval of 95 %, by bootstrap over the paradigms."""
    drawn = generator(0, "bootstrap").integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(100 * values[drawn].mean(axis=1), [2.5, 97.5])
    return f"{100 * values.mean():.1f} [{low:.1f}, {high:.1f}]"
