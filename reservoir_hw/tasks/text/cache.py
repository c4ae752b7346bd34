"""What is made of a long text is kept in a folder, for all runs."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from reservoir_hw.core.files import replace_file

log = logging.getLogger(__name__)

CACHE_VARIABLE = "RESERVOIR_HW_CACHE"
"""Environment variable that names the folder."""

LONG = 1 << 20
"""Characters from which on a text counts as long."""

_SLOW = 1 << 22
_Made = TypeVar("_Made", np.ndarray, str)


def kept_array(folder: str, of: str, text: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """What `make` gives of this text. Of a long one it lies in a file that all processes share, mapped into memory.

    `folder` says what it is, and `of` is all that decides about it beside the text.
    """
    return _kept(folder, ".npy", of, text, make, _mapped, _save)


def kept_text(folder: str, of: str, text: str, make: Callable[[], str]) -> str:
    """As `kept_array`."""
    return _kept(folder, ".txt", of, text, make, _read, replace_file)


def cache_folder() -> Path:
    """Where things are kept: `RESERVOIR_HW_CACHE`, or else a folder of the user."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "reservoir_hw"


def _kept(
    folder: str,
    suffix: str,
    of: str,
    text: str,
    make: Callable[[], _Made],
    read: Callable[[Path], _Made | None],
    write: Callable[[Path, _Made], None],
) -> _Made:
    if len(text) < LONG:
        return make()
    path = cache_folder() / folder / f"{_digest(of, text)}{suffix}"
    found = read(path)
    if found is not None and len(found):
        return found
    what = folder.replace("_", " ")
    if len(text) >= _SLOW:
        log.warning("making the %s of %s characters, once for all runs, into %s", what, f"{len(text):,}", path)
    made = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, made)
    except OSError as error:
        log.warning("%s cannot be kept in %s: %s; every run will make them anew", what, path.parent, error)
        return made
    again = read(path)
    return made if again is None else again


def _digest(of: str, text: str) -> str:
    # The length of the first part keeps the two apart.
    digest = hashlib.sha256(f"{len(of)} {of}".encode("utf-8", "surrogatepass"))
    for begin in range(0, len(text), LONG):
        digest.update(text[begin : begin + LONG].encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def _mapped(path: Path) -> np.ndarray | None:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        # Not there yet, or cut by a full disk: it is made again.
        return None


def _save(path: Path, array: np.ndarray) -> None:
    making = path.with_suffix(f".{os.getpid()}.npy")
    np.save(making, array)
    making.rename(path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
