"""What the outputs of a bench did, and when."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class EventLog:
    """Events in the order in which they happened, in memory and, if a path is given, as JSON lines in a file.

    An event has `event`, `channel`, `time_s` (of the bench) and `unix_s` (of this computer), and what belongs to its
    kind. A line is in the file before the call that wrote it returns. The file is appended to.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.events: list[Event] = []
        self._file = path.open("a", encoding="utf-8") if path else None

    def write(self, event: str, channel: int, time_s: float, **details: Any) -> None:
        """Add one event."""
        entry = {"event": event, "channel": channel, "time_s": time_s, "unix_s": time.time(), **details}
        self.events.append(entry)
        if self._file:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
