"""Keys and kinds of configurations that have another name now. They are translated, and one sentence tells so."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError

log = logging.getLogger(__name__)

_KEYS = {("training", "settle_passes"): "priming_passes"}
"""(section, old key) -> new key."""

_KINDS = {("reservoir", "laerc"): "laerc_layers"}
"""(section, old kind) -> new kind."""

_LINE = re.compile(r":\d+$")
"""The end of an origin in a file: two names in one file differ only in this."""


class Renamed(NamedTuple):
    """An old name that was found: where it stood, where the value is now, and one sentence with the new name."""

    was: tuple[str | int, ...]
    place: tuple[str | int, ...]
    sentence: str


def translate(document: Document) -> None:
    """Put the new names into a document; a warning for each old name says where it stands and what it is called.

    Where an old and a new name come from two places, for instance a file and `--set`, the later one counts. Raises
    `ConfigurationError` if both stand in one place.
    """
    for was, place, sentence in renamed(copy.deepcopy(document.data)):
        if was != place and place in document.origins:
            _drop_the_earlier(document, was, place, sentence)
    told: dict[str, list[str]] = {}
    for was, place, sentence in renamed(document.data):
        document.origins[place] = document.origin(was)
        told.setdefault(sentence, []).append(document.origins[place])
    for sentence, origins in told.items():
        log.warning("%s: %s", " and ".join(dict.fromkeys(origins)), sentence)


def translate_record(record: dict[str, Any], where: str) -> None:
    """As `translate`, for what a run folder, a study or a store has recorded."""
    for sentence in dict.fromkeys(found.sentence for found in renamed(record)):
        log.warning("%s: %s", where, sentence)


def _drop_the_earlier(document: Document, was: tuple[str | int, ...], place: tuple[str | int, ...], said: str) -> None:
    old, new = document.origins[was], document.origins[place]
    if _LINE.sub("", old) == _LINE.sub("", new):
        where = " and ".join(dict.fromkeys((old, new)))
        raise ConfigurationError(f"{where}: {said}, and both names are given; remove one of them")
    # What is laid over a document comes last in its origins.
    document.remove(min(was, place, key=list(document.origins).index))


def renamed(data: dict[str, Any]) -> list[Renamed]:
    """Put the new names into an experiment or reservoir file, in place; what was renamed, in the order of the file.

    Keys that `vary` and `sweep.search` try, and the values that they try, are renamed too.
    """
    if "kind" in data:
        return list(_in_section("reservoir", data, ()))
    found: list[Renamed] = []
    for section in ("training", "reservoir"):
        if isinstance(data.get(section), dict):
            found += _in_section(section, data[section], (section,))
    found += _in_tried(data.get("vary"), ("vary",))
    sweep = data.get("sweep")
    if isinstance(sweep, dict):
        found += _in_tried(sweep.get("search"), ("sweep", "search"))
    return found


def former_keys(dotted: str) -> list[str]:
    """The old names of a dotted key."""
    return [f"{section}.{old}" for (section, old), new in _KEYS.items() if f"{section}.{new}" == dotted]


def _in_section(name: str, section: dict[str, Any], at: tuple[str | int, ...]) -> Iterator[Renamed]:
    for (where, old), new in _KEYS.items():
        if where == name and old in section:
            _rename(section, old, new)
            yield Renamed((*at, old), (*at, new), f"{name}.{old} is called {name}.{new} now")
    for (where, old), new in _KINDS.items():
        if where == name and section.get("kind") == old:
            section["kind"] = new
            yield Renamed((*at, "kind"), (*at, "kind"), f"{name} kind {old} is called {new} now")


def _in_tried(tried: Any, at: tuple[str | int, ...]) -> Iterator[Renamed]:
    """Dotted keys with the values that are tried: a list, or `choices` of one."""
    if not isinstance(tried, dict):
        return
    for (section, old), new in _KEYS.items():
        dotted, now = f"{section}.{old}", f"{section}.{new}"
        if dotted in tried:
            _rename(tried, dotted, now)
            yield Renamed((*at, dotted), (*at, now), f"{dotted} is called {now} now")
    for key, given in tried.items():
        values, place = given, (*at, key)
        if isinstance(given, dict):
            values, place = given.get("choices"), (*place, "choices")
        if not isinstance(values, list):
            continue
        for number, value in enumerate(values):
            if isinstance(value, dict):
                yield from _in_section(key, value, (*place, number))
            for (section, old), new in _KINDS.items():
                if key == f"{section}.kind" and value == old:
                    values[number] = new
                    yield Renamed((*place, number), (*place, number), f"{section} kind {old} is called {new} now")


def _rename(mapping: dict[str, Any], old: str, new: str) -> None:
    """In its place: the order of the keys decides which one of a grid turns fastest."""
    items = [(new if key == old else key, value) for key, value in mapping.items()]
    mapping.clear()
    mapping.update(items)
