"""Ridge readouts of the same states: ours, reservoirpy's, scikit-learn's. Run alone, or by the other benchmarks.

The peers sum in the dtype of the states; with float32 states they would lose the small singular values. They
get the same numbers as float64, the conversion not counted; ours takes float32 and sums in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from reservoirpy.nodes import Ridge as ReservoirpyRidge
from sklearn.linear_model import Ridge as SklearnRidge

from reservoir_hw.readout import RidgeReadout

ALPHA = 1e-3
TOLERANCE = 1e-8
PAUSE_S = 0.2
OUTPUTS = 24
# Short fits are repeated in a row until they have seen so many values: one alone measures the timer and the caches.
VALUES = 3_000_000
SMALL_SIZES = ((1000, 50), (1000, 100), (3000, 100), (2000, 500))


def ridge_case(quick: bool) -> list[dict[str, Any]]:
    """Medians of interleaved repeats; raises RuntimeError if the weights differ by more than 1e-8 (relative).

    Each row: case, ours_s, reservoirpy_s, sklearn_s, max_relative_difference.
    """
    rows = []
    for size in (*SMALL_SIZES, (10_000, 300)) if quick else (*SMALL_SIZES, (10_000, 300), (100_000, 1000)):
        rows += _cases(*size, repeats=5 if size[0] > 10_000 else 7)
    return rows


def _cases(steps: int, nodes: int, repeats: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    states = np.tanh(rng.standard_normal((steps, nodes), dtype=np.float32))
    targets = states[:, :OUTPUTS] + rng.standard_normal((steps, OUTPUTS), dtype=np.float32)
    size = f"T={steps} × N={nodes} → {OUTPUTS}"
    rows = [
        _compare(f"{size}, float32 states", ALPHA, ALPHA, states, targets, repeats),
        _compare(f"{size}, float64 states", ALPHA, ALPHA, states.astype(np.float64), targets, repeats),
        _compare(f"{size}, float32 states about 3", ALPHA, ALPHA, states + np.float32(3), targets, repeats),
    ]
    if (steps, nodes) not in SMALL_SIZES:
        found = float(RidgeReadout("gcv", standardise=False).fit(states, targets).alpha_)
        case = f"{size}, alpha by GCV over 49 (peers: one fit at that alpha)"
        rows.append(_compare(case, "gcv", found, states, targets, repeats))
    return rows


def ridge_line(row: dict[str, Any]) -> str:
    """One readable line: milliseconds, and how many times as fast as each peer."""
    ours = row["ours_s"]
    return (
        f"{row['case']}: ours {1e3 * ours:.2f} ms, reservoirpy {1e3 * row['reservoirpy_s']:.2f} ms "
        f"(×{row['reservoirpy_s'] / ours:.2f}), scikit-learn {1e3 * row['sklearn_s']:.2f} ms "
        f"(×{row['sklearn_s'] / ours:.2f}); weights agree to {row['max_relative_difference']:.0e}"
    )


def _compare(
    case: str, our_alpha: Any, alpha: float, states: np.ndarray, targets: np.ndarray, repeats: int
) -> dict[str, Any]:
    wide_states, wide_targets = states.astype(np.float64), targets.astype(np.float64)

    def ours() -> np.ndarray:
        return RidgeReadout(our_alpha, standardise=False).fit(states, targets).weights_

    def reservoirpy() -> np.ndarray:
        node = ReservoirpyRidge(ridge=alpha)
        node.fit(wide_states, wide_targets)
        return np.asarray(node.Wout).T

    def sklearn() -> np.ndarray:
        return SklearnRidge(alpha).fit(wide_states, wide_targets).coef_

    contestants: dict[str, Callable[[], np.ndarray]] = {
        "ours": ours,
        "reservoirpy": reservoirpy,
        "sklearn": sklearn,
    }
    calls = max(1, VALUES // states.size)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    weights = {name: fit() for name, fit in contestants.items()}
    for _ in range(repeats):
        for name, fit in contestants.items():
            # numpy and scipy bring a BLAS each, whose threads go on spinning for a while after a call.
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            for _ in range(calls):
                fit()
            seconds[name].append((time.perf_counter() - started) / calls)
    difference = max(
        float(np.max(np.abs(weights["ours"] - weights[peer])) / np.max(np.abs(weights[peer])))
        for peer in ("reservoirpy", "sklearn")
    )
    if not difference < TOLERANCE:
        raise RuntimeError(f"{case}: weights differ by {difference:.1e}; the times compare different things")
    return {
        "case": case,
        **{f"{name}_s": statistics.median(values) for name, values in seconds.items()},
        "max_relative_difference": difference,
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the largest problem, two minutes")
    parser.add_argument("--json", action="store_true", help="for machines")
    arguments = parser.parse_args()
    rows = ridge_case(arguments.quick)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(ridge_line(row))


if __name__ == "__main__":
    main()
