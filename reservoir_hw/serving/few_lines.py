"""A log that hostile or broken messages cannot fill."""

from __future__ import annotations

import logging
import time

_EVENTS = {"refused", "dropped"}
_MOST, _EVERY_S = 10, 10.0


class FewLines(logging.Filter):
    """Lets pass ten lines in ten seconds about messages that were refused or dropped, and all others."""

    def __init__(self) -> None:
        super().__init__()
        self._since, self._seen = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written; the first one of the next ten seconds tells how many were not."""
        if getattr(record, "event", "") not in _EVENTS:
            return True
        now = time.monotonic()
        if now - self._since > _EVERY_S:
            hidden = max(0, self._seen - _MOST)
            self._since, self._seen = now, 0
            if hidden:
                record.msg, record.args = f"{record.getMessage()} ({hidden:,} such lines before were not written)", ()
        self._seen += 1
        return self._seen <= _MOST
