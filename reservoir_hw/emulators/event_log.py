"""What the outputs of a bench did, and when."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from reservoir_hw.core.errors import ConfigurationError

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


def outputs_on(path: Path) -> list[int]:
    """The outputs that are on at the end of a log file.

    Raises `ConfigurationError` for a file that is none, or says nothing about outputs.
    """
    on: dict[int, bool] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if event["event"] in ("on", "off"):
                on[event["channel"]] = event["event"] == "on"
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError(f"{path}:{number}: this is no event of an emulated bench or board") from None
    if not on:
        raise ConfigurationError(
            f"{path} says nothing about outputs; was the bench or board started with --log {path}?"
        )
    return [channel for channel, is_on in on.items() if is_on]
