"""Where locks and reservations of devices lie, for all users of this host."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reservoir_hw.core.errors import ConfigurationError


def lock_folder() -> Path:
    """Shared by all users of this host (`RESERVOIR_HW_LOCKS` moves it)."""
    return Path(os.environ.get("RESERVOIR_HW_LOCKS") or Path(tempfile.gettempdir()) / "reservoir_hw-locks")


def lock_file(resource: str, suffix: str) -> Path:
    """The file of `resource` with this suffix."""
    return lock_folder() / f"{hashlib.sha256(resource.encode()).hexdigest()[:24]}{suffix}"


@contextlib.contextmanager
def writing_for(resource: str) -> Iterator[None]:
    """While the files of `resource` are written. Raises `ConfigurationError` where that is not possible."""
    folder = lock_folder()
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Other users of this host must be able to lock too. A folder that was there is left as it is.
            with contextlib.suppress(PermissionError):
                folder.chmod(0o777)
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot lock {resource!r} in {folder}: {error}; set RESERVOIR_HW_LOCKS to a folder that you can write to"
        ) from error


def write_note(path: Path, content: dict[str, Any]) -> None:
    """Put a JSON note there that everybody may read."""
    # Replaced, not written to: it may be the note of another user.
    note = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    note.write_text(json.dumps(content))
    note.chmod(0o644)
    os.replace(note, path)


def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"
