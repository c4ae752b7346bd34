"""All rules of the page, one after the other, and what came of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_hw.testing.protocol import (
    cancel,
    credits,
    damage,
    declaration,
    handshake,
    lease,
    operations,
    order,
    runs,
    strictness,
)
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.outcomes import Broken, NotOffered, Row, Rule

RULES: tuple[Rule, ...] = (
    *handshake.RULES,
    *declaration.RULES,
    *operations.RULES,
    *runs.RULES,
    *order.RULES,
    *credits.RULES,
    *cancel.RULES,
    *lease.RULES,
    *damage.CONTROL,
    *damage.DATA,
    *damage.FIELDS,
    *strictness.RULES,
)
"""Those that hold for every message come last."""

GONE = "not looked at: the device does not answer any more"


@dataclass(frozen=True)
class Report:
    """The rows of a check."""

    address: str
    rows: list[Row]

    @property
    def counts(self) -> Counter[str]:
        """How many rules were held, broken, not offered."""
        return Counter(row.outcome for row in self.rows)

    @property
    def broken(self) -> list[Row]:
        """The rules that the device does not keep."""
        return [row for row in self.rows if row.outcome == "broken"]

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        rows = [
            {
                "group": row.rule.group,
                "rule": row.rule.title,
                "page": row.page or row.rule.page,
                "outcome": row.outcome,
                "detail": row.detail,
                "frames": row.frames_in_hex(),
            }
            for row in self.rows
        ]
        return {"address": self.address, "counts": dict(self.counts), "rules": rows}

    def write_junit(self, path: Path) -> None:
        """JUnit XML, one test case for each rule."""
        suite = ET.Element(
            "testsuite",
            name=f"device protocol, {self.address}",
            tests=str(len(self.rows)),
            failures=str(self.counts["broken"]),
            skipped=str(self.counts["not offered"]),
            errors="0",
        )
        for row in self.rows:
            case = ET.SubElement(suite, "testcase", classname=row.rule.group, name=row.rule.title)
            if row.outcome == "broken":
                failure = ET.SubElement(case, "failure", message=row.detail)
                frames = "\n".join(row.frames_in_hex())
                failure.text = f"{row.detail}\nThe page: {row.page}\nframes:\n{frames}"
            elif row.outcome == "not offered":
                ET.SubElement(case, "skipped", message=row.detail)
        ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def check(
    address: str,
    *,
    control: str | None = None,
    rules: Iterable[Rule] = RULES,
    on_start: Callable[[Device], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Look at the device at `address` rule by rule. It is driven with inputs within its range.

    Args:
        control: Address of its control socket; by default the next port, or the path with `.control` behind it.
        on_start: Called once, when the device has answered.
        progress: Called with what is looked at, rules done, rules in all.

    Raises `ConfigurationError` for an address that is none, and `DeviceTimeout`, `DeviceDisconnected` or `DeviceBusy`
    if there is no device that can be looked at.
    """
    rules = list(rules)
    rows: list[Row] = []
    with Device(address, control) as device:
        device.connect()
        if on_start is not None:
            on_start(device)
        gone = False
        for number, rule in enumerate(rules):
            if progress is not None:
                progress(f"{rule.group}: {rule.title}", number, len(rules))
            row = Row(rule, "not offered", GONE) if gone else _look(device, rule)
            gone = gone or (row.outcome == "broken" and not device.is_alive())
            rows.append(row)
    return Report(address, rows)


def _look(device: Device, rule: Rule) -> Row:
    device.last = []
    try:
        rule.look(device)
    except NotOffered as reason:
        return Row(rule, "not offered", str(reason))
    except Broken as broken:
        frames = tuple(broken.frames or device.last)
        return Row(rule, "broken", str(broken), broken.page or rule.page, frames)
    return Row(rule, "held")
