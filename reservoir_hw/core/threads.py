"""The one place that decides on threads: those of numba, of BLAS, of torch and of onnxruntime.

Work below a threshold takes one thread; the thresholds stand where the work is known. No pool waits for work by
spinning for longer than a hand-over takes, since somebody else may need the core. What the user has set holds.
"""

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
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

_Part = TypeVar("_Part")

# How long idle threads spin, about 0.02 ms, as the parts of a step follow each other; without it up to 200 ms. GNU's
# OpenMP counts turns, LLVM's and Intel's milliseconds, OpenBLAS powers of two of clock cycles.
_SHORT_WAITS = {"GOMP_SPINCOUNT": "300", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "15"}
# The turns of numba's OpenMP, about 0.4 ms: all threads meet at each step of a network, and to wake one would take
# longer than the step. torch has fewer meetings, and between them its threads would keep others from the cores.
_NUMBAS_TURNS = "10000"
# Operations of a product or factorisation under which BLAS takes one thread, about 0.05 s of work.
_THREADED_BLAS = 2e9

# numba's simplest threading layer aborts the process when two threads enter it at once.
_parallel_region = threading.Lock()

# Blocks of `blas_threads` that are entered, and the numbers of threads outside of them, by the module that has a BLAS.
_blas_scopes = threading.Lock()
_blas_depth = 0
_blas_before: dict[str, int] = {}

# Whether this thread is at a part of `share_out`.
_here = threading.local()

# Processes of this host that share its cores, this one included.
_processes = 1
# Threads that torch had by itself, and those that it was given as its share.
_of_torch, _given_to_torch = 0, 0


def wait_shortly() -> None:
    """Let idle threads sleep soon, unless the user has said how they wait (`OMP_WAIT_POLICY`, `GOMP_SPINCOUNT`).

    Libraries read it when they are loaded. GNU's OpenMP of a torch that is there already spins for 13 ms, but hardly
    where it knows of more threads than cores: so it gets some that sleep for good.
    """
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    for name, value in _SHORT_WAITS.items():
        os.environ.setdefault(name, value)
    if "torch" in sys.modules:
        for library in _openmp():
            threading.Thread(target=_keep_team, args=(library,), name="sleeping OpenMP", daemon=True).start()


def _keep_team(library: ctypes.CDLL) -> None:
    nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
    library.GOMP_parallel(nothing, None, ctypes.c_uint((os.cpu_count() or 1) + 1), ctypes.c_uint(0))
    # Its team lives as long as this thread.
    threading.Event().wait()


def share_cores(processes: int) -> None:
    """Share the cores of this host with others: `processes` in all, this one included, who say so too."""
    global _processes
    _processes = max(1, processes)
    share_with_torch()


def share_with_torch() -> None:
    """Give torch its share of the cores, or back what it had: also after `share_cores`, as it may be loaded late.

    A limit of the user's stays as it is.
    """
    global _of_torch, _given_to_torch
    torch: Any = sys.modules.get("torch")
    # Another thread may be importing it.
    if not hasattr(torch, "set_num_threads") or _limit("OMP_NUM_THREADS") is not None:
        return
    if _processes == 1 and not _given_to_torch:
        return
    if torch.get_num_threads() != _given_to_torch:
        _of_torch = torch.get_num_threads()
    _given_to_torch = min(_of_torch, _share())
    torch.set_num_threads(_given_to_torch)


def cores() -> int:
    """Threads that a piece of work may take: the cores of this process, or its share; fewer where its user said so."""
    limit = _limit("NUMBA_NUM_THREADS") or _limit("OMP_NUM_THREADS")
    return _share() if limit is None else min(_cores_here(), limit)


