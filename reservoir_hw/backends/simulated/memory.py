"""Memory that a simulation takes on its device: estimated before it is taken, and said where it runs out.

The numbers of `DriveMemory` were measured on the CPU by torch's profiler, for all kinds; tests hold them to it. What
the libraries of a GPU allocate for themselves, some ten MB, comes on top.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import OutOfMemory
from reservoir_hw.networks.random_matrices import Matrix, dense_is_faster

NOISE_NUMBERS = 1 << 20
"""Numbers of noise that are drawn at once: bounds the memory that a long run needs beyond its states."""

# Bytes of one number of noise while it is drawn, beside two in the precision of the states.
_NOISE_BYTES = 32
# Bytes for each state while all are checked to be finite, beside a copy of them.
_CHECK_BYTES = 3
# Steps of a CUDA graph, whose inputs, states and noise have memory of their own.
_GRAPH_STEPS = 64
# Drives are tried up to so many steps, or sequences.
_MOST = 1 << 40


@dataclass(frozen=True)
class DriveMemory:
    """Bytes on the device while a simulation is driven, beside its weights, for any number of sequences and steps.

    Those of the call before are counted too, as who asked for them may still hold them.

    Parameters
    ----------
    nodes, inputs
        Of the simulation.
    width
        Bytes of one number: 4 or 8.
    noisy
        Whether there are non-idealities.
    graphs
        Whether steps are recorded as CUDA graphs.
    """

    nodes: int
    inputs: int
    width: int = 4
    noisy: bool = False
    graphs: bool = False

    def bytes(self, batch: int, steps: int) -> int:
        """Of a call with so many sequences, of so many steps each."""
        numbers = batch * steps * self.nodes
        checked = (2 * self.width + _CHECK_BYTES) * numbers
        drawn = 0
        if self.noisy:
            at_once = min(numbers, max(NOISE_NUMBERS, batch * self.nodes))
            drawn = self.width * numbers + (2 * self.width + _NOISE_BYTES) * at_once
        before = self.width * numbers
        given = 3 * self.width * batch * steps * self.inputs
        graph = 3 * self.width * batch * _GRAPH_STEPS * (self.nodes + self.inputs) if self.graphs else 0
        return max(checked, drawn) + before + given + graph + 4 * self.width * batch * self.nodes

    def steps_that_fit(self, free: int, batch: int) -> int:
        """Steps of `batch` sequences that fit into so many bytes; 0 where not even one does."""
        return bisect_right(range(1, _MOST), free, key=lambda steps: self.bytes(batch, steps))

    def sequences_that_fit(self, free: int, steps: int) -> int:
        """Sequences of so many steps that fit into so many bytes."""
        return bisect_right(range(1, _MOST), free, key=lambda batch: self.bytes(batch, steps))


def network_bytes(nodes: int, inputs: int, links: int | Matrix, width: int) -> int:
    """Bytes on the device of one recurrent matrix, with its input weights, bias and leak, in numbers of `width` bytes.

    `links` is the matrix, or how many weights it will have. Of sparse ones (CSR) each has its column, of 4 bytes, and
    each row its start.
    """
    if isinstance(links, int):
        dense = dense_is_faster(nodes, links)
    else:
        dense, links = isinstance(links, np.ndarray), links.size
    recurrent = nodes * nodes * width if dense else links * (width + 4) + 4 * (nodes + 1)
    return recurrent + width * nodes * (inputs + 2)


def free_bytes(device: str) -> int:
    """What can still be taken on "cpu", "cuda" or "cuda:N"; on a GPU with what torch holds and does not use."""
    if device == "cpu":
        return _available()
    torch = arrays.import_torch("a simulated reservoir on a GPU")
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def does_not_fit(need: DriveMemory, batch: int, steps: int, free: int, device: str) -> str:
    """One sentence about a call that there is not enough memory for, with what would fit."""
    fitting = need.steps_that_fit(free, batch)
    many = need.sequences_that_fit(free, steps)
    instead = [f"{fitting:,} steps of as many sequences"] * (fitting > 0)
    instead += [f"{many:,} sequences of as many steps"] * (0 < many < batch)
    advice = f"{' or '.join(instead)} would fit at a time" if instead else "not even one step would fit"
    return (
        f"the states of {batch:,} sequences of {steps:,} steps take about {in_units(need.bytes(batch, steps))} of "
        f"memory on {device}, where {in_units(free)} are free: {advice}"
    )


@contextlib.contextmanager
def out_of_memory_said(sentence: Callable[[], str]) -> Iterator[None]:
    """Raise `OutOfMemory` with this sentence where numpy or torch finds no memory for an array."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, OutOfMemory) or not _is_out_of_memory(error):
            raise
        # What the calls that have failed hold counts as free.
        traceback.clear_frames(error.__traceback__)
        raise OutOfMemory(sentence()) from error


def in_units(number: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _available() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # Not Linux, and nobody says: then nothing is bounded by it.
    return sys.maxsize


def _is_out_of_memory(error: Exception) -> bool:
    # On the CPU torch has no class for it.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "alloc_cpu" in str(error)
