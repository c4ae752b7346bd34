"""Replacing a file as a whole."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace(partial: Path, path: Path) -> None:
    """Make `partial` the file `path`, such that a power failure leaves the old one or the new one."""
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)
    # Not every system lets a folder be opened; the rename is atomic all the same.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
