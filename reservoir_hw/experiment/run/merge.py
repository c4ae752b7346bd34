"""Runs of single points (`run.point`) as one result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replacing
from reservoir_hw.experiment.run.result import Result, change_since, point_of
from reservoir_hw.tasks.task import Evaluation, Row

# The folders of a run that its rows name. What only an interrupted training needs is left behind.
_KEPT = ("readout", "outputs", "samples", "training")
_LEFT = shutil.ignore_patterns("checkpoint.safetensors", "states-*")


@dataclass(frozen=True)
class Part:
    """The run of a point: its rows, with those of the baselines that belong to it, and what was recorded of them."""

    number: int
    folder: Path
    rows: list[Row]
    warnings: list[str]
    provenance: dict[str, Any]


def keep_arrays(result: Result) -> None:
    """Keep the arrays of all rows in the run folder, as the figures of the merged result need them."""
    (result.folder / "arrays").mkdir(exist_ok=True)
    for number, row in enumerate(result.rows):
        arrays: dict[str, Any] = row.evaluation.arrays
        with replacing(_arrays(result.folder, number)) as partial, partial.open("wb") as file:
            np.savez(file, **arrays)


def parts_of(folders: Sequence[Path], resolved: dict[str, Any], points: int) -> list[Part]:
    """The runs of all points, in their order.

    Raises `ConfigurationError` where a folder is of another experiment or is not complete, or a point is missing or
    there twice.
    """
    found: dict[int, Part] = {}
    for folder in folders:
        part = _part(folder, resolved)
        if part.number in found:
            raise ConfigurationError(f"point {part.number} is there twice: in {found[part.number].folder} and {folder}")
        found[part.number] = part
    missing = [number for number in range(points) if number not in found]
    if missing:
        shown = ", ".join(map(str, missing[:20])) + (" and more" if len(missing) > 20 else "")
        raise ConfigurationError(
            f"of {points} points these are missing: {shown}; run them with --set run.point=K, and give their folders"
        )
    return [found[number] for number in range(points)]


def records_of(parts: Sequence[Part]) -> dict[str, Any]:
    """What the provenance of the merged run says of its rows, and of the runs that they come from."""
    own = ("time", "host", "seconds")
    return {
        "rows": [row for part in parts for row in part.provenance["rows"]],
        "baselines": [row for part in parts for row in part.provenance.get("baselines", [])],
        "merged": [
            {"folder": str(part.folder), **{key: part.provenance[key] for key in own if key in part.provenance}}
            for part in parts
        ],
    }


def copy_files(part: Part, folder: Path) -> None:
    """Copy what the rows of a part name into the merged run folder. The names of two parts are never the same."""
    for name in _KEPT:
        if (part.folder / name).is_dir():
            shutil.copytree(part.folder / name, folder / name, dirs_exist_ok=True, ignore=_LEFT)


def _part(folder: Path, resolved: dict[str, Any]) -> Part:
    try:
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        number = point_of(folder)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{folder} is not the folder of a run: {error}") from error
    if number is None:
        raise ConfigurationError(f"{folder} is no run of a single point (--set run.point=K): it has all of them")
    change = change_since(folder, resolved)
    if change is not None:
        raise ConfigurationError(
            f"{folder} is of another experiment: {change.key} was {change.before}, here it is {change.now}"
        )
    if metrics["status"] != "complete":
        raise ConfigurationError(
            f"{folder} is {metrics['status']}: point {number} has to be run again, or gone on with (run.resume)"
        )
    rows = [_row(folder, number, row) for number, row in enumerate(metrics["rows"])]
    return Part(number, folder, rows, metrics["warnings"], provenance)


def _row(folder: Path, number: int, kept: dict[str, Any]) -> Row:
    with np.load(_arrays(folder, number)) as arrays:
        evaluation = Evaluation(kept["metrics"], dict(arrays))
    details = {key: value for key, value in kept.items() if key not in ("label", "point", "metrics")}
    return Row(kept["label"], kept["point"], evaluation, details)


def _arrays(folder: Path, number: int) -> Path:
    return folder / "arrays" / f"{number:03d}.npz"
