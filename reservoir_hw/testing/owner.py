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

DRIVING = "driving"


@contextlib.contextmanager
def process(config: ReservoirConfig, u: np.ndarray) -> Iterator[subprocess.Popen[str]]:
    """The process, which first says `DRIVING`, or what went wrong; killed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "device.pickle"
        given.write_bytes(pickle.dumps((config, u)))
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, str(given)],
            # The same modules as here: of a lab, or of a test.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RESERVOIR_HW_WAIT_S": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
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
    """The first line of the process. Raises `ReservoirError` where it is not `word` (any, if that is empty)."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            raise ReservoirError(f"the process that should drive the device said nothing for {seconds:g} s")
    line = child.stdout.readline().strip()
    if word and line != word:
        raise ReservoirError(f"the process that should drive the device could not: {line or 'it ended'}")
    return line


def main(given: str) -> None:
    """Drive on and on."""
    config, u = pickle.loads(Path(given).read_bytes())
    # A shell's background job ignores it, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with build_reservoir(config) as reservoir:
            told = False
            while True:
                reservoir.reset(1)
                reservoir.run(u)
                if not told:
                    print(DRIVING, flush=True)  # noqa: T201
                    told = True
                time.sleep(0)
    except ReservoirError as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
