"""Random numbers that do not depend on the machine, the chunking or the order of the calls."""

from __future__ import annotations

import hashlib

import numpy as np

WORDS = 4
"""Numbers that one value of the Philox counter stands for."""


def stream_key(name: str) -> int:
    """The 64 bits by which the generators know `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def generator(seed: int, name: str) -> np.random.Generator:
    """A CPU generator for what is called `name` (a matrix, a task's sequence).

    Each name has a stream of its own: drawing more for one leaves the others as they were.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream_key(name)])))


def step_uniform(seed: int, sequence: int, first: int, steps: int, size: int, name: str) -> np.ndarray:
    """Numbers uniform in [0, 1) for consecutive time steps of one sequence: (steps, size), float64.

    The generator is counter-based (Salmon et al. 2011, Philox) and keyed by (seed, sequence, step), so a
    run in chunks, resumed or repeated, meets the same numbers. `first` is the number of the first step.
    """
    blocks = -(-size // WORDS)
    key = np.array([seed % 2**64, stream_key(name)], dtype=np.uint64)
    counter = np.array([first * blocks, 0, sequence, 0], dtype=np.uint64)
    numbers = np.random.Generator(np.random.Philox(key=key, counter=counter)).random((steps, blocks * WORDS))
    return numbers[:, :size]


def step_noise(seed: int, sequence: int, first: int, steps: int, size: int, name: str = "noise") -> np.ndarray:
    """Standard normal numbers, otherwise as `step_uniform` (Box and Muller 1958): (steps, size), float64."""
    pairs = -(-size // 2)
    uniform = step_uniform(seed, sequence, first, steps, 2 * pairs, name)
    radius = np.sqrt(-2 * np.log1p(-uniform[:, :pairs]))
    angle = 2 * np.pi * uniform[:, pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :size]
