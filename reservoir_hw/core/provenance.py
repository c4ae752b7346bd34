"""What must be known to repeat a result: versions, host, command, configuration and its hash; no password is in it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
import time
from functools import cache
from typing import Any, NamedTuple

PACKAGES = ("reservoir-hw", "numpy", "torch", "numba", "scipy", "pydantic")
# As SQLAlchemy reads it: a user may have an @ (anna@server), a password any character but that. An @ that was not
# encoded belongs to it up to the next slash.
_BEFORE_HOST = re.compile(r"(://[^:/]*:)[^@]*@(?:[^@/?]*@)*")
# A whole ODBC connection hides a password in ways of its own (PWD={a;b}, all of it encoded).
_IN_QUERY = re.compile(r"([?&](?:[^=&]*(?:password|passwd|pwd)[^=&]*|odbc_connect)=)[^&]*", re.IGNORECASE)


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings only, ready for JSON (`as_plain`)."""
    return json.loads(json.dumps(value, default=as_plain))


def as_plain(value: Any) -> Any:
    """What JSON does not know: numpy's numbers become plain ones, the rest becomes text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def configuration_hash(resolved: Any) -> str:
    """sha256 of a resolved configuration, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(resolved, sort_keys=True, default=str).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute; those not installed are left out."""
    found = {package: _version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **{package: said for package, said in found.items() if said}}


@cache
def _version(package: str) -> str:
    """Empty where it is not installed. Looking takes 10 ms, and a search runs hundreds of experiments."""
    # Not above: every command imports this module, and `--help` would wait for it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def collect(resolved: Any) -> dict[str, Any]:
    """The record that goes with every result, without the device's own part."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command(),
        "host": platform.node(),
        "platform": platform.platform(),
        "versions": versions(),
        "configuration": resolved,
        "configuration_sha256": configuration_hash(resolved),
    }


# ---- The first thing in which two nested descriptions differ, for messages.


class _Absent(str):
    """Says in a message that there is no value."""

    def __repr__(self) -> str:
        return str(self)


class Difference(NamedTuple):
    """Where they differ, and what stands there; that nothing does is said in words."""

    place: tuple[str | int, ...]
    before: Any
    now: Any

    @property
    def key(self) -> str:
        """The place with dots."""
        return ".".join(map(str, self.place))


def first_change(before: Any, now: Any, place: tuple[str | int, ...] = ()) -> Difference | None:
    """The first difference, or None; mappings, and lists of the same length, are gone through item by item."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        before, now = dict(enumerate(before)), dict(enumerate(now))
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return None if before == now else Difference(place, before, now)
    for key in dict.fromkeys([*now, *before]):
        if key not in before:
            return Difference((*place, key), _Absent("nothing there"), now[key])
        if key not in now:
            return Difference((*place, key), before[key], _Absent("not there"))
        if found := first_change(before[key], now[key], (*place, key)):
            return found
    return None


def without_password(text: str) -> str:
    """`text`, with *** for the password in its URL, and for an ODBC connection."""
    return _IN_QUERY.sub(r"\1***", _BEFORE_HOST.sub(r"\1***@", text))


def command() -> list[str]:
    """How this program was called."""
    return [without_password(argument) for argument in sys.argv]