def _share() -> int:
    return max(1, _cores_here() // _processes)


def _cores_here() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _limit(variable: str) -> int | None:
    # A list has a number for each level of nested regions.
    said = os.environ.get(variable, "").partition(",")[0].strip()
    return max(1, int(said)) if said.isdigit() else None


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
        self._best = {True: float("inf"), False: float("inf")}
        self._resume = 0.0
        self._slice = 4

    def drive(self, advance: Callable[[int, int, int], None], steps: int, threads: int) -> None:
        """Call `advance(begin, end, threads)` until all steps are done."""
        done = 0
        while done < steps:
            shared = threads > 1 and self._probes >= self._PROBES and time.perf_counter() >= self._resume
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
def blas_threads(operations: float) -> Iterator[None]:
    """Inside this block, products and factorisations of numpy and scipy take one thread, more for many operations.

    A factorisation has thousands of meetings, and at each may wait for a thread that has lost its core. The number
    depends on the size alone, since the order of sums depends on it. Nothing is done where BLAS is not OpenBLAS.
    """
    global _blas_depth
    many = operations >= _THREADED_BLAS and not _is_shared_out()
    with _blas_scopes:
        _blas_depth += 1
        for module in ("numpy.linalg._umath_linalg", "scipy.linalg._fblas"):
            if module in sys.modules:
                before = _blas_before.setdefault(module, _openblas(module, "get")())
                _openblas(module, "set")(min(before, cores()) if many else 1)
    try:
        yield
    finally:
        with _blas_scopes:
            _blas_depth -= 1
            for module, before in _blas_before.items():
                _openblas(module, "set")(1 if _blas_depth else before)
            if not _blas_depth:
                _blas_before.clear()


@cache
def _openblas(module: str, verb: str) -> Callable[..., Any]:
    """`openblas_get_num_threads` or `openblas_set_num_threads` of what this module is linked to, by a wheel's name."""
    library = ctypes.CDLL(sys.modules[module].__file__)
    for name in ("scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):
        for ending in ("64_", ""):
            with suppress(AttributeError):
                return getattr(library, name.format(verb) + ending)
    return lambda *number: 1


def quiet_session(options: Any, threads: int) -> None:
    """Let a session of onnxruntime take so many threads, which sleep while it does not run."""
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads would take processor time from the code that drives the reservoir.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")


@contextmanager
def numba_threads(threads: int) -> Iterator[None]:
    """Inside this block, parallel kernels divide their work among this many threads, or as many as numba has."""
    import numba

    _load_numbas_openmp()
    # None too while another thread is importing torch.
    torchs = getattr(sys.modules.get("torch"), "get_num_threads", None)
    with _parallel_region:
        of_torch = None if torchs is None else torchs()
        before = numba.get_num_threads()
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # pyright: ignore
        try:
            yield
        finally:
            numba.set_num_threads(before)
            # Where numba begins its threads, at its first call, it sets the number of torch's as well.
            if torchs is not None and torchs() != of_torch:
                sys.modules["torch"].set_num_threads(of_torch)


@cache
def _load_numbas_openmp() -> None:
    """Load the OpenMP that numba uses, whose threads may spin for longer than those of torch.

    It reads the variable when it is loaded, and a torch that comes later reads the short one again. Where the user has
    set the variable, nothing is changed.
    """
    if os.environ.get("GOMP_SPINCOUNT") != _SHORT_WAITS["GOMP_SPINCOUNT"]:
        return
    os.environ["GOMP_SPINCOUNT"] = _NUMBAS_TURNS
    try:
        # Where there is none numba takes other threads.
        with suppress(ImportError):
            import_module("numba.np.ufunc.omppool")
    finally:
        os.environ["GOMP_SPINCOUNT"] = _SHORT_WAITS["GOMP_SPINCOUNT"]


def share_out(work: Callable[[_Part], object], parts: Sequence[_Part], threads: int) -> None:
    """Call `work` for each part, on this many threads, the calling one included. `work` should release the GIL.

    For parts that do not wait for each other. These threads sleep between calls. Nobody is at work any more when this
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


def _openmp() -> list[ctypes.CDLL]:
    """GNU's OpenMP, as often as it is loaded: wheels bring their own, under names such as libgomp-a34b3233.so.1."""
    found = []
    with suppress(OSError):
        mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        for path in sorted(path for path in mapped if Path(path).name.startswith("libgomp")):
            with suppress(OSError):
                found.append(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD))
    return found


@cache
def _helpers(process: int) -> ThreadPoolExecutor:
    """The threads of this process. A forked process has none of the threads of its parent."""
    return ThreadPoolExecutor(os.cpu_count(), "reservoir")
