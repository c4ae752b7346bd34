"""Files that survive a power failure: on the disk before they take their names."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore


class DurableStore(LocalStore):
    """A folder as Zarr has it, every file of which is either the old one or the new one, whatever happens."""

    async def set(self, key: str, value: Buffer) -> None:
        """Write one file."""
        await asyncio.to_thread(self.set_sync, key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """As `set`."""
        self._check_writable()
        path = self.root / key
        fresh = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
        try:
            with partial.open("wb") as file:
                file.write(value.as_buffer_like())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        settle_folder(path.parent)
        for folder in fresh:
            settle_folder(folder.parent)


def settle_folder(path: Path) -> None:
    """Wait until the entries of a folder are on the disk."""
    if os.name == "nt":
        # Windows keeps them by itself, and opens no folders.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
