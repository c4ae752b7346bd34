"""Files that survive a power failure: on the disk before they take their names."""

from __future__ import annotations

import asyncio

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from reservoir_hw.core.files import replacing, settle_folder


class DurableStore(LocalStore):
    """A folder for Zarr. After a crash, each file is either the old one or the new one."""

    async def set(self, key: str, value: Buffer) -> None:
        """Write one file."""
        await asyncio.to_thread(self.set_sync, key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """As `set`."""
        self._check_writable()
        path = self.root / key
        fresh = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:
            file.write(value.as_buffer_like())
        for folder in fresh:
            settle_folder(folder.parent)
