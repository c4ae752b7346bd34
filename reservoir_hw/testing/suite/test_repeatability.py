"""The same drive again. A device that is not as deterministic as it declares fails here, and nowhere else for that."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from reservoir_hw.measures.comparison import REPEATS
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import drives, failed


def _interval(freedom: int) -> tuple[float, float]:
    """The 99 % interval of a standard deviation, in units of the measured one.

    Chi squared by the approximation of Wilson and Hilferty (1931). The noise may be correlated in time and between
    nodes, so that steps and nodes add no degrees of freedom.
    """
    width = NormalDist().inv_cdf(0.995) * (2 / (9 * freedom)) ** 0.5
    middle = 1 - 2 / (9 * freedom)
    return (middle + width) ** -1.5, (middle - width) ** -1.5


# One that does not count, then the repeats.
@drives(lambda plan: plan.drive(plan.steps) * (1 + (2 if plan.spec.deterministic else REPEATS)))
def test_same_drive_again(bench: Bench) -> None:
    """The response to the same inputs, and how much it scatters."""
    u = bench.inputs()
    # The past of all repeats is then the same.
    bench.drive(u)
    taken = np.stack([bench.drive(u)[0] for _ in range(2 if bench.deterministic else REPEATS)])
    mean = taken.astype(np.float64).mean(axis=0)
    spread = float(np.sqrt(np.mean((mean - mean.mean(axis=0)) ** 2)))
    scatter = float(np.sqrt(np.sum((taken - mean) ** 2) / (len(taken) - 1) / mean.size))
    relative = scatter / spread if spread else scatter
    bench.statement.value, bench.statement.unit = relative, "standard deviations"
    if not bench.deterministic:
        low, high = _interval(len(taken) - 1)
        bench.statement.low, bench.statement.high = relative * low, relative * high
    same = bool((taken == taken[0]).all())
    bench.early = taken[: bench.repeats]
    if bench.deterministic and not same:
        bench.deterministic = False
        failed(
            f"it declares itself deterministic, but the same drive gave other states: the repeat error is "
            f"{relative:.2g} standard deviations of the states. All other groups are judged by this error now"
        )
    if not spread:
        failed("its states do not move, whatever it is driven with")
    bench.statement.text = (
        "equal in every bit"
        if same
        else f"repeat error {relative:.2g} standard deviations of the states ({len(taken)})"
    )
