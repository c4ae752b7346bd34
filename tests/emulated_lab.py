"""A generator, a device and an oscilloscope, emulated in this process, and the reservoir file that belongs to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_hw.emulators.bench import BenchConfig, VirtualBench
from reservoir_hw.emulators.faults import FaultPlan
from reservoir_hw.emulators.lab import dialect_named, virtual_lab
from reservoir_hw.emulators.physics.devices import Ikeda

QUIET = Ikeda(noise_v=0.0)


@dataclass
class Lab:
    """What a test gets: the bench with its log, and a configuration that can be changed."""

    bench: VirtualBench
    config: dict[str, Any]

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What the outputs did, of these kinds."""
        return [event for event in self.bench.log.events if not names or event["event"] in names]

    def on(self) -> bool:
        """Whether output 1 is on, as the bench knows it."""
        return self.bench.output(1).on


def configuration(
    generator: str, digitizer: str, dialect: str = "keysight", of: str | None = None, **more: Any
) -> dict[str, Any]:
    """For the device `ikeda` with its defaults; `of` is the dialect of the generator, if it is another one."""
    spoken = dialect_named(dialect, of)
    return {
        "kind": "visa",
        "device_name": "emulated ikeda",
        "simulated": True,
        "inputs": 1,
        "nodes": 50,
        "theta_s": 1e-5,
        "seed": 1,
        "scaling": {"gain": 0.8},
        "memory_steps": 30,
        # To which the device answers within the range of its input.
        "marker_v": -1.0,
        "generator": {
            "kind": spoken.generator_kind,
            "address": generator,
            "outputs": {"1": {"range_v": [-1, 1], "load_ohm": 50.0}},
        },
        "digitizer": {
            "kind": spoken.digitizer_kind,
            "address": digitizer,
            "inputs": {"1": {"range_v": [0.0, 0.2]}, "2": {"range_v": [-1.1, 1.1]}},
        },
        "channels": {"output": 1, "answer": 1, "monitor": 2},
        **more,
    }


@contextmanager
def emulated_lab(
    config: BenchConfig | None = None,
    log: Path | None = None,
    dialect: str = "keysight",
    faults: FaultPlan | None = None,
    *,
    hislip: bool = False,
    generator: str | None = None,
    **more: Any,
) -> Iterator[Lab]:
    """Both instruments on sockets of this process."""
    with virtual_lab(dialect_named(dialect, generator), config, hislip=hislip, log=log, faults=faults) as lab:
        # Each output begins with a line that says that it is off.
        lab.bench.log.events.clear()
        yield Lab(lab.bench, configuration(lab.generator, lab.digitizer, dialect, generator, **more))
