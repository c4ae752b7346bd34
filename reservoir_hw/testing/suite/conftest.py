"""The suite under pytest: its fixture, the order of its groups, and how its statements end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.testing import collected, plugin
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.devices import Device
from reservoir_hw.testing.plan import Statement

_STATEMENT: pytest.StashKey[Statement] = pytest.StashKey()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The groups in their order, and a run for each device."""
    devices = config.stash.get(plugin.DEVICES, {})
    suite = [item for item in items if item.path.resolve().parent == Path(__file__).resolve().parent]
    if devices:
        items[:] = collected.in_order(items, suite)
        config.stash[collected.SUITE] = runs = collected.runs(config, suite, devices)
        for name, run in runs.items():
            run.on_plan = lambda plan, name=name: plugin.say(config, f"{name}: {plan}")


@pytest.fixture
def bench(reservoir_device: Device, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The device under test for a statement of the conformance suite."""
    run = request.config.stash[collected.SUITE][reservoir_device.name]
    reservoir_device.give_to(run)
    with run.statement(*collected.group_and_name(request.node)) as statement:
        request.node.stash[_STATEMENT] = statement
        if statement.outcome == "not offered":
            pytest.skip(f"not offered: {statement.text}")
        try:
            run.ready()
        except BaseException as error:
            if isinstance(error, ConfigurationError) and not run.planned:
                pytest.exit(f"{reservoir_device.name}: {error}", pytest.ExitCode.USAGE_ERROR)
            collected.conclude(statement, error)
        yield run.bench


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """How a statement ended, in pytest's words."""
    statement = item.stash[_STATEMENT]
    try:
        found = yield
    except BaseException as error:
        collected.conclude(statement, error)
    statement.outcome = "passed"
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """The outcome of a statement, in the words of the suite, is a property of its test."""
    statement = item.stash.get(_STATEMENT, None)
    if statement is not None and call.when == "teardown":
        item.user_properties.append(("outcome", statement.outcome))
    return (yield)
