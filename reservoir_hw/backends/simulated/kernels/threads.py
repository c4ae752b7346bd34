"""How many threads drive a network: as many as there are, while that is the quicker way."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from reservoir_hw.backends.simulated.kernels.compiled import numba

_Part = TypeVar("_Part")

# numba's simplest threading layer aborts the process when two threads enter it at once.
_parallel_region = threading.Lock()

# Whether this thread is at a part of `share_out`.
_here = threading.local()

# Of OpenMP 5.0, section 3.2.44, and PF_FORKNOEXEC of Linux: forked, and no other program begun since.
_OMP_PAUSE_SOFT = 1
_FORKED = 0x40


class AdaptiveThreads:
    """Decides, as it drives, whether a network's steps are shared out among threads or done by one.

    Threads that wait for one another at every step are the quicker way while each has a core. Where another
    process wants a core too, a step takes as long as the scheduler's time slice, a thousand times longer.
    Nothing tells beforehand, so the steps are timed: as soon as sharing them is the slower way, one thread
    goes on alone for a while. The kernel is the same and so are the bits.
    """

    _SLICE = 32
    _PROBES = 4
    _ALONE_FOR = 30.0

    def __init__(self) -> None:
        self._probes = 0
        self._best = {True: np.inf, False: np.inf}
        self._resume = 0.0
        self._slice = 4

    def drive(self, advance: Callable[[int, int, int], None], steps: int, threads: int) -> None:
        """Call `advance(begin, end, threads)` until all steps are done."""
        done = 0
        while done < steps:
            now = time.perf_counter()
            shared = threads > 1 and self._probes >= self._PROBES and now >= self._resume
            end = steps if threads == 1 else min(steps, done + self._slice)
            with numba_threads(threads if shared else 1):
                begin = time.perf_counter()
                advance(done, end, threads if shared else 1)
                self._learn(shared, time.perf_counter() - begin, end - done)
            done = end

    def _learn(self, shared: bool, seconds: float, steps: int) -> None:
        self._probes += 1
        if self._probes == 1:
            return  # this one compiled
        # The quickest seen: what else the machine does only ever adds.
        per_step = seconds / steps
        self._best[shared] = min(self._best[shared], per_step)
        if shared and per_step > 1.5 * min(self._best[False], 2 * self._best[True]):
            self._resume = time.perf_counter() + self._ALONE_FOR * seconds
            self._slice = 4
        elif self._probes >= self._PROBES:
            self._slice = min(2 * self._slice, self._SLICE)


@contextmanager
def numba_threads(threads: int) -> Iterator[None]:
    """Inside this block, parallel kernels divide their work among this many threads."""
    # None too while another thread is importing torch.
    torchs = getattr(sys.modules.get("torch"), "get_num_threads", None)
    with _parallel_region:
        of_torch = None if torchs is None else torchs()
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            yield
        finally:
            numba.set_num_threads(before)
            # Where numba begins its threads, at its first call, it sets the number of torch's as well.
            if torchs is not None and torchs() != of_torch:
                sys.modules["torch"].set_num_threads(of_torch)


def available_threads() -> int:
    """The most that set_num_threads accepts: the cores of this process, or fewer where its user said so."""
    return int(numba.config.NUMBA_NUM_THREADS)  # pyright: ignore


def share_out(work: Callable[[_Part], object], parts: Sequence[_Part], threads: int) -> None:
    """Call `work` for each part, on this many threads, the calling one included. `work` should release the GIL.

    For parts that do not wait for each other. The threads of numba's parallel kernels spin for 13 ms after each call,
    in the way of whoever computes next, which in training is torch; these sleep. Nobody is at work any more when this
    returns or raises.
    """
    # Shared: the interpreter lock lets one thread at a time take the next.
    remaining = iter(parts)

    def take_parts() -> None:
        outer, _here.is_shared_out = _is_shared_out(), min(threads, len(parts)) > 1
        try:
            for part in remaining:
                work(part)
        finally:
            _here.is_shared_out = outer

    helpers = [_helpers(os.getpid()).submit(take_parts) for _ in range(min(threads, len(parts)) - 1)]
    try:
        take_parts()
    except BaseException:
        for _ in remaining:
            pass
        raise
    finally:
        # Nothing is left for those that have not begun.
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


def threads_here(most: int) -> int:
    """`most`; one where the caller is itself a part of `share_out`, whose other parts have the other threads."""
    return 1 if _is_shared_out() else most


def _is_shared_out() -> bool:
    return getattr(_here, "is_shared_out", False)


def release_torch_threads() -> None:
    """Let go of the threads with which torch has computed for this one; it makes new ones when it needs them.

    Those of GNU's OpenMP, which torch's wheels for Linux have, spin for about 14 ms after each of torch's calls, and
    others share the cores with them meanwhile: in training, a reservoir would take 1.3 to 1.8 times as long. New ones
    take about 0.1 ms. Nothing is done elsewhere.
    """
    if os.getpid() != _PROCESS or "torch" not in sys.modules:
        return
    for openmp in _openmp():
        openmp.omp_pause_resource_all(_OMP_PAUSE_SOFT)


@cache
def _openmp() -> list[ctypes.CDLL]:
    """GNU's OpenMP, as often as it is loaded: wheels bring their own, under names such as libgomp-a34b3233.so.1."""
    found = []
    with suppress(OSError):
        mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        for path in sorted(path for path in mapped if Path(path).name.startswith("libgomp")):
            with suppress(OSError, AttributeError):
                library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
                library.omp_pause_resource_all.argtypes = [ctypes.c_int]
                found.append(library)
    return found


def _this_process() -> int | None:
    """Its number; None if it is a fork, which has the library of its parent, but not the threads, and would wait."""
    with suppress(OSError, IndexError, ValueError):
        flags = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6])
        # A system that is Linux in name alone says 0.
        return os.getpid() if flags and not flags & _FORKED else None
    return None


_PROCESS = _this_process()


@cache
def _helpers(process: int) -> ThreadPoolExecutor:
    """The threads of this process. A forked process has none of the threads of its parent."""
    del process
    return ThreadPoolExecutor(available_threads(), "reservoir")
