"""Standard input as a live pipe: whole lines as they come, and how many of them wait."""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from collections.abc import Iterator
from typing import TextIO

from reservoir_hw.core.errors import ConfigurationError, StreamStopped

# Bytes that are taken in ahead, and of one line. What comes beyond waits in the pipe, and then its writer does.
_AHEAD, _LONGEST = 1 << 20, 1 << 16


class Lines:
    """Lines of standard input. Those of a pipe are live: each is answered, or ends it.

    A line that is cut by the end of the pipe is none: who wrote it has died in it. Nothing is read while a step is
    computed. What has come meanwhile is counted by `answered`.

    `most_behind`: more lines than these that wait end the pipe. `stream` is None where nobody will read it.
    """

    def __init__(self, stream: TextIO | None, most_behind: int | None = None) -> None:
        self._stream, self._most = stream, most_behind
        try:
            self._descriptor = -1 if stream is None else stream.fileno()
        except (OSError, ValueError):
            self._descriptor = -1
        self.live = self._descriptor >= 0 and not stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        """A file that is redirected is a file."""
        self._poll = select.poll()
        if self.live:
            self._poll.register(self._descriptor, select.POLLIN)
        self._lines: deque[bytes] = deque()
        self._rest, self._ahead, self._ended = b"", 0, not self.live
        self._given = self._late = 0
        self.backlog = self.steps = self.behind = self.longest = 0
        """Lines that waited at the beginning; that were answered; that were while others waited; how many at most."""

    def __iter__(self) -> Iterator[str]:
        """Each line with its end. Raises `StreamStopped` for a cut one, `ConfigurationError` for an endless one."""
        if not self.live:
            yield from self._stream or ()
        while True:
            at = f"stdin:{self._given + 1}"
            while not self._lines and not self._ended:
                if len(self._rest) > _LONGEST:
                    raise ConfigurationError(f"{at}: a line of more than {_LONGEST} bytes is no row of numbers")
                self._read()
            if not self._lines:
                break
            line = self._lines.popleft()
            self._ahead -= len(line) + 1
            self._given += 1
            # What is no UTF-8 is no number, and is refused with its line.
            yield line.decode("utf-8", "backslashreplace") + "\n"
        if self._rest:
            shown = repr(self._rest[:60].decode("utf-8", "backslashreplace"))
            raise StreamStopped(
                f"{at}: the pipe has ended within the line {shown}, so it is not answered: it may be cut"
            )

    def begin(self) -> None:
        """Lines that wait by now do not count: they came during the warm-up."""
        self.backlog = self._waiting()

    def answered(self) -> None:
        """The line that was given last has its answer, which is not written yet: count the others that wait.

        Who writes the next line when the last answer is there is never behind.
        """
        self._late = self._waiting() - max(0, self.backlog - self._given)
        self.steps += 1
        self.behind += self._late > 0
        self.longest = max(self.longest, self._late)

    def refuse_late(self) -> None:
        """Raise `StreamStopped` where more lines wait than may."""
        if self._most is not None and self._late > self._most:
            raise StreamStopped(
                f"stdin:{self._given}: {self._late} lines waited when it was answered (--max-behind "
                f"{self._most}): the lines come faster than they are answered"
            )

    def told(self) -> list[str]:
        """What there is to tell at the end."""
        waited = f"{self.backlog:,} lines waited while the warm-up was driven"
        behind = f"behind in {self.behind:,} of {self.steps:,} steps, up to {self.longest:,} lines"
        return [waited] * (self.backlog > 0) + [behind] * (self.behind > 0)

    def figures(self) -> dict[str, int]:
        """The same for machines."""
        return {"steps": self.steps, "behind": self.behind, "longest": self.longest, "backlog": self.backlog}

    def _waiting(self) -> int:
        """Whole lines that have come and were not taken, of the first MiB of them."""
        while not self._ended and self._ahead < _AHEAD and len(self._rest) <= _LONGEST and self._poll.poll(0):
            self._read()
        return len(self._lines)

    def _read(self) -> None:
        found = os.read(self._descriptor, 1 << 16)
        self._ended = not found
        *lines, self._rest = (self._rest + found).split(b"\n")
        self._lines += lines
        self._ahead += sum(len(line) + 1 for line in lines)
