"""Threads: how many, how they wait, and that a user's own limits hold."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from reservoir_hw.core import threads
from reservoir_hw.core.threads import share_out


def test_an_error_in_one_thread_is_raised():
    def fail_at_two(part):
        if part == 2:
            raise ValueError("part 2")

    with pytest.raises(ValueError, match="part 2"):
        share_out(fail_at_two, range(5), threads=3)
    done = []
    share_out(done.append, range(50), threads=4)
    assert sorted(done) == list(range(50))
    share_out(done.append, [], threads=4)


def test_nobody_is_at_work_after_an_error():
    main, begun, ended = threading.get_ident(), threading.Event(), []

    def fail_here_and_work_there(part):
        if threading.get_ident() != main:
            begun.set()
            time.sleep(0.2)
            ended.append(part)
        elif begun.wait(20):
            raise ValueError("interrupted")

    with pytest.raises(ValueError, match="interrupted"):
        share_out(fail_here_and_work_there, range(50), threads=2)
    assert len(ended) == 1


IDLE = """
import time
{imports}
x = {numbers}
taken = []
for _ in range(9):
    {work}
    before = time.process_time()
    time.sleep(0.05)
    taken.append(time.process_time() - before)
# By default those of torch spin for 13 ms, those of numpy for 28.
assert sorted(taken)[4] < 0.003, taken
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="these are the libraries of the wheels for Linux")
@pytest.mark.skipif(os.cpu_count() == 1, reason="there is one core")
@pytest.mark.parametrize(
    ("imports", "numbers", "work"),
    [
        ("import reservoir_hw, torch", "torch.arange(1_000_000.0)", "x.tanh()"),
        ("import torch, reservoir_hw", "torch.arange(1_000_000.0)", "x.tanh()"),
        ("import reservoir_hw, numpy", "numpy.ones((600, 600))", "x @ x"),
    ],
    ids=["torch", "torch that was there already", "numpy"],
)
def test_idle_threads_sleep(imports: str, numbers: str, work: str) -> None:
    if "torch" in imports:
        pytest.importorskip("torch")
    in_process(IDLE.format(imports=imports, numbers=numbers, work=work))


LIMITS = """
import os
import reservoir_hw, torch
from reservoir_hw.core.threads import cores, share_cores
share_cores(1)
from reservoir_hw.core import threads
load = threads.import_module
threads.import_module = lambda name: (print(os.environ.get("GOMP_SPINCOUNT"), end=" "), load(name))
with threads.numba_threads(1):
    pass
print(cores(), torch.get_num_threads(), os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMP_NUM_THREADS": "1,2"}, "10000 1 1 300"),
        ({"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "GOMP_SPINCOUNT": "7"}, "1 1 7"),
        ({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "active"}, "1 1 None"),
    ],
)
def test_limits_of_the_user_hold(environment: dict[str, str], expected: str) -> None:
    pytest.importorskip("torch")
    assert in_process(LIMITS, **environment).strip() == expected


SHARED = """
import os, sys
from reservoir_hw.core import arrays, threads
threads.share_cores(os.cpu_count())
assert "torch" not in sys.modules
torch = arrays.import_torch("a test")
assert torch.get_num_threads() == 1
threads.share_cores(1)
assert torch.get_num_threads() == os.cpu_count()
torch.set_num_threads(4)
threads.share_cores(os.cpu_count())
assert torch.get_num_threads() == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"NUMBA_NUM_THREADS": "1"}])
def test_processes_of_a_host_share_its_cores(environment: dict[str, str]) -> None:
    pytest.importorskip("torch")
    in_process(SHARED, **environment)


BLAS = """
import numpy as np
from reservoir_hw.core import threads
before, one = threads._openblas("numpy.linalg._umath_linalg", "get"), []
number = before()
assert number == int({number!r})
def part(_):
    with threads.blas_threads(1e12):
        one.append(before())
with threads.blas_threads(0):
    assert before() == 1
    with threads.blas_threads(1e12):
        assert before() == min(number, threads.cores())
    threads.share_out(part, range(40), 4)
    assert one == [1] * 40
threads.share_out(part, range(40), 4)
assert one == [1] * 80
assert before() == number
"""


@pytest.mark.parametrize("number", ["1", "2"])
def test_small_work_of_blas_takes_one_thread_and_the_users_number_comes_back(number: str) -> None:
    if os.cpu_count() == 1 < int(number):
        pytest.skip("there is one core")
    in_process(BLAS.format(number=number), OPENBLAS_NUM_THREADS=number)


def in_process(code: str, **environment: str) -> str:
    """What it prints, with these variables and without the others that concern threads."""
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_WAIT_POLICY", *threads._SHORT_WAITS)
    own = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=own | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
