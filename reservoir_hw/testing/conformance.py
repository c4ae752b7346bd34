"""The conformance suite on one device: what `reservoir-hw conform` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import must_be_writable
from reservoir_hw.core.reservoir_config import GROUPS, ReservoirConfig, parse_reservoir
from reservoir_hw.experiment.devices.info import config_from_file
from reservoir_hw.testing import collected, devices, plugin
from reservoir_hw.testing.report import Report
from reservoir_hw.testing.session import OnPlan, Share, SuiteRun

SUITE_FOLDER = Path(__file__).parent / "suite"

Progress = Callable[[str, int, int], None]


def conform(
    config: ReservoirConfig | Mapping[str, Any] | str | Path,
    *,
    groups: str | Sequence[str] = (),
    budget: str | int | Share | None = None,
    seed: int = 0,
    junit: str | Path | None = None,
    on_plan: OnPlan | None = None,
    progress: Progress | None = None,
) -> Report:
    """Look at every statement of the suite, or of repeatability and the groups named, and say what was found.

    Parameters
    ----------
    config
        A configuration, a mapping with `kind`, or the path of a reservoir or experiment file.
    budget
        Device steps (20,000), or the time that they take: "10m". Or a function that is told how many device steps the
        suite needs at least and has as a rule, and says the budget: before anything is driven, so that it may refuse.
    on_plan
        Is told the plan before the device is driven, and again where it had to change. A budget in time, on a device
        that declares no pace, is first told, then found out with a short drive, and then planned.
    progress
        Is called with (statement, device steps done, device steps planned).

    Raises `ConfigurationError` for an unknown group, a budget that is too small, and what `hil:` names and is not
    there; what opening the device raises; `Interrupted`, with the report so far, after Ctrl-C.
    """
    groups = [groups] if isinstance(groups, str) else groups
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise ConfigurationError(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if seed < 0:
        raise ConfigurationError(f"seed is {seed}: give 0 or more")
    if junit is not None:
        must_be_writable(junit, "the JUnit XML")
    share = budget if callable(budget) else None
    given = None if budget is None or callable(budget) else str(budget)
    collected.budget(given)
    if isinstance(config, Mapping):
        config = parse_reservoir(Document.from_mapping(config, "conform"))
    device = config if isinstance(config, ReservoirConfig) else config_from_file(config)
    session = _Session(devices.with_inputs(device), share, on_plan, progress)
    # What scatters is found out first: the others compare accordingly.
    chosen = [group for group in GROUPS if group in groups or not groups or group == "repeatability"]
    arguments = [
        *(str(SUITE_FOLDER / f"test_{group}.py") for group in chosen),
        *("-c", str(SUITE_FOLDER / "pytest.ini"), "--rootdir", str(SUITE_FOLDER), "-s", "-p", plugin.__name__),
        *("-p", "no:cacheprovider", "-p", "no:terminalreporter", "-p", "no:logging", "-p", "no:faulthandler"),
        *("-p", "no:unraisableexception", "-p", "no:threadexception", "-p", "no:warnings"),
        f"--reservoir-seed={seed}",
        *([] if given is None else [f"--reservoir-budget={given}"]),
        *([] if junit is None else [f"--junitxml={Path(junit).resolve()}"]),
    ]
    with _pytest_alone():
        status = pytest.main(arguments, plugins=[session])
    if session.error is not None:
        raise session.error
    if session.interrupted and (session.run is None or not session.run.planned):
        raise KeyboardInterrupt
    if session.interrupted and session.run is not None:
        raise Interrupted(Report.of(session.run, chosen, interrupted=True))
    if session.run is None or status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with status {status}")
    return Report.of(session.run, chosen)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a run: `report` has what was found until then."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


class _Session:
    """Gives pytest the device, and opens it before the first statement."""

    def __init__(
        self, device: ReservoirConfig, share: Share | None, on_plan: OnPlan | None, progress: Progress | None
    ) -> None:
        self.error: Exception | None = None
        self.run: SuiteRun | None = None
        self.interrupted = False
        self._device, self._share, self._on_plan, self._progress = device, share, on_plan, progress

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.DEVICES] = {"": self._device}

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        (self.run,) = session.config.stash[collected.SUITE].values()
        if self._on_plan is not None:
            self.run.on_plan = self._on_plan
        self.run.share = self._share
        try:
            self.run.open()
        except Exception as error:
            self.error = error
            session.items.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._progress is not None and self.run is not None:
            name = ": ".join(collected.group_and_name(item))
            self._progress(name, self.run.bench.device_steps, self.run.device_steps)


@contextmanager
def _pytest_alone() -> Iterator[None]:
    """Without the options, plugins and settings that somebody has set for tests of their own."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            environment.delenv(name, raising=False)
        environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield
