"""All rules of the page, one after the other, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reservoir_hw.testing.protocol import (
    cancel,
    credits,
    damage,
    declaration,
    handshake,
    lease,
    ledger,
    operations,
    order,
    precedence,
    runs,
    strictness,
    unix,
)
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.outcomes import Broken, Hangs, NotOffered
from reservoir_hw.testing.protocol.report import Report
from reservoir_hw.testing.protocol.rules import Row, Rule

RULES: tuple[Rule, ...] = (
    *handshake.RULES,
    *declaration.RULES,
    *operations.RULES,
    *runs.RULES,
    *order.RULES,
    *precedence.RULES,
    *credits.RULES,
    *cancel.RULES,
    *lease.RULES,
    *damage.CONTROL,
    *damage.DATA,
    *damage.FIELDS,
    *unix.RULES,
    *strictness.RULES,
)
"""Those that hold for every message come last."""


def rules_for(address: str) -> list[Rule]:
    """Those that say something about a device at this address."""
    if address.startswith("unix://"):
        return list(RULES)
    return [rule for rule in RULES if rule.group != unix.RULES.group and rule.title != ledger.SENT["packet"][0]]


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
        hangs = isinstance(broken, Hangs)
        return Row(rule, "broken", str(broken), broken.page or rule.page, frames, hangs=hangs)
    return Row(rule, "held")
