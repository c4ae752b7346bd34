"""The state goes on from call to call, where that is promised; where it is not, the call is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from reservoir_hw.core.errors import StateLost
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import Plan, drives, failed, not_offered

_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
# Of the time for which a device says that it holds its state.
_PART = 0.8
_STEPWISE = (1, 1, 1, 1)
_SEVENS = (7,)
_ODD = (3, 5)


def in_pieces(*first: int) -> Callable[[Plan], int]:
    """A drive in one piece, and one in these."""
    return lambda plan: plan.compared(plan.drive(plan.steps), plan.drive(*plan.pieces(*first)))


def _compare(bench: Bench, first: Sequence[int], what: str, between: Callable[[], object] | None = None) -> None:
    if bench.spec.continuity == "free_running":
        not_offered("a free running device takes one run after a reset")
    u, pieces = bench.inputs(), bench.plan.pieces(*first)
    pair = bench.pair(lambda: bench.drive(u)[0], lambda: bench.drive(u, pieces, between)[0])
    bench.expect_same(pair, what)


@drives(in_pieces(*_STEPWISE))
def test_step_by_step(bench: Bench) -> None:
    """One run, and the same inputs in single steps."""
    _compare(bench, _STEPWISE, f"{len(_STEPWISE)} single steps and a run")


@drives(in_pieces(*_SEVENS))
def test_in_sevens(bench: Bench) -> None:
    """One run, and the same inputs in two runs, the first of 7 steps."""
    _compare(bench, _SEVENS, "a run of 7 steps and another")


@drives(in_pieces(*_ODD))
def test_after_pauses(bench: Bench) -> None:
    """One run, and runs of odd sizes with pauses between them: as long as is declared, or short ones."""
    held_for_s = bench.spec.held_for_s
    pause_s = _PAUSE_S if held_for_s is None else min(_PART * held_for_s, _LONGEST_PAUSE_S)
    what = f"runs of {_ODD[0]}, {_ODD[1]} and more steps, with pauses of {pause_s:g} s"
    _compare(bench, _ODD, what, lambda: time.sleep(pause_s))
    longest = f"the pauses were {pause_s:g} s long"
    if bench.spec.continuity == "held":
        longest += "; held_for_s is not declared" if held_for_s is None else f", held_for_s is {held_for_s:g} s"
    bench.statement.text += f"; {longest}"


@drives(in_pieces(*_ODD))
def test_stream(bench: Bench) -> None:
    """One run, and the same inputs as a stream of chunks."""
    reservoir = bench.reservoir
    if bench.spec.continuity == "free_running" and not reservoir.streams:
        not_offered("this free running device cannot be fed chunk by chunk without a gap")
    u, pieces = bench.inputs(), bench.plan.pieces(*_ODD)

    def streamed() -> np.ndarray:
        bench.rest()
        chunks = np.split(u, np.cumsum(pieces)[:-1], axis=1)
        return np.concatenate([np.asarray(states) for states in reservoir.stream(chunks)], axis=1)[0]

    bench.expect_same(bench.pair(lambda: bench.drive(u)[0], streamed), "a stream of three chunks")


@drives(lambda plan: plan.drive(3) if plan.spec.continuity == "free_running" else 0)
def test_refusal(bench: Bench) -> None:
    """A device that goes on by itself refuses a second run, before it is driven."""
    if bench.spec.continuity != "free_running":
        not_offered(f"it is {bench.spec.continuity}: it goes on from call to call")
    u = bench.inputs(steps=3)
    bench.drive(u)
    if not bench.refused(lambda: bench.reservoir.run(u), StateLost, "the second run"):
        failed("a second run after a reset was accepted: its states have a past that nobody knows")
