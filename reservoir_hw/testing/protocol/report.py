"""What came of all rules, as tables, JSON and JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_hw.tasks.task import Table
from reservoir_hw.testing.protocol.rules import Row


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
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.rule.group, []).append(row)
        return [_table(group, rows) for group, rows in groups.items()]

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
