"""What devices counted in all processes of a training that was interrupted and gone on with."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Counters
from reservoir_hw.experiment.run.trainer import device_records
from reservoir_hw.experiment.states.watch import about_counters, counted


class CountedPieces:
    """Keeps the counters of `devices` in the folder of a training, a piece for each process that drove them.

    After `kill -9` what was driven since the last `note` is not counted; `noted` of the piece says when that was.
    """

    def __init__(self, folder: Path, devices: Sequence[Reservoir], *, writes: bool = True) -> None:
        self._path, self.devices, self._writes = folder / "devices.json", devices, writes
        self._earlier: list[dict[str, Any]] = []
        if self._path.is_file():
            self._earlier = json.loads(self._path.read_text(encoding="utf-8"))
        self._started = _now()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.note()

    def note(self) -> None:
        """Write down what was counted up to now."""
        if self._writes and self.devices:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._pieces(), indent=1))

    def warnings(self) -> list[str]:
        """A sentence for each kind of event that was counted, in all pieces."""
        totals = zip(self._totals(), self.devices, strict=True)
        return [about for total, device in totals for about in about_counters(total, device.spec)]

    def records(self) -> dict[str, Any]:
        """As `device_records`, with the counters of all pieces, which are told apart where there are several."""
        found = device_records(self.devices)
        pieces = self._pieces()
        records = [found["reservoir"], *found.get("further_reservoirs", [])] if found else []
        for number, (record, total) in enumerate(zip(records, self._totals(), strict=True)):
            record["counters"] = total.as_dict()
            if self._earlier:
                record["pieces"] = [{**piece, "counters": piece["counters"][number]} for piece in pieces]
        return found

    def _pieces(self) -> list[dict[str, Any]]:
        now = [device.counters.as_dict() for device in self.devices]
        return [*self._earlier, {"started": self._started, "noted": _now(), "counters": now}]

    def _totals(self) -> list[Counters]:
        pieces = self._pieces()
        return [
            counted({"counters": piece["counters"][number]} for piece in pieces) for number in range(len(self.devices))
        ]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
