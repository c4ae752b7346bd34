"""The checker finds what is wrong with a device: one planted fault each."""

from __future__ import annotations

import pytest

from reservoir_hw.testing.protocol.check import RULES, check, rules_for
from reservoir_hw.testing.protocol.rules import Rule

from .planted_faults import FAULTS, Fault

BY_TITLE = {rule.title: rule for rule in RULES}


def needed_for(fault: Fault) -> list[Rule]:
    """The rule that is broken, behind one that makes the device show it."""
    return [BY_TITLE[fault.shown_by], BY_TITLE[fault.breaks]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_is_found(fault: Fault, address: str) -> None:
    with fault.make(address):
        report = check(address, rules=needed_for(fault))
    row = report.rows[-1]
    assert row.outcome == "broken", row
    assert row.detail
    assert row.frames


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS[::8], ids=lambda fault: fault.name)
def test_the_fault_is_found_among_all_rules(fault: Fault, address: str) -> None:
    with fault.make(address):
        report = check(address)
    assert fault.breaks in {row.rule.title for row in report.broken}
    assert len(report.rows) == len(rules_for(address))
