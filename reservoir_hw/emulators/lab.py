"""A virtual lab: a bench, with its generator and its digitizer on sockets of this computer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.bench import BenchConfig, VirtualBench
from reservoir_hw.emulators.dialects import Dialect
from reservoir_hw.emulators.faults import Fault, FaultPlan, FaultyInstrument
from reservoir_hw.emulators.scpi.instrument import MessageDevice
from reservoir_hw.emulators.servers.hislip import HislipServer
from reservoir_hw.emulators.servers.socket import SocketServer


@dataclass(frozen=True)
class Lab:
    """The bench, and the VISA addresses of its instruments; they may be one at one address."""

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
        config: The bench, and the device under test on it; by default the dialect's.
        hislip: They are reached by HiSLIP, and not by raw sockets.
        port: Of the generator; the digitizer has the next one. 0: any that are free.
        log: Where the events of the outputs are written to (see `EventLog`).
        faults: What goes wrong.

    Raises `ConfigurationError` if a port is taken, or for HiSLIP where the instruments have none.
    """
    if hislip and not dialect.hislip:
        raise ConfigurationError(f"a {dialect.generator_kind} is reached by a raw socket only: leave out --hislip")
    with contextlib.ExitStack() as held:
        bench = held.enter_context(VirtualBench(config or dialect.bench, log))
        # The file may say that an earlier process left them on.
        for channel in bench.outputs:
            bench.log.write("off", channel, 0.0, volts=0.0)
        planned = faults or FaultPlan()

        def served(device: MessageDevice, faults: list[Fault], port: int) -> str:
            faulty = FaultyInstrument(device, faults)
            if hislip:
                return held.enter_context(HislipServer(faulty, port=port)).resource
            return held.enter_context(SocketServer(faulty, port=port, terminator=dialect.terminator)).resource

        if dialect.digitizer is None:
            address = served(dialect.generator(bench), planned.faults, port)
            yield Lab(bench, address, address)
            return
        generator = served(dialect.generator(bench), planned.of("generator"), port)
        digitizer = served(dialect.digitizer(bench), planned.of("digitizer"), port and port + 1)
        yield Lab(bench, generator, digitizer)
