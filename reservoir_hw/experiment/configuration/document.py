"""An experiment or reservoir file with everything that goes over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reservoir_hw.core.configuration import Document, Location
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.configuration.varying import places, varied_keys


def replace_reservoir(document: Document, file: Document, *, strict: bool = False) -> None:
    """Put a reservoir file in the place of the section `reservoir`, and take out what belonged to the old one.

    Each thing that is taken out gets a sentence in `document.left_out`; with `strict` it is a `ConfigurationError`.
    """
    document.replace("reservoir", file)
    for at in (("vary",), ("sweep", "search")):
        if (*at, "reservoir") in [place for _, place in places(document, at)]:
            _say(document, (*at, "reservoir"), "whole reservoirs in the place of the one that is there now")
            document.remove((*at, "reservoir"))
    if isinstance(document.data.get("vary"), list):
        _without_keys(document)
    sweep = document.data.get("sweep")
    if isinstance(sweep, dict) and not sweep.get("search") and not file.data.get("search"):
        _say(document, ("sweep",), "all that it searched belonged to the replaced reservoir")
        document.remove(("sweep",))
    baselines = document.data.get("baselines")
    for number, baseline in enumerate(baselines if isinstance(baselines, list) else []):
        if isinstance(baseline, dict) and baseline.get("kind") == "encoder_only" and "of" in baseline:
            _say(document, ("baselines", number, "of"), "encoder_only takes the encoder of the reservoir that is there")
            document.remove(("baselines", number, "of"))
    if strict and document.left_out:
        raise ConfigurationError("--strict: " + "; ".join(document.left_out))


def _say(document: Document, place: Location, what: str) -> None:
    document.left_out.append(f"{document.origin(place)}: {'.'.join(map(str, place))}: {what}")


def _without_keys(document: Document) -> None:
    rows: list[Any] = document.data["vary"]
    kept: list[Any] = []
    gone: set[str] = set()
    for row in rows:
        here = {key: value for key, value in row.items() if key.partition(".")[0] != "reservoir"}
        gone |= row.keys() - here.keys()
        if here not in kept:
            kept.append(here)
    if not gone:
        return
    became = "" if len(kept) == len(rows) else f"; {len(rows)} rows become {len(kept)}"
    _say(document, ("vary",), f"{', '.join(sorted(gone))} belonged to the replaced reservoir{became}")
    document.set("vary", kept if any(kept) else {}, document.origin(("vary",)))


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
