"""The states are as the declaration says: their resolution, and their range."""

from __future__ import annotations

import numpy as np

from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import drives, failed, unverified

# Of the distance of two levels: a read-out may be corrected by a gain of its own for each node.
_TOLERANCE = 0.5


@drives(lambda plan: plan.drive(plan.steps))
def test_bits(bench: Bench) -> None:
    """A node has as many levels as `output_bits` allows, and no finer ones."""
    spec = bench.spec
    if spec.output_bits is None:
        unverified("output_bits is not declared")
    states = bench.drive(bench.inputs())[0]
    most = max(len(np.unique(column)) for column in states.T)
    if most > 2**spec.output_bits:
        failed(f"{most} levels of one node, {spec.output_bits} bits have {2**spec.output_bits}")
    bench.statement.text = f"at most {most} levels of a node"
    if spec.state_range is None:
        if len(states) <= 2**spec.output_bits:
            unverified(
                f"{len(states)} steps cannot show more than the {2**spec.output_bits} levels, and without state_range "
                "nobody knows how far they are apart"
            )
        return
    low, high = spec.state_range
    level = (high - low) / (2**spec.output_bits - 1)
    gaps: np.ndarray = np.diff(np.sort(states.astype(np.float64), axis=0), axis=0)
    finer = (gaps > 1e-9 * (high - low)) & (gaps < _TOLERANCE * level)
    if finer.any():
        smallest = gaps[finer].min()
        failed(
            f"two states of a node are {smallest:.3g} apart, levels of {spec.output_bits} bits are {level:.3g} apart"
        )
    bench.statement.text += f", none closer than a level ({level:.3g})"


@drives(lambda plan: plan.drive(plan.steps))
def test_state_range(bench: Bench) -> None:
    """No state lies outside `state_range`."""
    limits = bench.spec.state_range
    if limits is None:
        unverified("state_range is not declared")
    states = bench.drive(bench.inputs())[0]
    low, high = float(states.min()), float(states.max())
    bench.statement.text = f"{low:.4g} to {high:.4g}, declared {limits[0]:.4g} to {limits[1]:.4g}"
    slack = 1e-6 * (limits[1] - limits[0])
    if low < limits[0] - slack or high > limits[1] + slack:
        failed(f"states from {bench.statement.text}")
