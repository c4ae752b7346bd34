"""The conformance suite on one device: what `reservoir-hw conform` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.hil import GROUPS
from reservoir_hw.core.reservoir_config import ReservoirConfig, parse_reservoir
from reservoir_hw.experiment.devices.reservoir_file import config_from_file
from reservoir_hw.testing import collected, devices, plugin
from reservoir_hw.testing.report import Report
from reservoir_hw.testing.session import SuiteRun

SUITE_FOLDER = Path(__file__).parent / "suite"

OnPlan = Callable[[SuiteRun], None]
Progress = Callable[[str, int, int], None]


def conform(
    config: ReservoirConfig | Mapping[str, Any] | str | Path,
    *,
    groups: Sequence[str] = (),
    budget: str | int | None = None,
    seed: int = 0,
    junit: str | Path | None = None,
    on_plan: OnPlan | None = None,
    progress: Progress | None = None,
) -> Report:
    """Look at every statement of the suite, or of the groups named, and say what was found.

    Parameters
    ----------
    config
        A configuration, a mapping with `kind`, or the path of a reservoir or experiment file.
    budget
        Device steps (20,000), or the time that they take: "10m".
    on_plan
        Is called before anything but a short drive is done.
    progress
        Is called with (statement, device steps done, device steps planned).

    Raises `ConfigurationError` for an unknown group and a budget that is too small, and what opening the device raises.
    """
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise ConfigurationError(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    collected.budget(None if budget is None else str(budget))
    if isinstance(config, Mapping):
        config = parse_reservoir(Document.from_mapping(config, "conform"))
    device = config if isinstance(config, ReservoirConfig) else config_from_file(config)
    session = _Session(devices.with_inputs(device), on_plan, progress)
    chosen = [group for group in GROUPS if group in groups or not groups]
    arguments = [
        *(str(SUITE_FOLDER / f"test_{group}.py") for group in chosen),
        *("-c", str(SUITE_FOLDER / "pytest.ini"), "--rootdir", str(SUITE_FOLDER), "-s", "-p", plugin.__name__),
        *("-p", "no:cacheprovider", "-p", "no:terminalreporter", "-p", "no:logging", "-p", "no:faulthandler"),
        *("-p", "no:unraisableexception", "-p", "no:threadexception", "-p", "no:warnings"),
        f"--reservoir-seed={seed}",
        *([] if budget is None else [f"--reservoir-budget={budget}"]),
        *([] if junit is None else [f"--junitxml={Path(junit).resolve()}"]),
    ]
    with _pytest_alone():
        status = pytest.main(arguments, plugins=[session])
    if session.error is not None:
        raise session.error
    if session.interrupted:
        raise KeyboardInterrupt
    if session.run is None or status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with status {status}")
    return Report.of(session.run, chosen)


class _Session:
    """Gives pytest the device, and opens it before the first statement."""

    def __init__(self, device: ReservoirConfig, on_plan: OnPlan | None, progress: Progress | None) -> None:
        self.error: Exception | None = None
        self.run: SuiteRun | None = None
        self.interrupted = False
        self._device, self._on_plan, self._progress = device, on_plan, progress

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.DEVICES] = {"device": self._device}

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        (self.run,) = session.config.stash[collected.SUITE].values()
        try:
            self.run.open()
            if self._on_plan is not None:
                self._on_plan(self.run)
        except Exception as error:
            self.error = error
            self.run.bench.close()
            session.items.clear()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._progress is not None and self.run is not None:
            name = nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            self._progress(name, self.run.bench.device_steps, self.run.device_steps)


@contextmanager
def _pytest_alone() -> Iterator[None]:
    """Without the options, plugins and settings that somebody has set for tests of their own."""
    names = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    kept = {name: os.environ.pop(name, None) for name in names}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
