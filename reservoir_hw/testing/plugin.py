"""Hardware in the loop for pytest: fixtures, markers and options.

Nothing but pytest is imported before `--reservoir` or one of the fixtures is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reservoir_hw.core.reservoir import Reservoir
    from reservoir_hw.core.reservoir_config import ReservoirConfig
    from reservoir_hw.testing.bench import Bench
    from reservoir_hw.testing.devices import Device
    from reservoir_hw.testing.golden_fixture import GoldenTraceFixture
    from reservoir_hw.testing.outcomes import Statement
    from reservoir_hw.testing.session import SuiteRun

DEVICES: pytest.StashKey[dict[str, ReservoirConfig]] = pytest.StashKey()
"""The devices of this session by name; set by `conform`, else read from the files of `--reservoir`."""

SUITE: pytest.StashKey[dict[str, SuiteRun]] = pytest.StashKey()
STATEMENT: pytest.StashKey[Statement] = pytest.StashKey()
FIRST_ERROR: pytest.StashKey[str] = pytest.StashKey()
_DEVICE_ERROR: pytest.StashKey[bool] = pytest.StashKey()

_TRIED_AGAIN = ["DeviceTimeout", "DeviceDisconnected", "DeviceFault"]
_OURS = frozenset({"reservoir", "reservoir_twin", "golden_trace", "bench"})


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
    group.addoption("--reservoir-wait", type=float, metavar="S", help="wait so long for a device that is in use")
    group.addoption("--update-golden-traces", action="store_true", help="record golden traces anew")
    group.addoption("--reservoir-budget", metavar="STEPS", help="conformance suite: device steps, or minutes as in 10m")
    group.addoption("--reservoir-seed", type=int, default=0, metavar="N", help="conformance suite: seed of all inputs")
    group.addoption("--reservoir-html", metavar="FILE", help="write a report of the tests on devices")


def pytest_configure(config: pytest.Config) -> None:
    """Markers; what cannot be is refused before anything is driven."""
    for line in (
        "reservoir_needs(capability, ...): skipped where the device does not declare it, for instance snapshot",
        "reservoir_hardware: skipped on a simulation",
        "reservoir_simulation: skipped on hardware",
    ):
        config.addinivalue_line("markers", line)
    if config.option.reservoir_wait is not None:
        os.environ["RESERVOIR_HW_WAIT_S"] = str(config.option.reservoir_wait)
    if config.option.reservoir:
        from reservoir_hw.testing import devices

        config.stash[DEVICES] = devices.from_options(config)
        devices.refuse_workers(config, config.stash[DEVICES])
    if config.option.reservoir_html and not hasattr(config, "workerinput"):
        from reservoir_hw.testing.html import HtmlReport

        config.pluginmanager.register(HtmlReport(config.option.reservoir_html), "reservoir_hw html")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses a device runs on each of them."""
    if _OURS & set(metafunc.fixturenames):
        names = list(metafunc.config.stash.get(DEVICES, {}))
        if names:
            metafunc.parametrize("reservoir_device", names, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The groups of the suite in their order; flaky devices are tried again for their own faults alone."""
    ours = [item for item in items if _OURS & set(getattr(item, "fixturenames", ()))]
    if not ours:
        return
    if config.pluginmanager.hasplugin("rerunfailures") and config.option.reruns:
        for item in ours:
            item.add_marker(pytest.mark.flaky(reruns=config.option.reruns, only_rerun=_TRIED_AGAIN))
    suite = [item for item in ours if "bench" in getattr(item, "fixturenames", ())]
    if suite and config.stash.get(DEVICES, {}):
        from reservoir_hw.testing import collected

        items[:] = collected.in_order(items, suite)
        config.stash[SUITE] = collected.runs(config, suite, config.stash[DEVICES])


@pytest.fixture(scope="session")
def reservoir_device(request: pytest.FixtureRequest) -> Iterator[Device | str]:
    """The device of this session, opened and locked once; `bench` opens it itself."""
    name = getattr(request, "param", None)
    if name is None:
        raise pytest.UsageError("this test drives a device: say which with --reservoir FILE")
    from reservoir_hw.testing.devices import Device

    device = Device(name, request.config)
    try:
        yield device
    finally:
        device.close()


@pytest.fixture
def reservoir(reservoir_device: Device, request: pytest.FixtureRequest) -> Iterator[Reservoir]:
    """The device under test, open and at rest for one sequence.

    It is opened and locked once per session. After a fault or an interrupt it is closed, recovered (`hil: recover:`)
    and opened again for the next test.
    """
    opened = reservoir_device.ready()
    reservoir_device.check_markers(request.node)
    yield opened
    if request.node.stash.get(_DEVICE_ERROR, False):
        reservoir_device.faulty = True


@pytest.fixture
def reservoir_twin(reservoir_device: Device) -> Reservoir:
    """The simulation that `hil: twin:` of the device names, open and at rest for one sequence."""
    return reservoir_device.twin()


@pytest.fixture
def golden_trace(reservoir: Reservoir, request: pytest.FixtureRequest) -> GoldenTraceFixture:
    """`golden_trace(u)` holds the device's answer to u (1, time, inputs) against a trace beside the test."""
    from reservoir_hw.testing.golden_fixture import GoldenTraceFixture

    return GoldenTraceFixture(reservoir, request.node, update=request.config.option.update_golden_traces)


@pytest.fixture
def bench(reservoir_device: Device, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The device under test for a statement of the conformance suite."""
    from reservoir_hw.testing import collected

    run = request.config.stash[SUITE][reservoir_device.name]
    reservoir_device.give_to(run)
    with run.statement(*collected.group_and_name(request.node)) as statement:
        request.node.stash[STATEMENT] = statement
        if statement.outcome == "not offered":
            pytest.skip(f"not offered: {statement.text}")
        run.ready()
        yield run.bench


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """How a statement of the suite ended, in pytest's words."""
    try:
        return (yield)
    except Exception as error:
        statement = item.stash.get(STATEMENT, None)
        if statement is None:
            raise
        from reservoir_hw.testing.collected import conclude

        conclude(statement, error)
        return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Attempts, first error and device of each test, for JUnit."""
    if _OURS & set(getattr(item, "fixturenames", ())):
        from reservoir_hw.testing import properties

        if call.excinfo is not None:
            item.stash[_DEVICE_ERROR] = properties.is_fault(call.excinfo.value)
            if (
                call.when != "teardown"
                and FIRST_ERROR not in item.stash
                and not call.excinfo.errisinstance(pytest.skip.Exception)
            ):
                item.stash[FIRST_ERROR] = f"{call.excinfo.typename}: {call.excinfo.value}"
            statement = item.stash.get(STATEMENT, None)
            if call.when == "setup" and statement is not None and statement.outcome != "not offered":
                statement.outcome, statement.text = "failed", f"{call.excinfo.typename}: {call.excinfo.value}"
        properties.put(item, item.stash.get(FIRST_ERROR, ""))
    return (yield)
