"""What holds for every message that the device has sent while the other rules were looked at."""

from __future__ import annotations

from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.ledger import SENT
from reservoir_hw.testing.protocol.outcomes import NotOffered
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("strictness")


def _kept(device: Device, *, name: str) -> None:
    if name in device.ledger.broken:
        raise device.ledger.broken[name]
    if name not in device.ledger.seen:
        raise NotOffered("no such message came")


for _name, (_title, _page) in SENT.items():
    RULES.add(_title, _page, _kept, name=_name)
