"""Dotted paths of this package in texts: each must lead to what it names, for nothing else fails when it moves.

Texts are the package, its tests, benchmarks, examples and tools, the documentation and pyproject.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from reservoir_hw.core.errors import MissingExtra
from reservoir_hw.core.registry import BUILT_IN

ROOT = Path(__file__).parent.parent
CODE = ("reservoir_hw", "tests", "benchmarks", "examples", "tools")

# Names of file formats look like modules.
FORMATS = {
    "reservoir_hw.bundle",
    "reservoir_hw.esn_weights",
    "reservoir_hw.gated_esn_weights",
    "reservoir_hw.graphs",
    "reservoir_hw.ridge",
    "reservoir_hw.states",
    "reservoir_hw.tokenizer",
}
# Groups of entry points.
GROUPS = {f"reservoir_hw.{group}" for group in BUILT_IN}

_PATH = re.compile(r"(?<![\w./-])reservoir_hw((?:\.[A-Za-z_]\w*)+)(?::([A-Za-z_]\w*(?:\.\w+)*))?")
_IMPORT = re.compile(r"from +(reservoir_hw[\w.]*) +import +(\w+(?:, *\w+)*)")


def paths_in(text: str) -> Iterator[str]:
    """Dotted paths, "module:name" among them as "module.name"."""
    for found in _PATH.finditer(text):
        yield ".".join(filter(None, (f"reservoir_hw{found[1]}", found[2])))
    for found in _IMPORT.finditer(text):
        for name in found[2].split(","):
            yield f"{found[1]}.{name.strip()}"


@cache
def problem(path: str) -> str | None:
    """Why a path leads nowhere, None if it leads somewhere."""
    parts = path.split(".")
    length = 1
    try:
        # A module whose package is none would be an error.
        while length < len(parts) and _is_module(".".join(parts[: length + 1])):
            length += 1
        here = import_module(".".join(parts[:length])) if length < len(parts) else None
        for name in parts[length:]:
            here = getattr(here, name)
    except AttributeError:
        return f"{'.'.join(parts[:length])} has no {'.'.join(parts[length:])}"
    except MissingExtra:
        return None
    except ModuleNotFoundError as error:
        # An extra that is not installed here.
        return None if error.name and not error.name.startswith("reservoir_hw") else str(error)
    return None


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def texts() -> Iterator[tuple[str, str]]:
    """Where a line stands, and the line."""
    code = [file for folder in CODE for file in sorted((ROOT / folder).rglob("*.py")) if file != Path(__file__)]
    for file in [*code, ROOT / "pyproject.toml", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            yield f"{file.relative_to(ROOT)}:{line}", text


def lost(texts: Iterator[tuple[str, str]]) -> list[str]:
    """One line for each path that leads nowhere."""
    known = FORMATS | GROUPS
    return [
        f"{where}: {path}: {why}"
        for where, text in texts
        for path in paths_in(text)
        if path not in known and (why := problem(path)) is not None
    ]


def test_every_path_in_a_string_leads_somewhere() -> None:
    assert "\n".join(lost(texts())) == ""
