"""Configuration documents: where each value came from, and errors that say so."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_jsonable_python

from reservoir_hw.core import functions
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.provenance import as_plain

ENVIRONMENT_PREFIX = "RESERVOIR_HW__"

Key = str | int
Location = tuple[Key, ...]


NO_INFLUENCE_ON_STATES = object()
"""Annotates a field that does not decide about states: `Annotated[float, NO_INFLUENCE_ON_STATES]`."""


class Config(BaseModel):
    """Base of every section of a configuration: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


ConfigT = TypeVar("ConfigT", bound=Config)


def decisive(value: Any) -> Any:
    """What of a configuration decides about states, as plain values.

    Left out are fields that have no influence on states and fields that have their default. So a harvest keeps its
    name when a field is added. A `kind` stays: where it has a default, it still tells one choice from another.
    """
    if isinstance(value, BaseModel):
        fields = {name: (field, getattr(value, name)) for name, field in type(value).model_fields.items()}
        return {
            name: decisive(given)
            for name, (field, given) in fields.items()
            if NO_INFLUENCE_ON_STATES not in field.metadata
            and (name == "kind" or field.is_required() or given != field.get_default(call_default_factory=True))
        }
    if isinstance(value, Mapping):
        return {str(key): decisive(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [decisive(item) for item in value]
    return to_jsonable_python(value)


@dataclass
class Document:
    """Plain nested values, and for each of them the origin that messages name (file:line, option, variable)."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Location, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """What was taken out because a section was replaced, a sentence for each."""
    given: list[Any] = field(default_factory=list)
    """What the names of arrays stand for."""
    replaced_by: str = ""
    """Where the section comes from that replaced one."""

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], origin: str) -> Self:
        """A document from values in memory. Functions among them, and the arrays of a task, become their names."""
        document = cls(_with_names(dict(data)))
        if isinstance(task := document.data.get("task"), dict) and "inputs" in task:
            from reservoir_hw.core.given import given_in

            document.given = given_in(task)
        document.origins = dict.fromkeys([(), *locations(document.data)], origin)
        return document

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """A YAML 1.2 or JSON file, with the files it `extends:`."""
        return cls._from_file(Path(path), ())

    @classmethod
    def _from_file(cls, path: Path, seen: tuple[Path, ...]) -> Self:
        if path.resolve() in seen:
            raise ConfigurationError(f"{path}: extends itself: {' -> '.join(map(str, (*seen, path.resolve())))}")
        document = cls(*_read_yaml(path))
        if any(isinstance(one, str) and one.startswith("given:") for one in (document.data.get("task") or {}).values()):
            from reservoir_hw.core.given import look_beside

            look_beside(path)
        if "extends" not in document.data:
            return document
        parent = document.data["extends"]
        where = document.origins[("extends",)]
        if not isinstance(parent, str):
            raise ConfigurationError(f"{where}: extends must be the path of one file, not {parent!r}")
        base_path = path.parent / parent
        if not base_path.is_file():
            raise ConfigurationError(f"{where}: extends: there is no file {base_path}")
        document.remove(("extends",))
        base = cls._from_file(base_path, (*seen, path.resolve()))
        base.merge(document)
        return base

    @classmethod
    def copy_of(cls, document: Document) -> Self:
        """A document that can be changed without changing the other."""
        data, origins, left_out = copy.deepcopy(document.data), dict(document.origins), list(document.left_out)
        return cls(data, origins, left_out, document.given, document.replaced_by)

    def merge(self, over: Document, at: Location = ()) -> None:
        """Lay `over` on top, or the mapping at one place: mappings merge, everything else replaces.

        A mapping whose `kind` changes is replaced whole: the keys of one kind mean nothing to another.
        """
        base = self.at(at)
        for key, value in over.at(at).items():
            location = (*at, key)
            old = base.get(key)
            if (
                isinstance(old, dict)
                and isinstance(value, dict)
                and value.get("kind", old.get("kind")) == old.get("kind")
            ):
                self.merge(over, location)
                continue
            self._forget(location)
            base[key] = copy.deepcopy(value)
            for place in [location, *locations(value, location)]:
                self.origins[place] = over.origins.get(place, over.origins.get(location, ""))

    def replace(self, key: str, section: Document) -> None:
        """Put another document in the place of a whole section (`--reservoir FILE`)."""
        self._forget((key,))
        self.data[key] = copy.deepcopy(section.data)
        self.replaced_by = self.origins[(key,)] = next(iter(section.origins.values()), "")
        self.origins.update({(key, *place): origin for place, origin in section.origins.items()})

    def set(self, dotted: str, value: Any, origin: str) -> None:
        """Set one value by its dotted path, for instance `reservoir.nodes`. A function becomes its name."""
        keys, value = _split(dotted), _with_names(value)
        if keys[-2:-1] == ["knobs"] and isinstance(value, int | float):
            dotted = self._value_of_knob(dotted, keys, origin)
            keys = dotted.split(".")
        if not all(keys):
            raise ConfigurationError(f"{origin}: {dotted!r} is not a dotted path such as reservoir.nodes")
        here: Any = self.data
        at: Location = ()
        for position, key in enumerate(keys):
            if not isinstance(here, (dict, list)):
                place = ".".join(map(str, at))
                raise ConfigurationError(f"{origin}: {place} is {here!r}, it has no key {key!r}")
            step: Key = _index(key, here, dotted, origin) if isinstance(here, list) else key
            at = (*at, step)
            is_last = position == len(keys) - 1
            if is_last or _child(here, step) is None:
                new = value if is_last else {}
                self._forget(at)
                self.at(at[:-1])[step] = new
                self.origins.update(dict.fromkeys([at, *locations(new, at)], origin))
            here = _child(here, step)

    def _value_of_knob(self, dotted: str, keys: Sequence[str], origin: str) -> str:
        """Where a number laid over a knob goes: where the file describes the knob, its value, not all of it.

        Each value is approached from the one that stood there.
        """
        knob: Any = self.data
        for key in keys:
            knob = knob.get(key) if isinstance(knob, dict) else None
        if not isinstance(knob, dict):
            return dotted
        if "value" not in knob:
            raise ConfigurationError(
                f"{origin}: {dotted} needs a `value` in the file: that of those who set none, from which each other "
                "value is approached"
            )
        if "approach_from" not in knob:
            self.set(f"{dotted}.approach_from", knob["value"], self.origin((*keys, "value")))
        return f"{dotted}.value"

    def set_option(self, assignment: str) -> None:
        """Apply one `--set key=value`; the value is read as YAML."""
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"--set {assignment!r}: write it as key=value, for instance reservoir.nodes=300")
        self.set(key.strip(), parse_scalar(text, f"--set {key}"), f"--set {key.strip()}")

    def set_environment(self, environment: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()) -> None:
        """Apply variables such as RESERVOIR_HW__RESERVOIR__ADDRESS=tcp://10.0.0.7:5555.

        A document that is only the section `prefix` of an experiment takes the variables of that section.
        """
        for name, text in sorted((os.environ if environment is None else environment).items()):
            if name.startswith(ENVIRONMENT_PREFIX):
                keys = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
                if tuple(keys[: len(prefix)]) == prefix:
                    origin = f"environment variable {name}"
                    self.set(".".join(keys[len(prefix) :]), parse_scalar(text, origin), origin)

    def at(self, location: Location) -> Any:
        """The value at `location`, which is there."""
        here: Any = self.data
        for key in location:
            here = _child(here, key)
        return here

    def remove(self, location: Location) -> None:
        """Remove the value at `location`, which is there, and what is below it."""
        del self.at(location[:-1])[location[-1]]
        self._forget(location)

    def origin(self, location: Location) -> str:
        """Where the value at `location`, or else what encloses it, came from."""
        for length in range(len(location), -1, -1):
            if location[:length] in self.origins:
                return self.origins[location[:length]]
        return ""

    def folder(self, location: Location) -> Path:
        """Of the file in which the value at `location` stands; the current folder where it came from no file."""
        path, _, line = self.origin(location).rpartition(":")
        return Path(path).parent if path and line.isdecimal() else Path()

    def _forget(self, location: Location) -> None:
        for place in [p for p in self.origins if p[: len(location)] == location]:
            del self.origins[place]


def validate(model: type[ConfigT], document: Document) -> ConfigT:
    """Build `model` from the document; all problems come in one `ConfigurationError` that names their origins."""
    # Strict JSON validation: "50" is no number and `true` no 1, but a list may become a tuple, a text a path.
    text = json.dumps(document.data, default=as_plain)
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise explained(error, model, document) from None


def _split(dotted: str) -> list[str]:
    """The keys of a path. What `vary` and `search` hold are paths themselves."""
    for place in (["vary"], ["search"], ["reservoir", "vary"], ["reservoir", "search"], ["sweep", "search"]):
        keys = dotted.split(".", len(place))
        if keys[:-1] == place:
            return keys
    return dotted.split(".")


def _with_names(value: Any) -> Any:
    """A copy, with names in the place of functions."""
    if isinstance(value, Mapping):
        return {key: _with_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_names(item) for item in value]
    return functions.name_of(value) if callable(value) else copy.deepcopy(value)


def parse_scalar(text: str, origin: str) -> Any:
    """A value as YAML 1.2 reads it: 1e-4 is a number, [1, 2] a list."""
    from ruamel.yaml import YAMLError

    if not text.strip():
        raise ConfigurationError(f"{origin}: there is no value; if that is what you mean, write null")
    try:
        loaded = _loaded(text)
        value = _plain(loaded)
    except (YAMLError, ValueError) as error:
        raise ConfigurationError(f"{origin}: {text!r} cannot be read as a YAML value: {_problem(error)}") from None
    # Looks at each key.
    list(_lines(loaded, (), origin))
    # A text that was not quoted is meant as it stands, with a # in it too.
    if value is None and text.strip().startswith("#"):
        return text.strip()
    return text.strip() if isinstance(value, str) and text.strip()[:1] not in {"'", '"', "|", ">"} else value


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[Location, str]]:
    from ruamel.yaml import YAMLError

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        close = get_close_matches(path.name, [other.name for other in path.parent.glob("*.*")], 1)
        hint = f"; did you mean {path.parent / close[0]}?" if close else ""
        raise ConfigurationError(f"{path}: there is no such file{hint}") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path} is a folder; name the file in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    try:
        loaded = _loaded(text)
    except RecursionError:
        raise ConfigurationError(f"{path}: nested too deeply") from None
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigurationError(f"{where}: not valid YAML: {_problem(error)}") from None
    if not isinstance(loaded, dict):
        found = "is empty" if loaded is None else f"holds {type(_plain(loaded)).__name__}"
        raise ConfigurationError(f"{path}:1: {found}; a configuration is a mapping of `key: value` lines")
    lines = {place: f"{path}:{line}" for place, line in _lines(loaded, (), path)}
    return _plain(loaded), {(): f"{path}:1", **lines}


# Of YAML itself, and "!", which says that a value is a text.
_TAGS = {"!", *(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))}


def _loaded(text: str) -> Any:
    """A round-trip document. Raises `YAMLError` for tags that would make something else than plain values."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    for event in YAML(typ="rt").parse(text):
        tag = str(getattr(event, "tag", None) or "!")
        if tag not in _TAGS:
            kind = {"SequenceStartEvent": "list", "MappingStartEvent": "mapping"}.get(type(event).__name__, "value")
            problem = f"the tag {tag.replace('tag:yaml.org,2002:', '!!')}: write a plain {kind} without it"
            raise MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
    return YAML(typ="rt").load(text)


_IN_OUR_WORDS = {
    "expected <block end>": "a wrong indent: this line begins in another column than the keys that it stands beside",
    "mapping values are not allowed": "a wrong indent, or a colon in a text that needs quotes",
    "'\\t'": "a tab: indent with blanks",
}


def _problem(error: Exception) -> str:
    problem = str(getattr(error, "problem", None) or error).strip().splitlines()[0]
    return next((ours for theirs, ours in _IN_OUR_WORDS.items() if theirs in problem), problem)


def _lines(node: Any, at: Location, path: Path | str) -> Iterator[tuple[Location, int]]:
    """The line of every key and item of a round-trip document."""
    if isinstance(node, dict):
        for key, value in node.items():
            line = node.lc.key(key)[0] if key in (node.lc.data or {}) else 0  # pyright: ignore[reportAttributeAccessIssue]
            name = _key(key)
            in_braces = node.fa.flow_style()  # pyright: ignore[reportAttributeAccessIssue]
            if value is None and in_braces and isinstance(key, int | float):
                raise ConfigurationError(
                    f"{path}: line {line + 1}: a comma ends the value before {key:g}: write 1.5e-3 with a point"
                )
            if not isinstance(name, str):
                raise ConfigurationError(f"{path}: line {line + 1}: the key {key!r} must be a text")
            yield (*at, name), line + 1
            yield from _lines(value, (*at, name), path)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            line = node.lc.item(index)[0]  # pyright: ignore[reportAttributeAccessIssue]
            yield (*at, index), line + 1
            yield from _lines(value, (*at, index), path)


def _key(key: Any) -> Any:
    """Channels have numbers; in a document all keys are texts."""
    return str(key) if isinstance(key, int) and not isinstance(key, bool) else key


def _plain(node: Any) -> Any:
    """Builtin types for the subclasses of a round-trip document."""
    if isinstance(node, dict):
        return {_key(_plain(key)): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for builtin in (bool, int, float, str):
        if isinstance(node, builtin):
            return builtin(node)
    # ruamel's rt loader has a boolean of its own that derives from int; None, dates stay as they are.
    return node


def locations(value: Any, at: Location = ()) -> Iterator[Location]:
    """The places below `at`."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*at, key)
        yield from locations(child, (*at, key))


def _child(node: Any, key: Key) -> Any:
    return node.get(key) if isinstance(node, dict) else node[key]


def _index(key: str, here: list[Any], dotted: str, origin: str) -> int:
    if not key.isdecimal() or int(key) >= len(here):
        raise ConfigurationError(f"{origin}: {dotted}: {key!r} is not one of the {len(here)} items (0 is the first)")
    return int(key)


def explained(error: ValidationError, model: type[BaseModel], document: Document) -> ConfigurationError:
    """What pydantic has found wrong with a document, with the origins of the values."""
    # If a value fits none of several types, pydantic reports it once for each type. It is one problem.
    merged: dict[str, list[str]] = {}
    for problem in error.errors():
        place, message = _explain_one(problem, model, document)
        known = merged.setdefault(place, [])
        known.append(message.removeprefix("input should be ") if known else message)
    problems = [place + " or ".join(messages) for place, messages in merged.items()]
    if len(problems) == 1:
        return ConfigurationError(problems[0])
    return ConfigurationError("\n  ".join([f"{len(problems)} problems in the configuration:", *problems]))


def _explain_one(problem: Any, model: type[BaseModel], document: Document) -> tuple[str, str]:
    """Which value is wrong, and why."""
    location = _in_document(problem["loc"], document.data)
    name = ".".join(map(str, location))
    origin = document.origin(location)
    prefix = f"{origin}: " if origin else ""
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = _known_keys(model, problem["loc"][:-1])
        close = get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{prefix}unknown key {name!r}; ", f"{hint}(known: {', '.join(known)})"
    if kind == "missing":
        return f"{prefix}{name}", " is missing"
    if kind == "union_tag_not_found":
        return f"{prefix}{name}", " needs `kind:`"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not location:
        return prefix or "configuration: ", message
    said = f" = {problem['input']!r}" if isinstance(problem["input"], str | int | float | bool | None) else ""
    return f"{prefix}{name}{said}: ", message


def _in_document(location: Sequence[Key], data: Any) -> Location:
    """Pydantic's location without the names of union members, which stand in no file."""
    kept: list[Key] = []
    here: Any = data
    for position, key in enumerate(location):
        present = (isinstance(here, dict) and key in here) or (
            isinstance(here, list) and isinstance(key, int) and key < len(here)
        )
        if present:
            kept.append(key)
            here = _child(here, key)
        elif isinstance(here, dict) and position == len(location) - 1:
            kept.append(key)
    return tuple(kept)


def _known_keys(model: type[BaseModel], location: Sequence[Key]) -> list[str]:
    """Field names of the model that stands at `location` below `model`."""
    here: list[type[BaseModel]] = [model]
    for key in [key for key in location if isinstance(key, str)]:
        here = [m for candidate in here for m in _models(candidate, key)] or here
    return sorted({name for candidate in here for name in candidate.model_fields})


def _models(model: type[BaseModel], key: str) -> list[type[BaseModel]]:
    info = model.model_fields.get(key)
    if info is None:
        # The name of a kind, which stands in no file.
        kind = model.model_fields.get("kind")
        return [model] if kind is not None and key in get_args(kind.annotation) else []
    pending: list[Any] = [info.annotation]
    found: list[type[BaseModel]] = []
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
        pending.extend(get_args(annotation))
    return found
