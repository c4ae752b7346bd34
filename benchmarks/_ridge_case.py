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


def ridge_case(quick: bool) -> list[dict[str, Any]]:
    """Medians of interleaved repeats; raises RuntimeError if the weights differ by more than 1e-8 (relative).

    Each row: case, ours_s, reservoirpy_s, sklearn_s, max_relative_difference.
    """
    rows, nodes, outputs, repeats = (10_000, 300, 24, 25) if quick else (100_000, 1000, 24, 5)
    rng = np.random.default_rng(0)
    states = np.tanh(rng.standard_normal((rows, nodes), dtype=np.float32))
    targets = (states[:, :outputs] + rng.standard_normal((rows, outputs), dtype=np.float32)).astype(np.float32)
    size = f"T={rows} × N={nodes} → {outputs}"
    wide_states, wide_targets = states.astype(np.float64), targets.astype(np.float64)
    found = RidgeReadout("gcv", standardise=False).fit(states, targets).alpha_
    return [
        _compare(f"{size}, float32 states", ALPHA, ALPHA, states, targets, wide_states, wide_targets, repeats),
        _compare(
            f"{size}, float64 states", ALPHA, ALPHA, wide_states, wide_targets, wide_states, wide_targets, repeats
        ),
        _compare(
            f"{size}, alpha by GCV over 49 (peers: one fit at that alpha)",
            "gcv",
            float(found),
            states,
            targets,
            wide_states,
            wide_targets,
            repeats,
        ),
    ]


def ridge_line(row: dict[str, Any]) -> str:
    """One readable line: seconds, and how many times as fast as each peer."""
    ours = row["ours_s"]
    return (
        f"{row['case']}: ours {ours:.3f} s, reservoirpy {row['reservoirpy_s']:.3f} s "
        f"(×{row['reservoirpy_s'] / ours:.2f}), scikit-learn {row['sklearn_s']:.3f} s "
        f"(×{row['sklearn_s'] / ours:.2f}); weights agree to {row['max_relative_difference']:.0e}"
    )


def _compare(
    case: str,
    our_alpha: Any,
    alpha: float,
    states: np.ndarray,
    targets: np.ndarray,
    wide_states: np.ndarray,
    wide_targets: np.ndarray,
    repeats: int,
) -> dict[str, Any]:
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
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    weights: dict[str, np.ndarray] = {}
    for _ in range(repeats):
        for name, fit in contestants.items():
            # numpy and scipy bring a BLAS each, whose threads go on spinning for a while after a call.
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            weights[name] = fit()
            seconds[name].append(time.perf_counter() - started)
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
    parser.add_argument("--quick", action="store_true", help="small problem, a few seconds")
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
