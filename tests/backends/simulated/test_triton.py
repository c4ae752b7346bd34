"""The Triton kernels without a GPU: interpreted beside the numba kernels, and compiled for one."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("numba")
pytest.importorskip("torch")

from .triton_here import with_triton

pytestmark = pytest.mark.slow

TOLERANCE = 2e-6


@pytest.mark.parametrize(
    ("script", "rows", "fewest", "most"),
    [("interpreted_kernels.py", 8, 8 + 7, math.inf), ("interpreted_delay_kernels.py", 4, 20, 20)],
)
def test_each_kernel_agrees_with_numba_under_the_interpreter(script: str, rows: int, fewest: int, most: float) -> None:
    errors = with_triton(script, interpret=True)
    assert len(errors) == rows
    assert all(fewest <= len(found) <= most for found in errors.values())
    # A NaN is not smaller either.
    wrong = {f"{row}: {name}": size for row, found in errors.items() for name, size in found.items()
             if not size <= TOLERANCE}  # fmt: skip
    assert not wrong


@pytest.mark.parametrize(("script", "faults"), [("interpreted_kernels.py", 7), ("interpreted_delay_kernels.py", 4)])
def test_planted_faults_are_seen(script: str, faults: int) -> None:
    seen = with_triton(script, "--faults", interpret=True)
    assert len(seen) == faults
    assert all(seen.values()), seen


def test_each_form_compiles_for_a_gpu_and_spills_no_register() -> None:
    rows = with_triton("compiled_kernels.py", interpret=False)
    assert {(row["kind"], row["resident"], row["tile"], row["sparse"]) for row in rows["networks"]} == {
        (kind, *form)
        for kind in ("esn", "gated_esn")
        for form in ((True, 1, False), (False, 1, False), (False, 16, False), (False, 1, True))
    }
    assert len(rows["delay_loops"]) == 42
    assert not [row for each in rows.values() for row in each if row["spilled"]]
