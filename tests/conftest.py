"""For all tests."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# pytest-xdist sets it for its workers. Tables then have the same width with and without workers.
os.environ.pop("COLUMNS", None)
# Each process that a test starts would compile the package again, and each worker the asserts of all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What tests write lies in memory, where there is room and programs may be run: a sweep and a store wait for the disk at
# each file, and most tests do little else.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9 and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
# Workers use devices of the same names: to the locks each worker is a host of its own.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("RESERVOIR_HW_LOCKS", str(Path(tempfile.gettempdir()) / f"reservoir_hw-locks-{worker}"))


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A free address of the scheme that the test's parameter or its module's SCHEME names, of `ipc` where none does."""
    from served import free_address, ipc_address

    scheme = getattr(request, "param", getattr(request.module, "SCHEME", "ipc"))
    if scheme == "tcp":
        yield free_address()
        return
    with ipc_address(scheme) as address:
        yield address


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums must not depend on how many threads torch splits them over."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def pictures() -> None:
    """For tests that look at figures and reports, where others have `no_pictures`."""


@pytest.fixture
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than small experiments: they run as if the extra `report` were not there."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("reservoir_hw.experiment.run.report.have_report_extra", lambda: False)
        if training := sys.modules.get("reservoir_hw.readout.training.folder"):
            monkeypatch.setattr(training, "draw_losses", lambda rows, path: None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that are marked `gpu` need a GPU that torch finds."""
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first. A worker of xdist reads all pages in turn, as they name the same ports."""
    items.sort(key=lambda item: {"test_pages.py": 0, "test_wire.py": 1}.get(item.path.name, 2))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no garbage collection in a test goes through it again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How much of the documentation was run (test_pages.py). Here, as the workers of xdist do not print."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    said = [entry for report in reports for entry in getattr(report, "user_properties", ()) if "of pages" in entry[0]]
    taken = [value for name, value in said if name == "seconds of a processor of pages"]
    if taken:
        run = sum(value for name, value in said if name == "blocks of pages")
        terminalreporter.write_line(f"documentation: {run} blocks run in {sum(taken):.0f} s of a processor")
    for name, value in said:
        if name == "all blocks of pages":
            terminalreporter.write_line(f"documentation: {value}")
