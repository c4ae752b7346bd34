"""Shapes and dtypes; wrong inputs are refused before the device is driven."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reservoir_hw.core.errors import InputRangeError, ReservoirError, ShapeError
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import drives, failed


# One with two sequences, one short one, one step.
@drives(lambda plan: plan.drive(plan.steps, batch=2) + plan.drive(3) + plan.drive(1))
def test_shapes(bench: Bench) -> None:
    """run, step and out= answer with (batch, time, nodes) in the declared dtype."""
    spec = bench.spec
    u = np.concatenate([bench.inputs(), bench.inputs()])
    for what, states, expected in (
        ("run of two sequences", bench.drive(u), (*u.shape[:2], spec.nodes)),
        ("run of no steps", bench.drive(u[:1, :0]), (1, 0, spec.nodes)),
        ("step", _step(bench, u[:1, 0]), (1, spec.nodes)),
    ):
        if states.shape != expected or states.dtype != spec.numpy_dtype:
            failed(f"{what}: states {states.shape} {states.dtype}, declared {expected} {spec.dtype}")
    out = np.empty((1, 3, spec.nodes), spec.numpy_dtype)
    bench.reservoir.reset(1)
    if bench.reservoir.run(u[:1, :3], out=out) is not out:
        failed("run(u, out=array) returned another array")


def _step(bench: Bench, u: np.ndarray) -> np.ndarray:
    bench.reservoir.reset(1)
    return np.asarray(bench.reservoir.step(u))


# A reset for each case.
@drives(lambda plan: 5 * plan.drive(0))
def test_wrong_inputs(bench: Bench) -> None:
    """Wrong shapes, other batch sizes, NaN and infinity are refused before `counters.steps` moves."""
    run, good = bench.reservoir.run, bench.inputs(steps=3)
    bad = good.copy()
    bad[0, 1, 0] = np.nan
    endless = good.copy()
    endless[0, 1, 0] = np.inf
    cases: list[tuple[str, Callable[[], object], type[ReservoirError]]] = [
        ("an input channel too many", lambda: run(np.concatenate([good, good], axis=2)), ShapeError),
        ("two sequences after reset(1)", lambda: run(np.concatenate([good, good])), ShapeError),
        ("inputs of one axis", lambda: run(good[0, :, 0]), ShapeError),
        ("NaN", lambda: run(bad), InputRangeError),
        ("infinity", lambda: run(endless), InputRangeError),
    ]
    for what, drive, expected in cases:
        bench.reservoir.reset(1)
        try:
            refused = bench.refused(drive, expected, what)
        except ReservoirError as error:
            failed(f"{what}: {type(error).__name__} instead of {expected.__name__}: {error}")
        if not refused:
            failed(f"{what} was accepted")
