"""What must be the same for trials to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.differences import first_change
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.provenance import plain
from reservoir_hw.experiment.configuration.search import SweepConfig
from reservoir_hw.experiment.states.harvest import contents

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
