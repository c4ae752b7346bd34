"""A reservoir behind two sockets: the device's side of docs/protocol.md."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.core.interrupts import StopOnSignals
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.drivers.codes import Encoding, encoding_of, printable
from reservoir_hw.drivers.zeromq.addresses import by_unix_sockets, checked_address, control_address
from reservoir_hw.drivers.zeromq.links import Listening
from reservoir_hw.drivers.zeromq.security import Allowed, check_guarded
from reservoir_hw.drivers.zeromq.sockets import keep_freed_memory
from reservoir_hw.drivers.zeromq.transports import routers
from reservoir_hw.serving.control import Control
from reservoir_hw.serving.data_socket import DataSocket, Seat
from reservoir_hw.serving.lease import Lease, Watchdog
from reservoir_hw.serving.operations import Operations, declaration_of, problem_of

log = logging.getLogger(__name__)

# How often an idle thread looks whether it has to end, or the client has gone.
IDLE_S = 0.1
MAX_FRAME_BYTES = 1 << 28
# Besides the RUN requests that a client may have unanswered.
SPARE_MESSAGES = 8


class Server:
    """Serves one reservoir to one client at a time.

        Server(MyBench(), "tcp://127.0.0.1:5555").run()

    `run` drives the device in the calling thread until `stop` is called (from another thread or a signal handler), or,
    in the main thread, until Ctrl-C, SIGTERM or SIGHUP, unless the program has handlers of its own for them. The
    device is opened once at the start, to learn what it is; each client gets it freshly opened, and between clients it
    is closed: in its safe state. Where closing fails, the next client gets it only after it was opened and closed anew.

    A device that somebody has reserved on this host goes to clients of this name only. A client has the name of its
    key's file, or without keys the user's name that it gives.

    Args:
        reservoir: Not yet open.
        address: `tcp://host:port`, `ipc://path` or `unix://path`; the control socket has the next port, or the path +
            `.control`.
        lease_s: A client that is silent for so long has lost the device.
        credits: RUN requests that a client may have unanswered.
        max_frame_bytes: Larger messages are refused before memory is taken.
        inputs, states: How numbers travel; by default as the reservoir has them.
        allowed: CURVE keys: the server's own and those of the clients. Needed to listen to other hosts.
        insecure: Listen to other hosts without keys.
        watchdog_s: A request that takes longer hangs: the device gets its emergency stop, and no client until a person
            releases it. By default three times what the device declares for it, and the lease; 0: for ever.
        checksums: Payloads have checksums at a unix address, too, whatever the client says.
    """

    def __init__(
        self,
        reservoir: Reservoir,
        address: str,
        *,
        control: str | None = None,
        lease_s: float = 10.0,
        credits: int = 8,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        inputs: Encoding | None = None,
        states: Encoding | None = None,
        allowed: Allowed | None = None,
        insecure: bool = False,
        watchdog_s: float | None = None,
        checksums: bool = False,
    ) -> None:
        self.address = checked_address(address)
        self.control_address = checked_address(control or control_address(address))
        by_unix_sockets([self.address, self.control_address])
        check_guarded([self.address, self.control_address], allowed, insecure=insecure)
        if not 0.1 <= lease_s <= 3600 or not 1 <= credits <= 1024 or not 4096 <= max_frame_bytes <= 1 << 40:
            raise ConfigurationError("lease_s must be 0.1 to 3600, credits 1 to 1024, max_frame_bytes at least 4096")
        self.max_frame_bytes = max_frame_bytes
        self.credits = credits
        self.spec: ReservoirSpec | None = None
        """What is served, once it was opened."""
        self._reservoir = reservoir
        # They are held against the clients, by their names.
        reservoir.honours_reservations = False
        self._lease = Lease(lease_s)
        self._watchdog = Watchdog(reservoir, self._lease, watchdog_s, lambda: self.spec, self.address)
        self._allowed, self._checksums = allowed, checksums
        self._wanted_encodings = inputs, states
        self._stop = threading.Event()
        # Questions are answered as long as the device is at work.
        self._at_rest = threading.Event()
        self._started = time.monotonic()
        self._ready = threading.Event()
        self._device = "not open"
        self._seat = Seat()
        self._forget_client: Callable[[], None] = lambda: None

    # ---- for the owner --------------------------------------------------------------------------

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop`. Leaves the device closed.

        Raises what opening the device or binding raises, and `DeviceFault` if the device could not be brought to its
        safe state. `on_ready` is called when the device is known and clients may come.
        """
        keep_freed_memory()
        # What was answered last still gets a moment to leave.
        with StopOnSignals(self.stop, lambda: self.closing), contextlib.ExitStack() as held:
            try:
                self._serve(held, on_ready)
            except KeyboardInterrupt as interrupt:
                # That the device is not safe matters more than why the server ends.
                self._release()
                if self.problem is not None:
                    raise DeviceFault(self.problem) from interrupt
                raise
            finally:
                self._release()
        if problem := self.problem:
            raise DeviceFault(problem)

    @property
    def closing(self) -> bool:
        """Whether the device is on the way to its safe state, or the server about to end: nothing may interrupt it."""
        return self._reservoir.closing or self._at_rest.is_set()

    @property
    def problem(self) -> str | None:
        """What somebody has to look after beside the device, or None."""
        return self._watchdog.problem or problem_of(self._reservoir)

    def stop(self) -> None:
        """End `run` after the request at hand. May be called from anywhere."""
        self._stop.set()

    def wait_ready(self, timeout_s: float = 30.0) -> bool:
        """Whether the sockets are bound and the device is known, within `timeout_s`."""
        return self._ready.wait(timeout_s)

    def status(self) -> dict[str, Any]:
        """What the device is, who has it, what was seen."""
        return {
            "device": self._device,
            "fingerprint": None if self.spec is None else self.spec.identity.fingerprint,
            "address": self.address,
            "pid": os.getpid(),
            "host": platform.node(),
            "uptime_s": time.monotonic() - self._started,
            "counters": self._reservoir.counters.as_dict(),
            "monitors": self._reservoir.monitored(),
            "problem": self.problem,
            **self._lease.as_dict(),
        }

    # ---- the two threads ------------------------------------------------------------------------

    def _serve(self, held: contextlib.ExitStack, on_ready: Callable[[], None] | None) -> None:
        self._learn_device()
        # A reply that nobody takes must not be dropped silently, nor stop the device for ever: hence the lease. What
        # waits in the queues of a connection is bounded by its credits.
        how = Listening(self.max_frame_bytes, self._allowed, self.credits + SPARE_MESSAGES, IDLE_S, self._lease.lease_s)
        data, control = routers(held, self.address, self.control_address, how)
        self._forget_client = data.detach
        terms = {"device": self._device, "credits": self.credits, "max_frame_bytes": self.max_frame_bytes}
        answering = threading.Thread(
            target=Control(
                control,
                self._lease,
                terms,
                self.status,
                allowed=self._allowed,
                stop=self._stop,
                at_rest=self._at_rest,
                watchdog=self._watchdog,
                checksums=self._checksums,
            ).serve,
            name="control socket",
            daemon=True,
        )
        answering.start()
        log.info(
            "serving %s at %s",
            self._device,
            self.address,
            extra={
                "event": "serving",
                "device": self._device,
                "fingerprint": self.status()["fingerprint"],
                "address": self.address,
                "control": self.control_address,
            },
        )
        inputs, states = self._encodings
        requests = DataSocket(
            data,
            self._reservoir,
            self._lease,
            self._seat,
            states=states,
            max_frame_bytes=self.max_frame_bytes,
            release=self._release,
        )
        operations = Operations(requests, inputs=inputs, declare=self._declare, stop=self._stop)
        try:
            self._ready.set()
            if on_ready is not None:
                on_ready()
            while not self._stop.is_set():
                message = requests.next()
                if message is not None:
                    operations.attend(*message)
                else:
                    requests.expire()
                    # A client said goodbye, or is not heard of any more.
                    if self._seat.attached and self._seat.attached != self._lease.number:
                        self._release()
        finally:
            self._stop.set()
            try:
                requests.turn_away()
            finally:
                try:
                    self._lease.end()
                    self._release()
                finally:
                    # ZeroMQ ends the whole process if a socket is closed under a thread that uses it.
                    self._at_rest.set()
                    answering.join()
            log.info("stopped", extra={"event": "stopped", "status": self.status()})

    def _learn_device(self) -> None:
        """Open the device to see what it is."""
        began = time.monotonic()
        try:
            spec = self._reservoir.open().spec
            self._watchdog.opening_s = time.monotonic() - began
            self._device = printable(spec.identity.name)
            inputs, states = self._wanted_encodings
            self._encodings = inputs or encoding_of(spec.dtype), states or encoding_of(spec.dtype)
            self._declare()
        finally:
            self._reservoir.close()

    def _declare(self) -> dict[str, Any]:
        self.spec, declaration = declaration_of(self._reservoir, *self._encodings)
        return declaration

    def _release(self) -> None:
        """Bring the device to its safe state."""
        if self._seat.attached:
            self._seat.attached, self._seat.peer, self._seat.readout = 0, None, None
            self._forget_client()
        try:
            self._reservoir.close()
        except Exception:
            log.exception("the device could not be brought to its safe state")


# ---- Several servers in one process: the reservoirs of a layered model.


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
