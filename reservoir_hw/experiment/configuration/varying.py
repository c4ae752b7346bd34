"""Where in an experiment file values of keys may vary, and which keys do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reservoir_hw.core.configuration import Document, Location
from reservoir_hw.core.errors import ConfigurationError

WHOLE = ("task", "reservoir", "readout")
"""Sections that may vary as a whole."""


def unnamed(key: str, value: Any) -> Any:
    """A section that varies without its `label`, which only a reservoir has as a key of its own."""
    if key == "reservoir" or not isinstance(value, dict):
        return value
    return {name: one for name, one in value.items() if name != "label"}


def one_reservoir(document: Document) -> Document:
    """A copy in which the reservoir does not vary."""
    here = Document.copy_of(document)
    section = here.data.get("reservoir")
    for axes in ("vary", "search"):
        if isinstance(section, dict) and axes in section:
            here.remove(("reservoir", axes))
    return here


def check_places(document: Document) -> None:
    """Raise `ConfigurationError` for a key of `vary` or `sweep.search` that belongs elsewhere or stands there, too."""
    section = document.data.get("reservoir")
    own: dict[str, Location] = {}
    for axes in ("vary", "search"):
        for key, place in _places(section, ("reservoir", axes)) if isinstance(section, dict) else ():
            own[f"reservoir.{key}"] = place
    found: dict[str, Location] = {}
    for at in (("vary",), ("sweep", "search")):
        holder = document.data if at == ("vary",) else document.data.get("sweep")
        for key, place in _places(holder, at) if isinstance(holder, dict) else ():
            _check_key(document, place)
            if key.startswith("reservoir.") and not isinstance(place[-2], int):
                own_key = key.removeprefix("reservoir.")
                raise ConfigurationError(
                    f"{document.origin(place)}: {key} belongs into the section `reservoir`, as {at[-1]}: "
                    f"{{{own_key}: ...}}: so it goes with the reservoir when that is replaced"
                )
            found[key] = place
    for key, place in found.items():
        clash = next((one for one in own if f"{one}.".startswith(f"{key}.") or key.startswith(f"{one}.")), None)
        if clash is not None:
            raise ConfigurationError(
                f"{document.origin(place)}: {key} stands here and in {'.'.join(map(str, own[clash][:2]))} "
                f"({document.origin(own[clash])}); remove one"
            )
    baselines = document.data.get("baselines") or []
    for number, baseline in enumerate(baselines if isinstance(baselines, list) else []):
        for axes in ("vary", "search"):
            if isinstance(baseline, dict) and axes in baseline:
                where = document.origin(("baselines", number, axes))
                raise ConfigurationError(f"{where}: a baseline does not vary: list it once for each value")


def varied_keys(document: Document, *, at_all_points: bool = False) -> dict[str, Location]:
    """The full keys of everything that varies, or that every point of the experiment sets, and where each stands."""
    section = document.data.get("reservoir")
    found: dict[str, Location] = {}
    for holder, at in ((section, ("reservoir", "vary")), (document.data, ("vary",))):
        if not isinstance(holder, dict):
            continue
        axes, prefix = holder.get("vary"), "reservoir." if len(at) > 1 else ""
        for key, place in _places(holder, at):
            if not at_all_points or isinstance(axes, dict) or all(key in row for row in axes or ()):
                found[prefix + key] = place
    return found


def _places(holder: Mapping[str, Any], at: Location) -> Iterator[tuple[str, Location]]:
    """The keys of the axes that stand at a place, and where each stands."""
    axes = holder.get(str(at[-1]))
    if isinstance(axes, dict):
        yield from ((key, (*at, key)) for key in axes)
    elif isinstance(axes, list):
        yield from (
            (key, (*at, number, key)) for number, row in enumerate(axes) if isinstance(row, dict) for key in row
        )


def _check_key(document: Document, place: Location) -> None:
    """Raise `ConfigurationError` unless the last part of `place` is a key of which values may be tried."""
    *sections, key = map(str, place)
    if key not in WHOLE and (key.partition(".")[0] not in {*WHOLE, "training"} or "." not in key):
        raise ConfigurationError(
            f"{document.origin(place)}: {'.'.join(sections)}: {key!r} must lie in task, readout or training, for "
            "instance readout.alpha, or be the whole of task, reservoir or readout"
        )
