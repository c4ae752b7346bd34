"""The client's side of docs/protocol.md: a session with one device. It raises what went wrong, and never repairs it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceDisconnected,
    DeviceError,
    DeviceTimeout,
    ProtocolError,
    ReservoirError,
)
from reservoir_hw.core.locks import while_busy
from reservoir_hw.drivers.codes import Code, Encoding, Refusal, checked_encoding, exception_of, shown
from reservoir_hw.drivers.zeromq.addresses import address_to_connect, control_address
from reservoir_hw.drivers.zeromq.control import Control, Incidents
from reservoir_hw.drivers.zeromq.frames import (
    ERROR,
    REPLY,
    Header,
    Operation,
    pack_arrays,
    pack_header,
    pack_map,
    unpack_arrays,
    unpack_map,
)
from reservoir_hw.drivers.zeromq.links import Gone, Message
from reservoir_hw.drivers.zeromq.security import KeyPair
from reservoir_hw.drivers.zeromq.sockets import keep_freed_memory
from reservoir_hw.drivers.zeromq.transports import dealers

log = logging.getLogger(__name__)
T = TypeVar("T")

SAY_AFTER_S = 2.0
LONGEST_TIMEOUT_S = 86400
# However short a lease a device gives.
SHORTEST_BEAT_S = 0.01


@dataclass(frozen=True)
class Declaration:
    """What a device says about itself (docs/protocol.md). `spec` is not validated here."""

    spec: Mapping[str, Any]
    inputs: Encoding
    states: Encoding
    chunked: bool
    readout: bool
    finite: bool
    settings: Mapping[str, Any]
    tolerances: Mapping[str, float]
    whole_run_bytes: int
    label: str
    provenance: Mapping[str, Any]


def declaration_of(content: Mapping[str, Any]) -> Declaration:
    """The declaration in an answer, or `ProtocolError`."""
    spec, chunked, readout = content.get("spec"), content.get("chunked"), content.get("readout")
    if not isinstance(spec, dict) or not isinstance(chunked, bool):
        raise ProtocolError("the declaration of the device lacks spec (a map) or chunked (a truth value)")
    encodings = []
    for name in ("inputs", "states"):
        entry = content.get(name)
        if not isinstance(entry, list) or len(entry) != 2:
            raise ProtocolError(f"the declaration of the device lacks {name}: [dtype, scale]")
        encodings.append(checked_encoding(*entry))
    settings, tolerances = content.get("settings", {}), content.get("tolerances", {})
    are_maps = isinstance(settings, dict) and isinstance(tolerances, dict)
    if not (are_maps and all(isinstance(one, int | float) for one in tolerances.values())):
        raise ProtocolError("settings and tolerances in the declaration of the device are maps, the second of numbers")
    collected, label = content.get("whole_run_bytes", 0), content.get("label", "")
    provenance = content.get("provenance", {})
    if type(collected) is not int or not isinstance(label, str) or not isinstance(provenance, dict):
        raise ProtocolError(
            "in the declaration of the device whole_run_bytes is a whole number, label a text and provenance a map"
        )
    return Declaration(
        spec, encodings[0], encodings[1], chunked, bool(readout), content.get("finite") is True, settings=settings,
        tolerances=tolerances, whole_run_bytes=collected, label=shown(label), provenance=provenance,
    )  # fmt: skip


def status_of(address: str, *, timeout_s: float = 5.0) -> dict[str, Any]:
    """What a device that needs no keys tells everybody about itself. Nobody's session is disturbed.

    Raises `ConfigurationError` for an address that is none, and as `Connection`.
    """
    with _asking(address, timeout_s) as control:
        return control.status()


def release_hung(address: str, *, timeout_s: float = 5.0) -> None:
    """Tell a served device that a person has looked after it: its watchdog lets clients in again.

    Raises `ConfigurationError` for an address that is none, or a device that did not hang, `DeviceBusy` if it still
    does, and as `Connection`.
    """
    with _asking(address, timeout_s) as control:
        control.ask("release")


@contextlib.contextmanager
def _asking(address: str, timeout_s: float) -> Iterator[Control]:
    """The control socket of a device that needs no keys."""
    device, answering = address_to_connect(address), address_to_connect(control_address(address))
    with contextlib.ExitStack() as held:
        (dealer,) = dealers(held, [answering], timeout_s)
        dealer.reach(device)
        yield Control(dealer, device, timeout_s)


class Connection:
    """One session with a device.

    Args:
        address, control: Where the device listens.
        timeout_s: How long to wait for a sign of life, for a connection, and for a message that must be under way.
            What a device is busy with may take any time.
        server_key: The device's public key, with `keys`, our own pair, if it asks for them.
        checksums: Payloads have checksums at a unix address, too.

    While another client has the device, it waits as long as RESERVOIR_HW_WAIT_S of the environment says.

    Raises (all methods): DeviceDisconnected, DeviceTimeout, ProtocolError, DeviceBusy, and what the device
    answered (`codes.exception_of`). After any of the first three only `close` is possible.
    """

    def __init__(
        self,
        address: str,
        *,
        control: str | None = None,
        timeout_s: float = 5.0,
        server_key: bytes | None = None,
        keys: KeyPair | None = None,
        checksums: bool = False,
    ) -> None:
        self.address = address_to_connect(address)
        self.control_address = address_to_connect(control or control_address(address))
        if not 0 < timeout_s <= LONGEST_TIMEOUT_S:
            raise ConfigurationError(f"timeout_s is {timeout_s:g}: it must be more than 0, at most {LONGEST_TIMEOUT_S}")
        self.timeout_s = timeout_s
        self.incidents = Incidents()
        self.welcome: dict[str, Any] = {}
        keep_freed_memory()
        self._held = contextlib.ExitStack()
        self._sent = self._answered = self._abandoned = self._not_understood = 0
        # Newest reply that has come, whether anybody waited for it or not.
        self._came = 0
        self._interrupted: tuple[bytes, Any] | None = None
        self._closing = threading.Event()
        self._dead: str | None = None
        self._unusable: str | None = None
        self._heartbeat: threading.Thread | None = None
        try:
            self._data, asked = dealers(
                self._held, [self.address, self.control_address], timeout_s, server_key=server_key, keys=keys
            )
            asked.reach(self.address)
            self._control = Control(asked, self.address, timeout_s, self.incidents)
            self.welcome = while_busy(lambda: self._control.hello(**self._data.wishes(checksums=checksums)))
            self._session: int = self.welcome["session"]
            self.credits: int = self.welcome["credits"]
            """RUN requests that may be unanswered."""
            self.max_frame_bytes: int = self.welcome["max_frame_bytes"]
            """The largest frame that the device takes, and sends."""
            self._data.agree(self.welcome)
            self._data.connect()
            self._heartbeat = threading.Thread(target=self._beat, name="zeromq heartbeat", daemon=True)
            self._heartbeat.start()
        except BaseException:
            self._held.close()
            raise

    # ---- a session ------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye, so that the device goes to its safe state at once. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
        try:
            if self._dead is None:
                self.ask("goodbye", session=self._session)
        except ReservoirError as error:
            log.info("no goodbye: %s", error)
        finally:
            self._held.close()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One question on the control socket and its answer."""
        return self._control.ask(op, **fields)

    def status(self) -> dict[str, Any]:
        """What the device tells everybody about itself."""
        return self._control.status()

    @property
    def unanswered(self) -> int:
        """Requests that were sent and not answered yet."""
        return self._sent - self._answered

    def cancel(self) -> None:
        """Tell the device that nobody waits for what was asked so far, and forget it."""
        self._unusable_after_failure()
        self.ask("cancel", session=self._session, request=self._sent)
        self._answered = self._abandoned = self._sent

    def broken(self, what: str) -> ProtocolError:
        """The error for an answer that makes no sense; the connection cannot be used after it."""
        self._unusable = what
        return ProtocolError(f"{self.address}: {what}")

    # ---- requests -------------------------------------------------------------------------------

    def attach(self) -> Declaration:
        """Take the device, at rest for one sequence; what it is."""
        return self._declaration(Operation.ATTACH)

    def reset(self, batch: int) -> None:
        """Bring the device to rest for `batch` sequences."""
        self.send(Operation.RESET, batch=batch)
        self.receive()

    def snapshot(self) -> dict[str, np.ndarray]:
        """The device's state as named arrays."""
        self.send(Operation.SNAPSHOT)
        return self._understood("the snapshot", unpack_arrays)

    def restore(self, batch: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Put a state back; the count of steps begins at 0 there."""
        self.send(Operation.RESTORE, pack_arrays(arrays), batch=batch)
        self.receive()

    def upload(self, arrays: Mapping[str, np.ndarray]) -> Declaration:
        """Program the device; what it is then."""
        return self._declaration(Operation.UPLOAD, pack_arrays(arrays))

    def turn(self, knobs: Mapping[str, float]) -> Declaration:
        """Turn knobs of the device; what it is then."""
        return self._declaration(Operation.SET, pack_map(knobs))

    def read(self, names: Sequence[str]) -> dict[str, float | None]:
        """Where knobs of the device are and what its monitors read."""
        self.send(Operation.GET, pack_map({"names": list(names)}))
        found = self._understood("the answer to GET", unpack_map)
        if set(found) != set(names) or not all(isinstance(one, int | float | None) for one in found.values()):
            raise self.broken(f"the answer to GET of {', '.join(names)} are no numbers of these names")
        return found

    def load_readout(self, weights: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> None:
        """Give the device a readout: weights (outputs, nodes), scale and bias (outputs,)."""
        self.send(Operation.READOUT, pack_arrays({"weights": weights, "scale": scale, "bias": bias}))
        self.receive()

    def send(self, operation: Operation, payload: Any = b"", **fields: Any) -> Header:
        """Send a request without waiting for its answer. `fields` are those of the header."""
        self._unusable_after_failure()
        if self._interrupted is not None:
            self._put(*self._interrupted, again=True)
        header = Header(operation, self._session, self._sent + 1, **fields)
        size = len(payload) if isinstance(payload, bytes) else payload.nbytes
        if size > self.max_frame_bytes:
            text = f"{self.address} takes messages of at most {self.max_frame_bytes} bytes, this has {size}"
            raise exception_of(Code.TOO_LARGE, text)
        packed = pack_header(header, payload, checksums=self._data.terms.checksums)
        # No interrupt comes between these two: neither calls anything.
        self._interrupted = packed, payload
        self._sent, self._last = header.request, header
        self._put(packed, payload)
        return header

    def receive(self, expected: Header | None = None) -> tuple[Header, memoryview]:
        """The answer to the request with the header `expected`, checked; by default to the last one that was sent.

        What comes for earlier ones is dropped.
        """
        expected = expected or self._last
        request = expected.request
        if request <= self._answered:
            raise self.broken(f"the answer to request {request} came when nobody waited for it")
        # Whoever waited for earlier ones was interrupted.
        self._abandoned = max(self._abandoned, request - 1)
        try:
            header, payload = self._await(request)
            self._not_understood = 0
            if header.operation == ERROR:
                self._answered = request
                raise self._error(header, payload)
            if header.operation != expected.operation | REPLY or header.step != expected.step:
                raise ProtocolError(
                    f"{self.address}: request {request} was {Operation(expected.operation).name} at step "
                    f"{expected.step}; the reply is operation {header.operation:#x} at step {header.step}"
                )
            if header.flags != expected.flags:
                raise ProtocolError(
                    f"{self.address}: request {request} had the flags {expected.flags:#x}, its reply has "
                    f"{header.flags:#x}"
                )
            self._answered = request
            return header, payload
        except (DeviceDisconnected, DeviceTimeout, ProtocolError) as error:
            if self._answered != request:
                self._unusable = str(error)
            raise

    # ---- how ------------------------------------------------------------------------------------

    def _put(self, packed: bytes, payload: Any, *, again: bool = False) -> None:
        """Send a message; `again` if that was interrupted, and nothing, half or all of it is under way."""
        try:
            if again:
                self._not_understood += self._data.end_interrupted()
            self._data.send(packed, payload, self._sent, self._came)
        except TimeoutError:
            self._unusable = f"nothing could be sent for {self.timeout_s:g} s"
            self._unusable_after_failure()
        except Gone:
            raise self._gone() from None
        self._interrupted = None

    def _gone(self) -> DeviceDisconnected:
        """The error for a connection that the other side has ended."""
        self._unusable = "its data socket was closed: has the server ended?"
        return DeviceDisconnected(f"{self.address}: the device has gone: {self._dead or self._unusable}")

    def _beat(self) -> None:
        """Keep the lease, and notice when the device has gone."""
        while not self._closing.wait(max(SHORTEST_BEAT_S, min(self.welcome["lease_s"] / 3, self.timeout_s))):
            try:
                if not self._control.ping(self._session)["valid"]:
                    self._dead = (
                        "it no longer knows this session: it was restarted, or has not heard of us for too long"
                    )
            except ReservoirError as error:
                self._dead = str(error)
            if self._dead is not None:
                return

    def _await(self, request: int) -> tuple[Header, memoryview]:
        """The reply to `request`. Copies of older ones are dropped."""
        started = time.monotonic()
        suspicious_since, said = None, started
        while True:
            try:
                message = self._data.receive()
            except Gone:
                raise self._gone() from None
            except TimeoutError:
                now = time.monotonic()
                if self._dead is not None:
                    raise DeviceDisconnected(f"{self.address}: the device has gone: {self._dead}") from None
                if now - started > self.timeout_s / 2:
                    try:
                        pong = self._control.ping(self._session)
                    except DeviceTimeout as error:
                        raise DeviceDisconnected(f"{self.address}: the device has gone: {error}") from None
                    busy = pong["busy"]
                    if busy or not pong["valid"]:
                        suspicious_since = None
                    elif suspicious_since is None:
                        suspicious_since = now
                    elif now - suspicious_since > self.timeout_s / 2:
                        what = "the reply to it" if pong["finished"] >= request else "it"
                        raise DeviceTimeout(
                            f"{self.address}: request {request} was sent, the device is idle, and {what} was lost on "
                            "the way"
                        ) from None
                    if not pong["valid"]:
                        self._dead = "it no longer knows this session"
                    if busy and now - said > SAY_AFTER_S:
                        said = now
                        log.info("%s is busy with %s for %.0f s", self.address, busy["operation"], busy["seconds"])
                continue
            if (reply := self._checked(message, request)) is not None:
                return reply

    def _checked(self, message: Message, request: int) -> tuple[Header, memoryview] | None:
        try:
            header, crc = message.header()
            if header.session == self._session:
                self._came = max(self._came, header.request)
                if 0 < header.request < request:
                    # Nobody looks at its payload, whose slot may be in use again.
                    if header.request <= self._abandoned:
                        self.incidents.stale += 1
                    else:
                        self.incidents.repeated += 1
                    return None
            payload = message.payload(header, crc)
        except (ProtocolError, Refusal) as error:
            self.incidents.damaged += 1
            raise ProtocolError(f"{self.address}: {error}") from error
        if header.operation == ERROR and header.request == 0:
            if self._not_understood:
                self._not_understood -= 1
                return None
            self.incidents.damaged += 1
            raise self._error(header, payload)
        if header.session != self._session:
            raise ProtocolError(f"{self.address}: a reply for session {header.session:x}, ours is {self._session:x}")
        if header.request != request:
            raise ProtocolError(
                f"{self.address}: reply {header.request} came, {request} was due: a reply was lost, or overtaken"
            )
        return header, payload

    def _error(self, header: Header, payload: memoryview) -> ReservoirError:
        try:
            content = unpack_map(payload)
            code, text = content.get("code"), content.get("text")
            if type(code) is not int or not isinstance(text, str):
                raise ProtocolError("an error without code and text")
        except ProtocolError as error:
            raise self.broken(f"the error that answers request {header.request}: {error}") from error
        if code == Code.SHUTTING_DOWN:
            self._dead = shown(text)
        step = content.get("step")
        error = exception_of(code, f"{self.address}: {shown(text)}", step if type(step) is int else 0)
        if isinstance(error, DeviceError):
            done, raw = content.get("steps_done"), content.get("states")
            error.steps_done = done if type(done) is int and done > 0 else 0
            error.states = raw if isinstance(raw, bytes) else None
        return error

    def _unusable_after_failure(self) -> None:
        if (reason := self._unusable or self._dead) is not None:
            raise DeviceDisconnected(
                f"{self.address}: this connection can no longer be used ({reason}); close() and open() make a new one"
            )

    def _declaration(self, operation: Operation, payload: bytes = b"") -> Declaration:
        self.send(operation, payload)
        return self._understood(f"the answer to {operation.name}", lambda said: declaration_of(unpack_map(said)))

    def _understood(self, what: str, read: Callable[[memoryview], T]) -> T:
        """What the answer to the last request says; without sense the connection cannot be used any more."""
        payload = self.receive()[1]
        try:
            return read(payload)
        except ProtocolError as error:
            raise self.broken(f"{what}: {error}") from error
