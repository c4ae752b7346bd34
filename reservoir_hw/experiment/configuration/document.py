"""An experiment or reservoir file with everything that goes over it, which of its keys vary, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reservoir_hw.core.configuration import Document, Location
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig

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
    own = dict([*places(document, ("reservoir", "vary")), *places(document, ("reservoir", "search"))])
    found: dict[str, Location] = {}
    for at in (("vary",), ("sweep", "search")):
        for key, place in places(document, at):
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

    def is_wanted(place: Location, axes: Any) -> bool:
        return not at_all_points or isinstance(axes, dict) or all(place[-1] in row for row in axes)

    both = (("reservoir", "vary"), ("vary",))
    return {key: place for at in both for key, place in places(document, at) if is_wanted(place, document.at(at))}


def places(document: Document, at: Location) -> Iterator[tuple[str, Location]]:
    """The full keys of the axes that stand at a place, if any do, and where each stands."""
    axes: Any = document.data
    for part in at:
        axes = axes.get(part) if isinstance(axes, dict) else None
    prefix = "reservoir." if at[0] == "reservoir" else ""
    if isinstance(axes, dict):
        yield from ((f"{prefix}{key}", (*at, key)) for key in axes)
    elif isinstance(axes, list):
        rows = ((number, row) for number, row in enumerate(axes) if isinstance(row, dict))
        yield from ((f"{prefix}{key}", (*at, number, key)) for number, row in rows for key in row)


def _check_key(document: Document, place: Location) -> None:
    """Raise `ConfigurationError` unless the last part of `place` is a key of which values may be tried."""
    *sections, key = map(str, place)
    if key not in WHOLE and (key.partition(".")[0] not in {*WHOLE, "training"} or "." not in key):
        raise ConfigurationError(
            f"{document.origin(place)}: {'.'.join(sections)}: {key!r} must lie in task, readout or training, for "
            "instance readout.alpha, or be the whole of task, reservoir or readout"
        )


# ---- Names of models in tables: rows of one name are repetitions, so what differs beside data and seeds shows in it.


def key_names(keys: Iterable[str]) -> dict[str, str]:
    """For each dotted key the shortest end of it that no other key has."""
    parts = {key: key.split(".") for key in keys}
    found = {}
    for key, own in parts.items():
        others = [other for name, other in parts.items() if name != key]
        alone = (count for count in range(1, len(own)) if all(own[-count:] != other[-count:] for other in others))
        found[key] = ".".join(own[-next(alone, len(own)) :])
    return found


def short(value: Any) -> str:
    """A value in few letters; a whole section without its seeds."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        rest = ", ".join(
            f"{key}={short(item)}" for key, item in value.items() if key != "kind" and not key.endswith("seed")
        )
        return f"{value.get('kind', '')}({rest})" if rest else str(value.get("kind", ""))
    return f"{value:g}" if isinstance(value, float) else str(value)


def called(points: Sequence[Mapping[str, Any]], names: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
    """What the values of each point are called, by their keys.

    A section is called by its `label`, or else by its name, which is its kind if `names` has none, and by what it has
    other than those of the same key and name.
    """
    found: list[dict[str, str]] = [{} for _ in points]
    for key in dict.fromkeys(key for point in points for key in point):
        having = [number for number, point in enumerate(points) if key in point]
        values = [points[number][key] for number in having]
        own = [
            _name(value, names[number].get(key) if names else "") for number, value in zip(having, values, strict=True)
        ]
        sections = [value if isinstance(value, Mapping) else {} for value in values]
        for number, text in zip(having, _told_apart(own, sections), strict=True):
            found[number][key] = text
    return found


def baseline_labels(baselines: Sequence[BaselineConfig | ReservoirConfig | TokenModelConfig]) -> list[str]:
    """Their labels; where different ones have the same, with what differs between them, but how they are trained."""
    names = [one.name if isinstance(one, ReservoirConfig) else one.label for one in baselines]
    return _told_apart(names, [one.model_dump(mode="json", exclude={"training"}) for one in baselines])


def differences(sections: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of each section is not the same in all of them, seeds apart."""
    settings = [dict(_settings(section)) for section in sections]
    keys = dict.fromkeys(key for mine in settings for key in mine)
    differing = [key for key in keys if any(one.get(key, ...) != settings[0].get(key, ...) for one in settings)]
    names = key_names(differing)
    return [" ".join(f"{names[key]}={short(mine[key])}" for key in differing if key in mine) for mine in settings]


def _name(value: Any, name: str | None) -> str:
    return value.get("label") or name or str(value.get("kind", "")) if isinstance(value, Mapping) else short(value)


def _told_apart(names: Sequence[str], sections: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names; where different sections have the same, with what differs between them."""
    found = list(names)
    for name in dict.fromkeys(names):
        namesakes = [number for number, other in enumerate(names) if other == name]
        for number, what in zip(namesakes, differences([sections[number] for number in namesakes]), strict=True):
            found[number] = " ".join(filter(None, [name, what]))
    return found


def _settings(section: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """All keys, dotted, but seeds."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{at}{key}.")
        elif not key.endswith("seed"):
            yield f"{at}{key}", value


# ---- An experiment or reservoir file with everything that goes over it.


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
