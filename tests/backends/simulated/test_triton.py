"""The Triton kernels without a GPU: interpreted beside the numba kernels, and compiled for one."""

from __future__ import annotations

import pytest

pytest.importorskip("numba")
pytest.importorskip("torch")

from .triton_here import with_triton

pytestmark = pytest.mark.slow

TOLERANCE = 2e-6
CHECKS = 8 + 7


def test_each_kernel_agrees_with_numba_under_the_interpreter() -> None:
    errors = with_triton("interpreted_kernels.py", interpret=True)
    assert len(errors) == 8
    assert all(len(found) >= CHECKS for found in errors.values())
    # A NaN is not smaller either.
    wrong = {f"{row}: {name}": size for row, found in errors.items() for name, size in found.items()
             if not size <= TOLERANCE}  # fmt: skip
    assert not wrong


def test_planted_faults_are_seen() -> None:
    seen = with_triton("interpreted_kernels.py", "--faults", interpret=True)
    assert len(seen) >= 7
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


def test_the_kernel_of_the_delay_loops_agrees_with_numba_under_the_interpreter() -> None:
    errors = with_triton("interpreted_delay_kernels.py", interpret=True)
    assert len(errors) == 4
    assert all(len(found) == 20 for found in errors.values())
    wrong = {f"{row}: {name}": size for row, found in errors.items() for name, size in found.items()
             if not size <= TOLERANCE}  # fmt: skip
    assert not wrong


def test_planted_faults_in_the_kernel_of_the_delay_loops_are_seen() -> None:
    seen = with_triton("interpreted_delay_kernels.py", "--faults", interpret=True)
    assert len(seen) == 4
    assert all(seen.values()), seen
