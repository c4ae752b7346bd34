"""A small process that brings instruments to their safe state if the process that drives them dies.

It is started before the outputs are switched on, with connections of its own, and waits at the end of a pipe. If the
pipe closes without a word, its owner has died: the guard sends the commands of the safe state. An instrument that takes
one connection at a time is opened only then. The guard holds a lock of its own, so that nobody else gets the device
before it is safe.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence

from filelock import Timeout
from pydantic import TypeAdapter

from reservoir_hw.core.errors import DeviceFault, ReservoirError
from reservoir_hw.core.locks import guard_lock
from reservoir_hw.drivers.commands import TextInstrument
from reservoir_hw.drivers.visa.roles import SafeState

_READY = "ready"
_ALL_IS_WELL = b"done"
_PATIENCE_S = 30.0
_ATTEMPTS = 3
# What the guard is given: resources, and safe states.
_GIVEN = TypeAdapter(tuple[Sequence[str], Sequence[SafeState]])


class Guard:
    """Watches over this process, which holds the host locks of `resources`."""

    def __init__(self, safe_states: Sequence[SafeState], resources: Sequence[str]) -> None:
        self._safe_states, self._resources = safe_states, resources
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it has its connections. Raises `DeviceFault` if it cannot have them."""
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in the terminal, and the end of its session, are for the owner alone.
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(_GIVEN.dump_json((self._resources, self._safe_states)) + b"\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(_PATIENCE_S):
                    raise DeviceFault(
                        f"the process that should watch over the instruments said nothing for {_PATIENCE_S:g} s"
                    )
            said = process.stdout.readline().decode().strip() or "it ended"
        except BaseException:
            self.stop()
            raise
        if said != _READY:
            self.stop()
            raise DeviceFault(f"nobody can watch over the instruments: {said}; nothing was switched on")

    def expect_alive(self) -> None:
        """Raise `DeviceFault` if the guard has ended: then nobody would switch the outputs off after us."""
        if self._process is None or self._process.poll() is not None:
            raise DeviceFault(
                "the process that watches over the instruments has ended; nothing is driven without it: open the "
                "device again"
            )

    def abandon(self) -> None:
        """The owner could not bring its instruments to their safe state: the guard does, and ends. Idempotent."""
        self._end(b"")

    def stop(self) -> None:
        """The owner has brought its instruments to their safe state itself. Idempotent."""
        self._end(_ALL_IS_WELL)

    def _end(self, word: bytes) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(word)
            process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()
        process.stdout.close()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resources, safe_states = _GIVEN.validate_json(sys.stdin.buffer.readline())
    instruments = {one.address: TextInstrument(one.address, one.connection) for one in safe_states}
    locks = [guard_lock(resource) for resource in resources]
    try:
        for lock in locks:
            lock.acquire(timeout=0)
        for instrument in instruments.values():
            if not instrument.takes_one_client:
                instrument.open()
    except (ReservoirError, Timeout) as error:
        _say(str(error).replace("\n", " "))
        return
    _say(_READY)
    if sys.stdin.buffer.read() == _ALL_IS_WELL:
        return
    told = {one.address: "it was brought to its safe state" for one in safe_states}
    for one in safe_states:
        if failed := _apply(one, instruments[one.address]):
            told[one.address] = f"it could NOT be brought to its safe state, do it by hand: {failed}"
    for address, said in told.items():
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"the process that drove {address} has died; {said}\n".encode())


def _say(line: str) -> None:
    # Its owner may be gone already.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _apply(safe: SafeState, instrument: TextInstrument) -> str:
    """What went wrong in the last attempt; empty where all went well."""
    failed = ""
    for _ in range(_ATTEMPTS):
        try:
            for line in safe.commands:
                (instrument.ask if safe.answered else instrument.write)(line)
            if safe.confirm:
                instrument.ask(safe.confirm)
        except ReservoirError as error:
            failed = str(error)
        else:
            return ""
    return failed


if __name__ == "__main__":
    _main()
