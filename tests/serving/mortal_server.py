"""A device server in a process of its own that dies in the middle of a step: mortal_server.py ADDRESS DIES_AT."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
from toys import Toy

from reservoir_hw.serving import Server


class MortalToy(Toy):
    """Kills its own process instead of doing step `dies_at` after the last reset."""

    def __init__(self, dies_at: int) -> None:
        super().__init__()
        self.dies_at = dies_at

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        if self.t[0] + u.shape[1] > self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._run(u, out)


if __name__ == "__main__":
    Server(MortalToy(int(sys.argv[2])), sys.argv[1], lease_s=0.5).run(lambda: print("ready", flush=True))
