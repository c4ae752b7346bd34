"""All rules of the page, one after the other, and what came of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from reservoir_hw.tasks.task import Table
from reservoir_hw.testing.protocol import damage, declaration, handshake, lease, operations, order, runs, unix
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.ledger import SENT, Broken, Hangs, NotOffered
from reservoir_hw.testing.protocol.rules import Row, Rule, Rules


@dataclass(frozen=True)
class Report:
    """The rows of a check.

    Args:
        interrupted: Whether Ctrl-C came before its end.
    """

    address: str
    rows: list[Row]
    interrupted: bool = False

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

    def tables(self) -> list[Table]:
        """For people: one for each group, a row for each rule."""
        return [_table(group, list(rows)) for group, rows in groupby(self.rows, key=lambda row: row.rule.group)]

    def summary(self) -> str:
        """One sentence."""
        counts = self.counts
        return (
            f"{self.address}: {len(self.rows)} rules, {counts['held']} held, {counts['broken']} broken, "
            f"{counts['not offered']} not offered"
        )

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


def _table(group: str, rows: list[Row]) -> Table:
    """Reasons have a column where there are any."""
    if any(row.detail for row in rows):
        return Table(group, ("rule", "", "why"), [(row.rule.title, row.outcome, row.detail) for row in rows])
    return Table(group, ("rule", ""), [(row.rule.title, row.outcome) for row in rows])


# ---- What holds for every message that the device has sent while the other rules were looked at.


STRICTNESS = Rules("strictness")


def _kept_in_all(device: Device, *, name: str) -> None:
    if name in device.ledger.broken:
        raise device.ledger.broken[name]
    if name not in device.ledger.seen:
        raise NotOffered("no such message came")


for _name, (_title, _page) in SENT.items():
    STRICTNESS.add(_title, _page, _kept_in_all, name=_name)


RULES: tuple[Rule, ...] = (
    *handshake.RULES,
    *declaration.RULES,
    *operations.RULES,
    *runs.RULES,
    *order.RULES,
    *order.PRECEDENCE,
    *runs.CREDITS,
    *runs.CANCEL,
    *lease.RULES,
    *damage.CONTROL,
    *damage.DATA,
    *damage.FIELDS,
    *unix.RULES,
    *STRICTNESS,
)
"""Those that hold for every message come last."""


def rules_for(address: str) -> list[Rule]:
    """Those that say something about a device at this address."""
    if address.startswith("unix://"):
        return list(RULES)
    return [rule for rule in RULES if rule.group != unix.RULES.group and rule.title != SENT["packet"][0]]


GONE = "not looked at: the device does not answer any more"
STOPPED = "not looked at: the check was interrupted"


def check(
    address: str,
    *,
    control: str | None = None,
    rules: Iterable[Rule] | None = None,
    on_start: Callable[[Device, int], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Look at the device at `address` rule by rule. It is driven with inputs within its range.

    Args:
        control: Address of its control socket; by default the next port, or the path with `.control` behind it.
        rules: Those to look at; by default all.
        on_start: Called once, when the device has answered, with the number of rules.
        progress: Called with what is looked at, rules done, rules in all.

    Returns a report with all rules, also if the device goes away, or if the check is interrupted (Ctrl-C): what was not
    looked at says so.

    Raises `ConfigurationError` for an address that is none, and `DeviceTimeout`, `DeviceDisconnected` or `DeviceBusy`
    if there is no device that can be looked at.
    """
    rules = rules_for(address) if rules is None else list(rules)
    rows: list[Row] = []
    with Device(address, control) as device:
        device.connect()
        if on_start is not None:
            on_start(device, len(rules))
        ended = ""
        try:
            for number, rule in enumerate(rules):
                if progress is not None:
                    progress(f"{rule.group}: {rule.title}", number, len(rules))
                row = _look(device, rule)
                rows.append(row)
                if row.outcome == "broken" and (row.hangs or not device.is_alive()):
                    ended = GONE
                    break
        except KeyboardInterrupt:
            ended = STOPPED
    rows += [Row(rule, "not offered", ended) for rule in rules[len(rows) :]]
    return Report(address, rows, interrupted=ended == STOPPED)


def _look(device: Device, rule: Rule) -> Row:
    device.last = []
    try:
        rule.look(device)
    except NotOffered as reason:
        return Row(rule, "not offered", str(reason))
    except Broken as broken:
        frames = tuple(broken.frames or device.last)
        return Row(rule, "broken", str(broken), broken.page or rule.page, frames, hangs=isinstance(broken, Hangs))
    return Row(rule, "held")
