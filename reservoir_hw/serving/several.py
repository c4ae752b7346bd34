"""Several servers in one process: the reservoirs of a layered model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from reservoir_hw.core.interrupts import StopOnSignals
from reservoir_hw.serving.server import Server


def run_together(servers: Sequence[Server], on_ready: Callable[[], None] | None = None) -> None:
    """Run each server in a thread of its own, until one of them ends or a signal comes; then all end.

    `on_ready` is called when clients may come to all of them. Raises what the first of them raised. A second signal
    does not interrupt, as the devices are on the way to their safe states.
    """

    def stop() -> None:
        for server in servers:
            server.stop()

    with StopOnSignals(stop, lambda: True), ThreadPoolExecutor(len(servers)) as pool:
        runs = [pool.submit(server.run) for server in servers]
        try:
            while not all(server.wait_ready(0.05) for server in servers) and not any(run.done() for run in runs):
                pass
            if on_ready is not None and not any(run.done() for run in runs):
                on_ready()
            wait(runs, return_when=FIRST_COMPLETED)
        finally:
            stop()
    for run in runs:
        run.result()
