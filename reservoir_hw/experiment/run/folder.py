"""Writing into a run folder: whole files or none."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replace_file, replacing
from reservoir_hw.core.provenance import Difference, as_plain, first_change


def new_run_folder(parent: str | Path, name: str) -> Path:
    """Make and return `parent/name-DATE-TIME`, with a number behind it if that exists already."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = Path(parent) / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except NotADirectoryError:
            raise ConfigurationError(f"run.folder: {parent} is a file, not a folder") from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"run.folder: cannot make the run folder {folder}: {getattr(error, 'strerror', None) or error}; "
                "choose another with --set run.folder=PATH"
            ) from error
        return folder
    raise ConfigurationError(f"run.folder: {parent} holds too many runs named {stem}")


def begun_run_folder(path: str | Path, resolved: dict[str, Any]) -> Path:
    """The folder of an earlier run of the same experiment, to go on in.

    Raises `ConfigurationError` if it is none, or what decides about the results is not the same.
    """
    folder = Path(path)
    if not (folder / "experiment.yaml").is_file():
        raise ConfigurationError(f"run.resume: {folder} is not the folder of a run: it has no experiment.yaml")
    change, begun_point = change_since(folder, resolved), point_of(folder)
    if change is None and begun_point != resolved["run"]["point"]:
        change = Difference(("run", "point"), begun_point, resolved["run"]["point"])
    if change is not None:
        raise ConfigurationError(
            f"run.resume: {folder} was begun with {change.key} {change.before}, now it is {change.now}: change "
            "it back, or begin a new run (run.resume=null)"
        )
    return folder


def change_since(folder: Path, resolved: dict[str, Any]) -> Difference | None:
    """What decides about the results and was another thing when this run folder was begun."""
    begun, now = _resolved_of(folder), json.loads(json.dumps(resolved))
    sections = ("task", "reservoir", "readout", "training", "baselines", "vary")
    changes = (first_change(begun.get(section), now[section], (section,)) for section in sections)
    return next((change for change in changes if change is not None), None)


def point_of(folder: Path) -> int | None:
    """The number of the point that was run alone in a run folder, or None if all were."""
    return (_resolved_of(folder).get("run") or {}).get("point")


def _resolved_of(folder: Path) -> dict[str, Any]:
    return Document.from_file(folder / "experiment.yaml").data


def rows_in(folder: Path) -> int:
    """How many rows are in a run folder."""
    try:
        return len(json.loads((folder / "metrics.json").read_text())["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def to_json(value: Any) -> str:
    """Indented JSON; numpy numbers become plain ones, what JSON does not know becomes text."""
    return json.dumps(value, indent=2, default=as_plain)


def write_json(path: Path, value: Any) -> None:
    """As `to_json`."""
    replace_file(path, to_json(value) + "\n")


def write_array(path: Path, array: np.ndarray) -> None:
    """An npy file."""
    with replacing(path) as partial, partial.open("wb") as file:
        np.save(file, array)


def to_yaml(value: dict[str, Any]) -> str:
    """YAML in the order of the keys; `reservoir-hw run` can read it again."""
    from ruamel.yaml import YAML

    text = io.StringIO()
    YAML().dump(value, text)
    return text.getvalue()


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """As `to_yaml`."""
    replace_file(path, to_yaml(value))
