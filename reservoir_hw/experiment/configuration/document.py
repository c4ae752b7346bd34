"""An experiment or reservoir file with everything that goes over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.configuration.swap import replace_reservoir
from reservoir_hw.experiment.configuration.varying import varied_keys

_OVER_FILES = ("--set ", "set[", "environment variable ")
"""How origins of values begin that were laid over a file."""


def load_document(
    path: str | Path,
    *,
    reservoir: str | Path | None = None,
    set: Mapping[str, Any] | Iterable[str] | None = None,
    environment: Mapping[str, str] | None = None,
    strict: bool = False,
) -> Document:
    """A file with everything that goes over it, in the order file < reservoir < environment < set.

    Keys of `set` are those of an experiment. For a reservoir file they may be written without `reservoir.` in front.
    Raises `ConfigurationError` for one that varies, and with `strict` where `reservoir` leaves something out.
    """
    document = Document.from_file(path)
    if reservoir is not None:
        other = Document.from_file(reservoir)
        if "kind" not in other.data:
            what = "it is an experiment file; " if "task" in other.data else ""
            raise ConfigurationError(f"{reservoir}:1: {what}a reservoir file has `kind:` at its top")
        replace_reservoir(document, other, strict=strict)
    is_reservoir = "kind" in document.data
    section = "reservoir." if is_reservoir else ""
    document.set_environment(environment, prefix=("reservoir",) if is_reservoir else ())
    if isinstance(set, Mapping):
        for key, value in set.items():
            document.set(key.removeprefix(section), value, f"set[{key!r}]")
    else:
        for assignment in [set] if isinstance(set, str) else set or ():
            document.set_option(assignment.removeprefix(section))
    _refuse_set_on_axes(document)
    return document


def _refuse_set_on_axes(document: Document) -> None:
    """What varies has its values from `vary`: one that is set beside them would have no effect."""
    for key, place in varied_keys(document, at_all_points=True).items():
        where = tuple(key.split("."))
        for found, origin in document.origins.items():
            if found[: len(where)] == where and origin.startswith(_OVER_FILES):
                axis = ".".join(map(str, place))
                instead = f": set the axis (--set '{axis}=[...]'), or remove it (--set {axis}=null)"
                raise ConfigurationError(
                    f"{origin}: {key} varies ({document.origin(place)}), so that this would have no effect"
                    + ("" if any(isinstance(part, int) for part in place) else instead)
                )
