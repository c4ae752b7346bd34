"""Hardware in the loop for pytest: options, fixtures and markers.

Nothing but pytest and the standard library is imported before `--reservoir` or one of the fixtures is used.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reservoir_hw.core.reservoir import Reservoir
    from reservoir_hw.core.reservoir_config import ReservoirConfig
    from reservoir_hw.testing.devices import Device
    from reservoir_hw.testing.golden_fixture import GoldenTraces

DEVICES: pytest.StashKey[dict[str, ReservoirConfig]] = pytest.StashKey()
"""The devices of this session by name; set by `conform`, else read from the files of `--reservoir`."""

_ERRORS: pytest.StashKey[list[BaseException]] = pytest.StashKey()
_FIRST_ERROR: pytest.StashKey[str] = pytest.StashKey()

CAPABILITIES = ("snapshot", "settable", "programmable", "deterministic", "differentiable")
"""What a test can ask for with `reservoir_needs`."""


# ---- options --------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the group "reservoir"."""
    group = parser.getgroup("reservoir", "hardware in the loop (reservoir_hw)")
    group.addoption(
        "--reservoir",
        action="append",
        default=[],
        metavar="FILE",
        help="reservoir file of the device under test; given several times, each test runs on each device",
    )
    group.addoption("--reservoir-record", metavar="DIR", help="write a trace of each device into this folder")
    group.addoption("--reservoir-replay", metavar="DIR", help="play these traces back in the place of the devices")
    group.addoption("--reservoir-wait", type=_seconds, metavar="S", help="wait so long for a device that is in use")
    group.addoption("--update-golden-traces", action="store_true", help="record golden traces anew")
    group.addoption("--reservoir-html", metavar="FILE", help="write a report of the tests on devices")
    group.addoption("--reservoir-budget", metavar="STEPS", help="conformance suite: device steps, or minutes as in 10m")
    group.addoption("--reservoir-seed", type=int, default=0, metavar="N", help="conformance suite: seed of all inputs")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    """Markers; what cannot be is refused before anything is driven."""
    for line in (
        "reservoir_needs(capability, ...): skipped where the device does not declare it, for instance snapshot",
        "reservoir_hardware: skipped on a simulation",
        "reservoir_simulation: skipped on hardware",
    ):
        config.addinivalue_line("markers", line)
    option = config.option
    if option.update_golden_traces and os.environ.get("CI"):
        raise pytest.UsageError(
            "--update-golden-traces: the environment variable CI is set, and nothing is updated there"
        )
    if option.reservoir:
        from reservoir_hw.testing import devices

        config.stash[DEVICES] = devices.from_options(config)
        devices.refuse_workers(config, config.stash[DEVICES])
        _show_waits(config)
    if option.reservoir_html and not hasattr(config, "workerinput"):
        from reservoir_hw.testing import html_report

        html_report.register(config)


def _show_waits(config: pytest.Config) -> None:
    """Waiting as long as the option says; who has the device is shown at once, and not when the test has failed."""
    log, handler, environment = logging.getLogger("reservoir_hw.core.locks"), _ToTerminal(config), pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    config.add_cleanup(partial(log.setLevel, log.level))
    config.add_cleanup(partial(log.removeHandler, handler))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    if config.option.reservoir_wait is not None:
        environment.setenv("RESERVOIR_HW_WAIT_S", str(config.option.reservoir_wait))


class _ToTerminal(logging.Handler):
    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._config = config

    def emit(self, record: logging.LogRecord) -> None:
        say(self._config, record.getMessage())


