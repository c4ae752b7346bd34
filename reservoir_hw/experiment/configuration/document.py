"""An experiment or reservoir file with everything that goes over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError


def load_document(
    path: str | Path,
    *,
    reservoir: str | Path | None = None,
    set: Mapping[str, Any] | Iterable[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Document:
    """A file with everything that goes over it, in the order file < reservoir < environment < set.

    Keys of `set` are those of an experiment. For a reservoir file they may be written without `reservoir.` in front.
    """
    document = Document.from_file(path)
    if reservoir is not None:
        other = Document.from_file(reservoir)
        if "kind" not in other.data:
            what = "it is an experiment file; " if "task" in other.data else ""
            raise ConfigurationError(f"{reservoir}:1: {what}a reservoir file has `kind:` at its top")
        document.replace("reservoir", other)
    is_reservoir = "kind" in document.data
    section = "reservoir." if is_reservoir else ""
    document.set_environment(environment, prefix=("reservoir",) if is_reservoir else ())
    if isinstance(set, Mapping):
        for key, value in set.items():
            document.set(key.removeprefix(section), value, f"set[{key!r}]")
    else:
        for assignment in [set] if isinstance(set, str) else set or ():
            document.set_option(assignment.removeprefix(section))
    return document
