"""Thousands of steps on bad lines: right states or an error, volts within their limits, and the safe state last.

A digit that becomes another digit on its way cannot be seen. Such faults are planted apart, and counted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from text_benches import Config, board_states, film, film_states, levels, text_board

from reservoir_hw import open_reservoir
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import DeviceError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.emulators.bench import EventLog
from reservoir_hw.emulators.faults import FaultPlan

TIMEOUT_S = 0.1
# On a pty: lost, doubled, half, late (in time, and too late), cut.
ON_THE_LINE = [
    {"kind": "drop"},
    {"kind": "repeat"},
    {"kind": "cut"},
    {"kind": "stall", "seconds": TIMEOUT_S / 3},
    {"kind": "stall", "seconds": 1.5 * TIMEOUT_S},
    {"kind": "short"},
]
# On a socket nothing is lost on its way: the instrument does not answer, is late, hangs up, answers half, has an error.
ON_A_SOCKET = [
    {"kind": "ignored", "instrument": "source", "at": "READ?"},
    {"kind": "slow", "instrument": "source", "at": "READ?", "seconds": TIMEOUT_S / 3},
    {"kind": "slow", "instrument": "source", "at": "READ?", "seconds": 1.5 * TIMEOUT_S},
    {"kind": "busy", "instrument": "switch", "at": "ROUT:CLOS", "seconds": 1.5 * TIMEOUT_S},
    {"kind": "disconnect", "instrument": "source", "at": "SOUR:VOLT"},
    {"kind": "disconnect", "instrument": "switch", "at": "ROUT:CLOS"},
    {"kind": "short_block", "instrument": "source", "at": "READ?"},
    {"kind": "error", "instrument": "source", "at": "SOUR:VOLT"},
]
RUN = 50


@contextlib.contextmanager
def bad_board(count: int, steps: int, random: np.random.Generator) -> Iterator[tuple[EventLog, Config, Counter[str]]]:
    planned = []
    for number in range(count):
        direction = ("to_board", "to_host")[number // len(ON_THE_LINE) % 2]
        at = int(random.integers(2, steps))
        planned.append({**ON_THE_LINE[number % len(ON_THE_LINE)], "direction": direction, "occurrence": at})
    with text_board(*planned, timeout_s=TIMEOUT_S) as (line, config):
        yield line.board._log, config, line.faults.struck


@contextlib.contextmanager
def bad_film(count: int, steps: int, random: np.random.Generator) -> Iterator[tuple[EventLog, Config, Counter[str]]]:
    planned = []
    for number in range(count):
        fault = ON_A_SOCKET[number % len(ON_A_SOCKET)]
        each = 1 if "VOLT" in fault["at"] else 3
        planned.append({**fault, "occurrence": int(random.integers(2, each * steps))})
    plan = validate(FaultPlan, Document.from_mapping({"faults": planned}, "a test"))
    with film(faults=plan) as (lab, config):
        for one in config["instruments"].values():
            one["timeout_s"] = TIMEOUT_S
        yield lab.bench.log, config, Counter({"planned": count})


def opened(config: Config) -> Reservoir:
    """A fault may strike while it is opened."""
    for _ in range(20):
        with contextlib.suppress(DeviceError):
            return open_reservoir(config)
    raise AssertionError("it does not open")


def drive(
    config: Config, steps: int, states_of: Callable[[np.ndarray], np.ndarray], random: np.random.Generator
) -> Counter[str]:
    """How many steps were right and wrong, and how many runs ended with an error."""
    found: Counter[str] = Counter()
    reservoir = opened(config)
    while reservoir.counters.steps < steps:
        u = random.uniform(0, 0.5, (1, RUN, 1))
        try:
            reservoir.reset()
            states = reservoir.run(u)
        except DeviceError as error:
            found["error"] += 1
            states = np.empty((1, 0, 1)) if error.states is None else error.states
        given = states.shape[1]
        right = int(np.all(np.equal(states, states_of(u)[:, :given]), axis=2).sum()) if given else 0
        found["right"] += right
        found["wrong"] += given - right
    with contextlib.suppress(DeviceError):
        reservoir.close()
    return found


BAD: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray], tuple[float, float]]] = {
    "board": (bad_board, board_states, (0.0, 0.5)),
    "film": (bad_film, film_states, (0.2, 0.8)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "steps"), [(12, 250), (60, 2500)])
@pytest.mark.parametrize("name", BAD)
def test_steps_with_faults(name: str, count: int, steps: int) -> None:
    bench, states_of, (low, high) = BAD[name]
    random = np.random.default_rng(5)
    with bench(count, steps, random) as (log, config, struck):
        found = drive(config, steps, states_of, random)
        print(f"\n{name}: {dict(found)}; {sum(struck.values())} faults {dict(struck)}")  # noqa: T201
        assert found["wrong"] == 0
        assert found["right"] > 0.5 * steps
        assert found["error"] > count / 4
        assert log.events[-1]["event"] == "off"
        driven = [volts for volts in levels(log) if volts]
        assert low <= min(driven) <= max(driven) <= high


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to_board", "to_host"])
def test_digits_that_were_changed_are_wrong_without_a_word(direction: str) -> None:
    random = np.random.default_rng(6)
    fault = {"kind": "digit", "direction": direction, "rate": 0.01}
    with text_board(fault, timeout_s=TIMEOUT_S) as (line, config):
        found = drive(config, 2000, board_states, random)
        struck = line.faults.struck["digit"]
    print(f"\n{struck} digits changed {direction}: {dict(found)}")  # noqa: T201
    assert struck > 10
    assert found["wrong"] > 0
    # Those of the number that is sent back are seen. A wrong input changes all states that follow.
    assert found["error"] > 0 if direction == "to_board" else found["wrong"] <= struck
