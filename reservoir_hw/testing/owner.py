"""A process of its own that opens a device and drives it until it is stopped."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from reservoir_hw.core.errors import ReservoirError
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir
from reservoir_hw.testing.plan import unverified

DRIVING = "driving"
_NOT_STARTED = "not started: "
_STDERR = "stderr"


@contextlib.contextmanager
def process(config: ReservoirConfig, u: np.ndarray) -> Iterator[subprocess.Popen[str]]:
    """The process, which first says `DRIVING`, or what went wrong; killed at the end.

    A configuration that cannot be handed over makes the statement unverified.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "device.pickle"
        try:
            given.write_bytes(pickle.dumps((config, u)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            unverified(f"the process could not be started: {type(error).__name__}: {error}")
        with given.with_name(_STDERR).open("wb") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(given)],
                # The same modules as here: of a lab, or of a test.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RESERVOIR_HW_WAIT_S": "0"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def wait_for(child: subprocess.Popen[str], word: str, seconds: float) -> str:
    """The first line of the process. Raises `ReservoirError` where it is not `word` (any, if that is empty).

    A process that did not get as far as the device makes the statement unverified.
    """
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            raise ReservoirError(f"the process that should drive the device said nothing for {seconds:g} s")
    line = child.stdout.readline().strip()
    if line.startswith(_NOT_STARTED):
        unverified(f"the process could not be started: {line.removeprefix(_NOT_STARTED)}")
    if not line or (word and line != word):
        raise ReservoirError(f"the process that should drive the device could not: {line or _last_words(child)}")
    return line


def _last_words(child: subprocess.Popen[str]) -> str:
    """The last line of what it said on standard error."""
    *_, given = child.args  # type: ignore[misc]
    said = Path(str(given)).with_name(_STDERR).read_text(errors="replace").strip()
    return f"it ended: {said.splitlines()[-1]}" if said else "it ended"


def main(given: str) -> None:
    """Drive on and on."""
    try:
        config, u = pickle.loads(Path(given).read_bytes())
    except Exception as error:
        # A class that only the first process knows, of its script or its notebook.
        print(f"{_NOT_STARTED}{type(error).__name__}: {error}".replace("\n", " "), flush=True)  # noqa: T201
        return
    # A shell's background job ignores it, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with build_reservoir(config) as reservoir:
            reservoir.run(u)
            print(DRIVING, flush=True)  # noqa: T201
            while True:
                reservoir.reset(1)
                reservoir.run(u)
                time.sleep(0)
    except ReservoirError as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
