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


class LivePipe:
    """Lines of a descriptor. One that is cut by the end of the pipe is no line: who wrote it has died in it.

    Nothing is read while a step is computed. What has come meanwhile is counted by `answered`.
    """

    def __init__(self, descriptor: int, name: str = "stdin") -> None:
        self._descriptor, self._name = descriptor, name
        self.most_behind: int | None = None
        """More lines than these that wait end the pipe."""
        self.backlog = 0
        """Lines that waited when the pipe was begun with."""
        self.steps = self.behind = self.longest = 0
        """Lines that were answered, at how many of them others waited, and how many at most."""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._lines: deque[bytes] = deque()
        self._rest, self._ahead, self._ended = b"", 0, False
        self._given = self._late = 0

    def __iter__(self) -> Iterator[str]:
        """Each line with its end. Raises `StreamStopped` for a cut one, `ConfigurationError` for an endless one."""
        while True:
            while not self._lines and not self._ended:
                if len(self._rest) > _LONGEST:
                    raise ConfigurationError(
                        f"{self._name}:{self._given + 1}: a line of more than {_LONGEST} bytes is no row of numbers"
                    )
                self._read()
            if not self._lines:
                break
            line = self._lines.popleft()
            self._ahead -= len(line) + 1
            self._given += 1
            # What is no UTF-8 is no number, and is refused with its line.
            yield line.decode("utf-8", "backslashreplace") + "\n"
        if self._rest:
            raise StreamStopped(
                f"{self._name}:{self._given + 1}: the pipe has ended within the line {_shown(self._rest)}, and that "
                "may be cut: it is not answered"
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
        if self.most_behind is not None and self._late > self.most_behind:
            raise StreamStopped(
                f"{self._name}:{self._given}: {self._late} lines waited when it was answered (--max-behind "
                f"{self.most_behind}): the lines come faster than they are answered"
            )

    def lines(self) -> list[str]:
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
        self._ahead += sum(map(len, lines)) + len(lines)


def _shown(text: bytes) -> str:
    return repr(text[:60].decode("utf-8", "backslashreplace"))


def live_pipe(stream: TextIO) -> LivePipe | None:
    """Of standard input; None for a file that is redirected, and for what is no descriptor."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else LivePipe(descriptor)