def say(config: pytest.Config, text: str) -> None:
    """Show a line at once, where there is a terminal report."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if terminal is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(f"\n{text}")


# ---- which tests, and how often -------------------------------------------------------------------


def _drives(item: Any) -> bool:
    """Whether a test, or a function that tests are made of, uses one of the fixtures below."""
    return "reservoir_device" in getattr(item, "fixturenames", ())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses a device runs on each of them."""
    names = list(metafunc.config.stash.get(DEVICES, {}))
    if names and _drives(metafunc):
        # That of `conform` has no name.
        ids = [name or pytest.HIDDEN_PARAM for name in names]
        metafunc.parametrize("reservoir_device", names, indirect=True, scope="session", ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Wrong markers are refused; flaky devices are tried again, for their own faults alone."""
    # By its entry point, or with -p by its module.
    named = config.pluginmanager.get_plugin
    flaky: Any = named("rerunfailures") or named("pytest_rerunfailures")
    for item in items:
        _check_markers(item)
        reruns = flaky and _drives(item) and flaky.get_reruns_count(item)
        if reruns:
            chance, delay = partial(_may_go_right, item), flaky.get_reruns_delay(item)
            # Before a marker of the test itself, which says how often, but not after what.
            item.add_marker(pytest.mark.flaky(reruns=reruns, reruns_delay=delay, condition=chance), append=False)


def _check_markers(item: pytest.Item) -> None:
    for marker in item.iter_markers():
        if marker.name in ("reservoir_hardware", "reservoir_simulation") and (marker.args or marker.kwargs):
            raise pytest.UsageError(f"{item.nodeid}: the marker {marker.name} takes nothing in brackets")
        if marker.name != "reservoir_needs":
            continue
        if marker.kwargs or not marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: write what the test needs as in reservoir_needs('snapshot'); there are "
                f"{', '.join(CAPABILITIES)}"
            )
        if unknown := [name for name in marker.args if name not in CAPABILITIES]:
            raise pytest.UsageError(
                f"{item.nodeid}: reservoir_needs({unknown[0]!r}): there is no such capability; there are "
                f"{', '.join(CAPABILITIES)}"
            )


def _may_go_right(item: pytest.Item) -> bool:
    """Whether all that went wrong in the last attempt may go right in the next one."""
    from reservoir_hw.core.errors import DeviceDisconnected, DeviceFault, DeviceTimeout

    flaky = DeviceTimeout | DeviceDisconnected | DeviceFault
    return all(isinstance(error, flaky) for error in item.stash[_ERRORS])


# ---- fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def reservoir_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The device of this session; what it opens is closed in the end."""
    name = getattr(request, "param", None)
    if name is None:
        pytest.fail(
            "the test asks for the device while it runs (getfixturevalue), which is too late to choose one: name the "
            "fixture among the arguments of the test, or in pytest.mark.usefixtures"
            if request.config.stash.get(DEVICES, {})
            else "the test drives a device: say which with --reservoir FILE",
            pytrace=False,
        )
    from reservoir_hw.testing.devices import Device

    with Device(name, request.config.stash[DEVICES][name], request.config) as device:
        yield device


@pytest.fixture
def reservoir(reservoir_device: Device, request: pytest.FixtureRequest) -> Reservoir:
    """The device under test, open and at rest for one sequence.

    It is opened and locked once per session. After an error of the device it is closed, recovered (`hil: recover:`)
    and opened again for the next test.
    """
    reservoir_device.check_markers(request.node)
    return reservoir_device.at_rest()


@pytest.fixture
def reservoir_twin(reservoir: Reservoir, reservoir_device: Device) -> Reservoir:
    """The simulation that `hil: twin:` of the device names, open and at rest for one sequence."""
    return reservoir_device.twin(reservoir.spec)


@pytest.fixture
def golden_trace(reservoir: Reservoir, reservoir_device: Device, request: pytest.FixtureRequest) -> GoldenTraces:
    """`golden_trace(u)` holds the answer to u (1, time, inputs) against a trace beside the test."""
    from reservoir_hw.testing.golden_fixture import GoldenTraces

    return GoldenTraces(reservoir, reservoir_device.declared, request.node)


# ---- what came out --------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Errors are kept for the next attempt and for the reports, and shown to the device."""
    if _drives(item):
        _note(item, call)
    return (yield)


def _note(item: Any, call: pytest.CallInfo[None]) -> None:
    device = item.funcargs.get("reservoir_device")
    if call.when == "setup":
        item.stash[_ERRORS] = []
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        error = call.excinfo.value
        item.stash[_ERRORS].append(error)
        item.stash.setdefault(_FIRST_ERROR, _in_one_line(error))
        if device is not None:
            device.met(error)
    found: dict[str, Any] = {
        "attempts": getattr(item, "execution_count", 1),
        "first_error": item.stash.get(_FIRST_ERROR, ""),
        **({} if device is None else device.facts()),
    }
    # The report of each phase has all of them, and those of the last one count.
    item.user_properties[:] = [pair for pair in item.user_properties if pair[0] not in found] + list(found.items())


def _in_one_line(error: BaseException) -> str:
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, pytest.fail.Exception) else f"{type(error).__name__}: {text}"
