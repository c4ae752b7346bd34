"""Random numbers that do not depend on the machine, the chunking or the order of the calls."""

from __future__ import annotations

import hashlib

import numpy as np


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def generator(seed: int, name: str) -> np.random.Generator:
    """A CPU generator for what is called `name` (a matrix, a task's sequence).

    Each name has a stream of its own: drawing more for one leaves the others as they were.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _key(name)])))


def step_noise(seed: int, sequence: int, step: int, size: int, name: str = "noise") -> np.ndarray:
    """Standard normal noise (size,) of one time step of one sequence, float64.

    The generator is counter-based (Salmon et al. 2011, Philox) and keyed by (seed, sequence, step), so a
    run in chunks, resumed or repeated, meets the same noise.
    """
    key = np.array([seed % 2**64, _key(name)], dtype=np.uint64)
    counter = np.array([0, 0, step, sequence], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal(size)
