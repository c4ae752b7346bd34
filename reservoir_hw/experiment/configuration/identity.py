"""What decides that a result is unchanged: settings, and the content of the files that they name."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Config, Document, decisive
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.functions import look_in_current_folder
from reservoir_hw.core.provenance import first_change, plain
from reservoir_hw.experiment.configuration.experiment import TrainingConfig
from reservoir_hw.experiment.configuration.sweep import SweepConfig
from reservoir_hw.tasks.datasets import found_file


def deciding_states(task: Config, reservoir: Config, training: TrainingConfig, inputs: str = "") -> dict[str, Any]:
    """What decides about the states: task, reservoir, how it is driven, and the content of files that are named.

    Where the task has a digest of its `inputs`, that alone: targets have no influence on states.
    """
    of_task = {"inputs": inputs} if inputs else decisive(task)
    sections = {"task": of_task, "reservoir": decisive(reservoir), "training": decisive(training)}
    return {**sections, "files": dict(contents(sections))}


def contents(value: Any) -> Iterator[tuple[str, str]]:
    """Every text that names a file, a store or a function (module:name), with a digest of its present content."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from contents(item)
    elif isinstance(value, str):
        for path in _files_of(value):
            yield value, hashlib.sha256(path.read_bytes()).hexdigest()


def _files_of(text: str) -> Iterator[Path]:
    # Looking for a module imports the packages around it, which may raise anything; opening the device will say so.
    with contextlib.suppress(Exception):
        if re.fullmatch(r"[\w.]+:[\w.]+", text):
            # As `kind: python` finds it: the key must be the same before and after the device was opened.
            look_in_current_folder()
            found = importlib.util.find_spec(text.partition(":")[0])
            if found is not None and found.origin is not None and Path(found.origin).is_file():
                yield Path(found.origin)
        elif (Path(text) / "zarr.json").is_file():
            # A store: its attributes name what it came from, and when.
            yield Path(text) / "zarr.json"
        else:
            yield found_file(text, "")


# ---- What must be the same for the trials of a sweep to be compared.


# What neither decides about a trial's result nor about what it is compared with.
_INDIFFERENT = {"title", "run", "baselines", "sweep"}


def identity_of(resolved: Mapping[str, Any], config: SweepConfig, space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Everything in a resolved configuration that decides about trials, and the content of the files that it names."""
    decisive = {key: value for key, value in plain(resolved).items() if key not in _INDIFFERENT}
    decisive["reservoir"].pop("search", None)
    for key in space:
        _forget(decisive, key)
    decisive["sweep"] = {
        "metric": config.metric,
        "direction": config.direction,
        "search": {key: dimension.model_dump(mode="json") for key, dimension in space.items()},
    }
    return {**decisive, "files": dict(contents(decisive))}


def check_identity(known: dict[str, Any], identity: dict[str, Any], document: Document, study: str) -> None:
    """Raise `ConfigurationError` that names the first thing in which the experiment is not that of the study."""
    change = first_change(known, plain(identity))
    if change is None:
        return
    place = change.place
    advice = "change it back, or begin another study with --name"
    if place[0] == "files":
        raise ConfigurationError(f"the content of {place[1]} has changed since {study} was begun; {advice}")
    raise ConfigurationError(
        f"{document.origin(place)}: {change.key} is {change.now!r}, but {study} was begun with {change.before!r}; "
        f"{advice}"
    )


def _forget(section: Any, dotted: str) -> None:
    """Remove a key: a base value that every trial replaces decides about nothing."""
    *path, last = dotted.split(".")
    for key in path:
        section = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict):
        section.pop(last, None)
