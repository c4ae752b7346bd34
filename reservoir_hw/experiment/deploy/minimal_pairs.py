"""BLiMP, the Benchmark of Linguistic Minimal Pairs (Warstadt et al. 2020), with published accuracies."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.datasets import FOLDER_VARIABLE

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
    about = {key: str(found[0][key]) for key in ("UID", "linguistics_term", "field")}
    about = {key: _MERGED.get(value, value) for key, value in about.items()}
    pairs = [(one["sentence_good"], one["sentence_bad"]) for one in found[:most]]
    uid = about["UID"]
    return Paradigm(uid, about["linguistics_term"], about["field"], pairs, published.get(uid, {}))


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
