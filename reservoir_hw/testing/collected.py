"""The tests of the suite as pytest collected them: their order, a run for each device, and how they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from reservoir_hw.core.errors import ConfigurationError, text_of
from reservoir_hw.core.reservoir_config import GROUPS, ReservoirConfig
from reservoir_hw.core.validation import parse_budget
from reservoir_hw.testing.plan import Ended, Statement, steps_of
from reservoir_hw.testing.session import BUDGET, Planned, SuiteRun

SUITE: pytest.StashKey[dict[str, SuiteRun]] = pytest.StashKey()
"""The runs of a session by the names of the devices."""


def group_and_name(item: Any) -> tuple[str, str]:
    """The group is the name of the file, the name that of the function with its own parameters."""
    own = [str(value) for name, value in item.callspec.params.items() if name != "reservoir_device"]
    name = item.originalname.removeprefix("test_").replace("_", " ")
    return item.path.stem.removeprefix("test_"), f"{name} ({', '.join(own)})" if own else name


def in_order(items: list[pytest.Item], suite: list[pytest.Item]) -> list[pytest.Item]:
    """Device by device, the groups in their order, in the places that the tests of the suite have."""
    devices = list(dict.fromkeys(item.callspec.params["reservoir_device"] for item in suite))  # type: ignore[attr-defined]
    wanted = iter(
        sorted(
            suite,
            key=lambda item: (
                devices.index(item.callspec.params["reservoir_device"]),  # type: ignore[attr-defined]
                GROUPS.index(group_and_name(item)[0]),  # type: ignore[arg-type]
            ),
        )
    )
    of_suite = set(suite)
    return [next(wanted) if item in of_suite else item for item in items]


def runs(
    config: pytest.Config, suite: list[pytest.Item], devices: Mapping[str, ReservoirConfig]
) -> dict[str, SuiteRun]:
    """A run for each device. Raises `pytest.UsageError` for a budget and a seed that are none."""
    if config.option.reservoir_seed < 0:
        raise pytest.UsageError(f"--reservoir-seed: {config.option.reservoir_seed} is below 0")
    try:
        steps, seconds = budget(config.option.reservoir_budget)
    except ConfigurationError as error:
        raise pytest.UsageError(f"--reservoir-budget: {error}") from error
    return {
        name: SuiteRun(
            device,
            [
                Planned(*group_and_name(item), steps_of(item.function))  # type: ignore[attr-defined]
                for item in suite
                if item.callspec.params["reservoir_device"] == name  # type: ignore[attr-defined]
            ],
            config.option.reservoir_seed,
            steps,
            seconds,
        )
        for name, device in devices.items()
    }


def budget(text: str | None) -> tuple[int, float | None]:
    """Device steps, and seconds where it is a time. Raises `ConfigurationError`."""
    steps, seconds = (None, None) if text is None else parse_budget(text)
    return steps or BUDGET, seconds


def conclude(statement: Statement, error: BaseException) -> NoReturn:
    """Note how a statement ended, and end the test in pytest's words. After Ctrl-C nobody has looked at it."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if not isinstance(error, Ended):
        why = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
        statement.outcome = "failed"
        # What is no Exception ends a program, or a task: nobody would catch it for the device.
        statement.text = why if isinstance(error, Exception) else f"it did not end: {why}"
        raise error
    statement.outcome, statement.text = error.outcome, str(error)
    if statement.bad:
        pytest.fail(f"{statement.outcome}: {statement.text}", pytrace=False)
    pytest.skip(f"{statement.outcome}: {statement.text}")
