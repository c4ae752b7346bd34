"""A virtual lab: a bench, with its generator and its digitizer on sockets of this computer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reservoir_hw.emulators.bench import BenchConfig, VirtualBench
from reservoir_hw.emulators.dialects import Dialect
from reservoir_hw.emulators.faults import FaultPlan, FaultyInstrument
from reservoir_hw.emulators.servers.hislip import HislipServer
from reservoir_hw.emulators.servers.socket import SocketServer


@dataclass(frozen=True)
class Lab:
    """The bench, and the VISA addresses of its instruments."""

    bench: VirtualBench
    generator: str
    digitizer: str


@contextlib.contextmanager
def virtual_lab(
    dialect: Dialect,
    config: BenchConfig | None = None,
    *,
    hislip: bool = False,
    port: int = 0,
    log: Path | None = None,
    faults: FaultPlan | None = None,
) -> Iterator[Lab]:
    """Emulated instruments, served in threads while the block runs.

    Args:
        dialect: What they understand.
        config: The bench, and the device under test on it.
        hislip: They are reached by HiSLIP, and not by raw sockets.
        port: Of the generator; the digitizer has the next one. 0: any that are free.
        log: Where the events of the outputs are written to (see `EventLog`).
        faults: What goes wrong.

    Raises `ConfigurationError` if a port is taken.
    """
    server = HislipServer if hislip else SocketServer
    with contextlib.ExitStack() as held:
        bench = held.enter_context(VirtualBench(config, log))
        # The file may say that an earlier process left them on.
        for channel in bench.outputs:
            bench.log.write("off", channel, 0.0, volts=0.0)
        planned = faults or FaultPlan()
        player = FaultyInstrument(dialect.generator(bench), planned.of("generator"))
        taker = FaultyInstrument(dialect.digitizer(bench), planned.of("digitizer"))
        generator = held.enter_context(server(player, port=port))
        digitizer = held.enter_context(server(taker, port=port and port + 1))
        yield Lab(bench, generator.resource, digitizer.resource)
