"""What is wrong with a store: damaged, lost, or not to be read now or by this user."""

from __future__ import annotations

import os
import re
from typing import Any

from reservoir_hw.core.errors import ConfigurationError

# What Zarr and its codecs raise where a file is damaged: a single bit makes any of these.
BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
NO_STORE = "is not a store of states, as `run.record`, `reservoir-hw harvest` and `reservoir-hw trace import` make it"


def is_damage(error: ConfigurationError) -> bool:
    """Whether something of a store is damaged or lost; it may also be that it cannot be read now, or by this user."""
    return error.__cause__ is None or harmed(error.__cause__)


def harmed(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return isinstance(error, FileNotFoundError)
    # "can't start new thread" and "cannot schedule new futures" are troubles of this process, not of a file.
    return not (isinstance(error, RuntimeError) and re.search("new (thread|futures)", str(error)))


def origin(error: BaseException) -> Any:
    """What the system said first."""
    while isinstance(error.__cause__, OSError):
        error = error.__cause__
    return error


def unreadable(path: str, what: str, error: Exception) -> ConfigurationError:
    if harmed(error):
        return ConfigurationError(f"{path} is damaged: {what} cannot be read ({brief(error)})")
    return ConfigurationError(f"{path}: {what} cannot be read ({brief(error)}){leave(error)}")


def brief(error: Exception) -> str:
    """One line; some errors carry the whole file."""
    if isinstance(error, UnicodeDecodeError):
        return f"{error.reason} at byte {error.start}"
    text = " ".join(str(error).split())
    if not isinstance(error, OSError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else f"{text[:200]} ..."


def leave(error: Exception) -> str:
    return "; ask its owner to let you read and write it" if isinstance(error, PermissionError) else ""


def not_a_store(path: str, error: Exception) -> str:
    """What is wrong with a path at which Zarr finds no group, without Zarr's own words."""
    if "://" in path and not isinstance(error, FileNotFoundError):
        return f"{path} cannot be opened: {error}"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return f"{path} cannot be opened: {error.strerror or error}{leave(error)}"
    if "://" in path or not os.path.lexists(path):
        why = "there is nothing"
    elif not os.path.isdir(path):
        why = "it is a file"
    elif os.path.exists(os.path.join(path, "zarr.json")):
        why = "its zarr.json describes no group, or is damaged"
    else:
        why = "the folder holds none"
    return f"{path} {NO_STORE}: {why}"
