"""Why a bundle is refused: found anywhere, said in one sentence that names the bundle and the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from reservoir_hw.core.errors import ConfigurationError

# Portable to every file system, and nothing that means "elsewhere" on any of them.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}){0,3}", re.ASCII)


class Refused(Exception):
    """What is wrong; the place is added by `about`."""


@contextmanager
def about(bundle: str, file: str | None = None, *, reading: bool = True) -> Iterator[None]:
    """Turn `Refused` into ConfigurationError, and errors of the operating system while a bundle is read."""
    where = f"bundle {bundle}" if file is None else f"bundle {bundle}: {file}"
    try:
        yield
    except Refused as refused:
        raise ConfigurationError(f"{where}: {refused}") from refused
    except OSError as error:
        if not reading:
            raise
        raise ConfigurationError(f"{where}: cannot be read: {error.strerror or error}") from error


def shown(text: str | bytes) -> str:
    """A name from a foreign file, fit for a terminal."""
    said = ascii(text)
    return said if len(said) <= 80 else said[:77] + "..."


def check_name(name: str) -> None:
    """Refuse what is no plain relative path: parts of letters, digits, `_`, `-` and `.`, with `/` between them."""
    if not _NAME.fullmatch(name) or any(part.endswith(".") for part in name.split("/")):
        raise Refused(
            f"holds a file called {shown(name)}; a name is a relative path of at most four parts that are made of "
            "letters, digits, '_', '-' and '.' and do not begin or end with '.'"
        )


def check_names(names: list[str]) -> None:
    """Refuse names as `check_name`, and names that are one file where upper and lower case are the same."""
    seen: dict[str, str] = {}
    for name in names:
        check_name(name)
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise Refused(f"holds {shown(name)} twice" if other == name else f"holds both {other} and {name}")
    for name in seen:
        parents = name.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if "/".join(parents[:depth]) in seen:
                raise Refused(f"holds {shown(seen['/'.join(parents[:depth])])} as a file and as a folder")
