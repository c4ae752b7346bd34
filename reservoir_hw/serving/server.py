"""A reservoir behind two sockets: the device's side of docs/protocol.md."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    DeviceFault,
    Discontinuity,
    InputRangeError,
    ProtocolError,
    ReservoirError,
    text_of,
)
from reservoir_hw.core.interrupts import StopOnSignals
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.drivers.zeromq.addresses import check_free, checked_address, control_address, is_local
from reservoir_hw.drivers.zeromq.error_codes import HARMLESS, Code, Refusal, code_of
from reservoir_hw.drivers.zeromq.frames import (
    ERROR,
    LARGEST_CONTROL,
    REPLY,
    VERSION,
    Encoding,
    Flag,
    Header,
    Operation,
    array_of,
    check_payload,
    encoding_of,
    name_of,
    pack_arrays,
    pack_control,
    pack_header,
    pack_map,
    unpack_arrays,
    unpack_control,
    unpack_header,
)
from reservoir_hw.drivers.zeromq.security import Allowed, admit
from reservoir_hw.drivers.zeromq.sockets import ZERO_COPY_BYTES, keep_freed_memory, receive, send, send_at_once
from reservoir_hw.serving.session import Session, Work

log = logging.getLogger(__name__)

# How often an idle thread looks whether it has to end, or the client has gone.
IDLE_MS = 100
MAX_FRAME_BYTES = 1 << 28
NONCE_BYTES = 16
# Besides the RUN requests that a client may have unanswered.
SPARE_MESSAGES = 8
# The safe state does not wait longer for those who go on asking.
TURN_AWAY_S = 0.5
# Of the text of an error, where the frame has room for it.
LONGEST_TEXT = 1 << 16


class Server:
    """Serves one reservoir to one client at a time.

        Server(MyBench(), "tcp://127.0.0.1:5555").run()

    `run` drives the device in the calling thread until `stop` is called (from another thread or a signal handler), or,
    in the main thread, until Ctrl-C, SIGTERM or SIGHUP, unless the program has handlers of its own for them. The
    device is opened once at the start, to learn what it is; each client gets it freshly opened, and between clients it
    is closed: in its safe state. Where closing fails, the next client gets it only after it was opened and closed anew.

    Args:
        reservoir: Not yet open.
        address: `tcp://host:port` or `ipc://path`; the control socket has the next port, or the path + `.control`.
        lease_s: A client that is silent for so long has lost the device.
        credits: RUN requests that a client may have unanswered.
        max_frame_bytes: Larger messages are refused before memory is taken.
        inputs, states: How numbers travel; by default as the reservoir has them.
        allowed: CURVE keys: the server's own and those of the clients. Needed to listen to other hosts.
        insecure: Listen to other hosts without keys.
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
    ) -> None:
        self.address = checked_address(address)
        self.control_address = checked_address(control or control_address(address))
        if allowed is None and not insecure and not (is_local(self.address) and is_local(self.control_address)):
            reachable = self.control_address if is_local(self.address) else self.address
            raise ConfigurationError(
                f"{reachable} can be reached by other hosts: give keys (reservoir-hw device keys makes them), bind to "
                "127.0.0.1 or ipc, or say --insecure (insecure=True) if everybody in that network may drive the device"
            )
        if not 0.1 <= lease_s <= 3600 or not 1 <= credits <= 1024 or not 4096 <= max_frame_bytes <= 1 << 40:
            raise ConfigurationError("lease_s must be 0.1 to 3600, credits 1 to 1024, max_frame_bytes at least 4096")
        self.max_frame_bytes = max_frame_bytes
        self.credits = credits
        self.spec: ReservoirSpec | None = None
        """What is served, once it was opened."""
        self._reservoir = reservoir
        self._session = Session(lease_s)
        self._allowed = allowed
        self._encodings = inputs, states
        self._stop = threading.Event()
        # Questions are answered as long as the device is at work.
        self._at_rest = threading.Event()
        self._started = time.monotonic()
        self._ready = threading.Event()
        self._device = "not open"
        # What follows belongs to the thread that drives the device.
        self._attached = 0
        self._peer = b""
        self._expected = 1
        self._step = 0
        self._batch = 1
        self._lost: str | None = None
        self._readout: tuple[np.ndarray, np.ndarray] | None = None

    # ---- for the owner --------------------------------------------------------------------------

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop`. Leaves the device closed.

        Raises what opening the device or binding raises, and `DeviceFault` if the device could not be brought to its
        safe state. `on_ready` is called when the device is known and clients may come.
        """
        keep_freed_memory()
        with StopOnSignals(self.stop, lambda: self.closing):
            context = zmq.Context()
            try:
                with admit(context, self._allowed):
                    self._serve(context, on_ready)
            except KeyboardInterrupt as interrupt:
                # That the device is not safe matters more than why the server ends.
                self._release()
                if self.problem is not None:
                    raise DeviceFault(self.problem) from interrupt
                raise
            finally:
                self._release()
                # What was answered last still gets a moment to leave.
                context.destroy(linger=500)
        problem = self.problem
        if problem is not None:
            raise DeviceFault(problem)

    @property
    def closing(self) -> bool:
        """Whether the device is on the way to its safe state, or the server about to end: nothing may interrupt it."""
        return self._reservoir.closing or self._at_rest.is_set()

    @property
    def problem(self) -> str | None:
        """What somebody has to look after beside the device, or None."""
        unsafe = self._reservoir.unsafe
        if unsafe is None:
            return None
        return f"the device could not be brought to its safe state: {_clipped(_sendable(unsafe), LONGEST_TEXT)}"

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
            "problem": self.problem,
            **self._session.as_dict(),
        }

    # ---- the two threads ------------------------------------------------------------------------

    def _serve(self, context: zmq.Context[Any], on_ready: Callable[[], None] | None) -> None:
        try:
            self.spec = spec = self._reservoir.open().spec
            identity = spec.identity
            self._device = _printable(f"{identity.vendor} {identity.model} {identity.serial}".strip())
            inputs, states = self._encodings
            self._inputs, self._states = inputs or encoding_of(spec.dtype), states or encoding_of(spec.dtype)
            self._declaration()
        finally:
            self._reservoir.close()
        data = self._bound(context, self.address, self.max_frame_bytes, self._session.lease_s)
        control = self._bound(context, self.control_address, LARGEST_CONTROL, 0)
        self._data = data
        answering = threading.Thread(target=self._answer, args=(control,), name="zeromq control", daemon=True)
        answering.start()
        where = {"address": self.address, "control": self.control_address}
        log.info(
            "serving %s at %s",
            self._device,
            self.address,
            extra={"event": "serving", "device": self._device, "fingerprint": identity.fingerprint, **where},
        )
        try:
            self._ready.set()
            if on_ready is not None:
                on_ready()
            while not self._stop.is_set():
                message = self._next()
                if message is not None:
                    self._attend(*message)
                elif self._attached and self._attached != self._session.number:
                    self._release()
                elif self._session.expired():
                    self._session.traffic.expired_leases += 1
                    log.warning(
                        "%s is not heard of any more: the device is free again",
                        self._session.holder(),
                        extra={"event": "lease expired"},
                    )
                    self._session.end()
                    self._release()
        finally:
            self._stop.set()
            try:
                self._turn_away()
            finally:
                try:
                    self._session.end()
                    self._release()
                finally:
                    # ZeroMQ ends the whole process if a socket is closed under a thread that uses it.
                    self._at_rest.set()
                    answering.join()
                    data.close(linger=500)
            log.info("stopped", extra={"event": "stopped", "status": self.status()})

    def _bound(
        self, context: zmq.Context[Any], address: str, max_frame_bytes: int, patience_s: float
    ) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.ROUTER)
        # A reply that nobody takes must not be dropped silently, nor stop the device for ever.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDTIMEO, int(1000 * patience_s))
        socket.setsockopt(zmq.RCVTIMEO, IDLE_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        # What waits in the queues of a connection is bounded by it; ZeroMQ would take a thousand messages.
        socket.setsockopt(zmq.RCVHWM, self.credits + SPARE_MESSAGES)
        socket.setsockopt(zmq.SNDHWM, self.credits + SPARE_MESSAGES)
        socket.setsockopt(zmq.IPV6, "[" in address)
        if self._allowed is not None:
            self._allowed.secure(socket)
        check_free(address)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot listen at {address}: {error.strerror}") from error
        if address.startswith("ipc://"):
            with contextlib.suppress(OSError):
                Path(address.removeprefix("ipc://")).chmod(0o600)
        return socket

    def _answer(self, socket: zmq.Socket[bytes]) -> None:
        """The control thread: it touches no device."""
        while not self._at_rest.is_set():
            try:
                frames = receive(socket)
            except zmq.Again:
                continue
            except zmq.ZMQError:
                break
            try:
                self._answer_control(socket, frames)
            except Exception:
                log.exception("a control message could not be answered")
        socket.close(linger=500)

    def _answer_control(self, socket: zmq.Socket[bytes], frames: list[zmq.Frame]) -> None:
        try:
            if len(frames) != 2:
                raise ProtocolError("a control message has one frame, this has more or none")
            message = unpack_control(frames[1].bytes)
        except ProtocolError as error:
            self._session.traffic.damaged += 1
            log.warning("a control message was dropped: %s", error)
            return
        reply: dict[str, Any]
        try:
            reply = self._control_reply(message)
            packed = pack_control({**reply, "id": message["id"]})
        except Refusal as refusal:
            reply = {"op": "error", "code": int(refusal.code), "text": str(refusal)}
            packed = pack_control({**reply, "id": message["id"]})
        except Exception:
            # Also what cannot be packed: a device may have put anything into its counters.
            log.exception("control message %s", message.get("op"))
            reply = {"op": "error", "code": int(Code.INTERNAL), "text": "a bug in the server: see its log"}
            packed = pack_control({**reply, "id": message["id"]})
        log.debug("control: %s -> %s", message, reply)
        with contextlib.suppress(zmq.ZMQError):
            send_at_once(socket, [frames[0].bytes, packed])

    def _control_reply(self, message: dict[str, Any]) -> dict[str, Any]:
        session = message.get("session")
        match message["op"]:
            case "hello":
                return self._welcome(message)
            case "status":
                return {"op": "status", "status": self.status()}
            case "ping" if type(session) is int:
                return {"op": "pong", **self._session.pong(session)}
            case "cancel" | "goodbye" if type(session) is not int or not self._session.heard(session):
                raise Refusal(Code.NO_SESSION, "this session does not hold the device")
            case "cancel" if type(message.get("request")) is int:
                self._session.cancel(message["request"])
                return {"op": "ok"}
            case "goodbye":
                log.info("%s says goodbye", self._session.holder(), extra={"event": "goodbye"})
                self._session.end()
                return {"op": "ok"}
            case op:
                raise Refusal(Code.MALFORMED, f"{op[:50]!r} is no control message, or its fields are missing")

    def _welcome(self, message: dict[str, Any]) -> dict[str, Any]:
        versions, client, nonce = (message.get(key) for key in ("versions", "client", "nonce"))
        if not isinstance(versions, list) or not isinstance(client, str) or not isinstance(nonce, bytes):
            raise Refusal(Code.MALFORMED, "hello needs versions (list), client (text) and nonce (16 bytes)")
        if len(nonce) != NONCE_BYTES:
            raise Refusal(Code.MALFORMED, f"the nonce of hello has {NONCE_BYTES} bytes, not {len(nonce)}")
        if VERSION not in versions:
            raise Refusal(
                Code.VERSION, f"this device speaks version {VERSION} of the protocol, the client {versions[:20]}"
            )
        if self._stop.is_set():
            raise Refusal(Code.SHUTTING_DOWN, "the server is shutting down")
        session = self._session.grant(_printable(client[:200]), nonce)
        if not session:
            raise Refusal(Code.BUSY, f"{self._device} at {self.address} is in use by {self._session.holder()}")
        log.info("%s has the device", self._session.holder(), extra={"event": "leased"})
        return {
            "op": "welcome",
            "version": VERSION,
            "session": session,
            "lease_s": self._session.lease_s,
            "credits": self.credits,
            "max_frame_bytes": self.max_frame_bytes,
            "server": f"reservoir_hw on {platform.node()}",
            "device": self._device,
        }

    # ---- the data socket ------------------------------------------------------------------------

    def _turn_away(self) -> None:
        """Tell those who wait why nobody does what they asked; for a moment, however many go on asking."""
        self._data.setsockopt(zmq.SNDTIMEO, 0)
        until = time.monotonic() + TURN_AWAY_S
        while time.monotonic() < until and (message := self._next()) is not None:
            self._fail(message[0], Refusal(Code.SHUTTING_DOWN, "the server is shutting down"))

    def _next(self) -> tuple[Header, memoryview] | None:
        """The next request that counts. What cannot be one is answered with an error, or dropped, and counted."""
        traffic = self._session.traffic
        try:
            frames = receive(self._data)
        except zmq.Again:
            return None
        peer = frames[0].bytes
        traffic.bytes_received += len(frames[-1])
        try:
            if len(frames) != 3:
                raise ProtocolError(f"a data message has 2 frames, this has {'fewer' if len(frames) < 3 else 'more'}")
            header, crc = unpack_header(frames[1].bytes)
        except ProtocolError as error:
            traffic.damaged += 1
            self._send_error(peer, Header(0, 0, 0), Refusal(Code.MALFORMED, str(error)))
            return None
        heard = self._session.heard(header.session)
        attaches = header.operation == Operation.ATTACH and header.session != self._attached
        if not heard or not (attaches or (header.session == self._attached and peer == self._peer)):
            traffic.foreign += 1
            self._send_error(
                peer,
                header,
                Refusal(Code.NO_SESSION, "this session does not hold the device (any more); open it again"),
            )
            return None
        if attaches:
            self._release()
            self._attached, self._peer, self._expected = header.session, peer, 1
        if header.request < self._expected:
            traffic.repeated += 1
            return None
        gap, self._expected = header.request - self._expected, header.request + 1
        traffic.requests += 1
        self._session.begin(Work(header.request, header.operation))
        payload = frames[2].buffer
        try:
            if gap:
                raise Refusal(Code.SEQUENCE, f"{gap} requests before number {header.request} were lost")
            try:
                check_payload(payload, crc)
            except ProtocolError as error:
                traffic.damaged += 1
                raise Refusal(Code.CHECKSUM, str(error)) from error
            if self._session.is_cancelled(header.request):
                raise Refusal(Code.CANCELLED, "cancelled by the client")
        except Refusal as refusal:
            self._fail(header, refusal)
            return None
        return header, payload

    def _attend(self, header: Header, payload: memoryview) -> None:
        """Do what was asked and answer, with an error if need be."""
        try:
            match header.operation:
                case Operation.RUN:
                    self._run(header, payload)
                case Operation.ATTACH:
                    self._answer_with(header, pack_map(self._attach(header)))
                case Operation.RESET:
                    self._reset(header)
                case Operation.SNAPSHOT:
                    self._snapshot(header)
                case Operation.RESTORE:
                    self._restore(header, payload)
                case Operation.TRANSITION:
                    self._transition(header, payload)
                case Operation.UPLOAD:
                    self._upload(header, payload)
                case Operation.READOUT:
                    self._load_readout(header, payload)
                case other:
                    raise Refusal(Code.NOT_SUPPORTED, f"there is no operation {other:#x}")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Tasks of a device's own that were cancelled are no Exception.
            self._fail(header, error)

    def _attach(self, header: Header) -> dict[str, Any]:
        if header.request != 1:
            # The device is open already, and opening it again would not bring it to rest.
            raise Refusal(Code.SEQUENCE, "ATTACH is the first request of a session, and no other")
        self._prove_safe()
        self._reservoir.open()
        self._step, self._batch, self._lost, self._readout = 0, 1, None, None
        return self._declaration()

    def _prove_safe(self) -> None:
        """After a failed closing nobody gets the device before it was opened and closed without a fault."""
        problem = self.problem
        if problem is None:
            return
        try:
            self._reservoir.open()
            self._reservoir.close()
        except Exception as error:
            raise DeviceFault(
                f"{problem}; it was tried again, and failed: {text_of(error)}. Nobody gets it in this condition: look "
                "after the device itself, and then open it again, or restart its server"
            ) from error
        log.warning("the device was brought to its safe state after all", extra={"event": "safe again"})

    def _declaration(self) -> dict[str, Any]:
        spec = self._reservoir.spec
        # Integers on the wire are a limit of the device, like those of its converters.
        for name, encoding in (("input", self._inputs), ("output", self._states)):
            if encoding.number.kind == "i":
                bits = 8 * encoding.number.itemsize
                spec = spec.model_copy(update={f"{name}_bits": min(bits, getattr(spec, f"{name}_bits") or bits)})
        if self._inputs.number.kind == "i":
            number = spec.numpy_dtype.type
            low, high = self._inputs.limits
            if spec.input_range is not None:
                low, high = max(low, spec.input_range[0]), min(high, spec.input_range[1])
            if not low < high:
                raise ConfigurationError(
                    f"inputs as {self._inputs.number} with a scale of {self._inputs.scale:g} cannot reach the device's "
                    f"range {spec.input_range}: choose another scale"
                )
            # Inwards: what the client may send in the dtype of the device must fit.
            low = float(low if float(number(low)) >= low else np.nextafter(number(low), number(np.inf)))
            high = float(high if float(number(high)) <= high else np.nextafter(number(high), number(-np.inf)))
            spec = spec.model_copy(update={"input_range": (low, high)})
        self.spec = spec
        return {
            "spec": spec.model_dump(mode="json"),
            "inputs": list(self._inputs),
            "states": list(self._states),
            "chunked": self._chunked,
            "readout": True,
            # `Reservoir.run` has looked at them; only a narrower number could still overflow.
            "finite": self._reservoir.vouches
            and (self._states.number.kind == "i" or self._states.number == spec.numpy_dtype),
        }

    @property
    def _chunked(self) -> bool:
        continuity = self._reservoir.spec.continuity
        return continuity == "held" or (continuity == "free_running" and self._reservoir.streams)

    def _open_device(self) -> Reservoir:
        if not self._reservoir.is_open:
            raise Refusal(Code.SEQUENCE, "ATTACH is the first request of a session; here it failed or is missing")
        return self._reservoir

    def _reset(self, header: Header) -> None:
        reservoir = self._open_device()
        self._check_size(header.batch, 1)
        self._lost = "the last reset failed"
        reservoir.reset(header.batch)
        self._step, self._batch, self._lost = 0, header.batch, None
        self._answer_with(header, b"", batch=header.batch)

    def _snapshot(self, header: Header) -> None:
        reservoir = self._open_device()
        if self._lost is not None:
            raise Refusal(Code.STATE_LOST, self._lost)
        self._answer_with(header, pack_arrays(reservoir.snapshot()))

    def _restore(self, header: Header, payload: memoryview) -> None:
        reservoir = self._open_device()
        self._check_size(header.batch, 1)
        if header.step >= 1 << 63:
            raise Refusal(Code.MALFORMED, f"{header.step} is no number of a step that one can go on from")
        arrays = _named(payload)
        if any(array.ndim < 1 or len(array) != header.batch for array in arrays.values()):
            raise Refusal(Code.SHAPE, f"each array must have {header.batch} rows, one for each sequence")
        reservoir.restore(arrays)
        self._step, self._batch, self._lost = header.step, header.batch, None
        self._answer_with(header, b"", batch=header.batch, step=header.step)

    def _upload(self, header: Header, payload: memoryview) -> None:
        self._open_device().upload(_named(payload))
        self._step, self._lost, self._readout = 0, None, None
        self._answer_with(header, pack_map(self._declaration()))

    def _transition(self, header: Header, payload: memoryview) -> None:
        reservoir = self._open_device()
        spec = reservoir.spec
        if header.steps != 1 or header.width != spec.inputs + spec.nodes:
            raise Refusal(Code.SHAPE, f"TRANSITION takes (batch, 1, {spec.inputs + spec.nodes})")
        self._check_size(header.batch, 1)
        rows = self._values(header, payload, self._states)[:, 0]
        states = reservoir.transition(rows[:, : spec.inputs].copy(), rows[:, spec.inputs :].copy())
        self._answer_array(header, states[:, None], self._states, time.time_ns())

    def _load_readout(self, header: Header, payload: memoryview) -> None:
        arrays = _named(payload)
        nodes = self._open_device().spec.nodes
        weights = arrays.get("weights")
        if weights is None or weights.ndim != 2 or weights.shape[1] != nodes or weights.shape[0] < 1:
            raise Refusal(Code.CONFIGURATION, f"a readout needs weights (outputs, {nodes})")
        if weights.dtype not in (np.int8, np.int16, np.float32):
            raise Refusal(Code.CONFIGURATION, f"readout weights are int8, int16 or float32, not {weights.dtype}")
        if not np.isfinite(weights).all():
            raise Refusal(Code.CONFIGURATION, "readout weights must be finite numbers")
        scale, bias = arrays.get("scale"), arrays.get("bias")
        for name, array in (("scale", scale), ("bias", bias)):
            if array is None or array.shape != weights.shape[:1] or not np.isfinite(array).all():
                raise Refusal(Code.CONFIGURATION, f"a readout needs {name} ({weights.shape[0]},), finite numbers")
        assert scale is not None
        assert bias is not None
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray((weights.astype(np.float32) * scale.astype(np.float32)[:, None]).T)
            bias = bias.astype(np.float32)
        if not (np.isfinite(values).all() and np.isfinite(bias).all()):
            raise Refusal(Code.CONFIGURATION, "the weights or the bias of the readout do not fit into float32")
        self._readout = values, bias
        self._answer_with(header, b"", width=weights.shape[0])

    def _run(self, header: Header, payload: memoryview) -> None:
        u = self._inputs_of(header, payload)
        reservoir = self._reservoir
        if reservoir.spec.continuity == "free_running" and self._chunked:
            self._run_stream(header, u)
            return
        if header.flags & Flag.MORE and not self._chunked:
            raise Refusal(Code.NOT_SUPPORTED, "this device must have a whole run in one message (chunked: false)")
        started = time.time_ns()
        states = reservoir.run(u, out=self._memory_for(header))
        self._step += header.steps
        self._answer_run(header, states, started)

    def _memory_for(self, header: Header) -> np.ndarray | None:
        """Where large states are put: those of a device may lie in memory that it uses again before they are sent."""
        spec = self._reservoir.spec
        if header.batch * header.steps * spec.nodes * spec.numpy_dtype.itemsize < ZERO_COPY_BYTES:
            return None
        return np.empty((header.batch, header.steps, spec.nodes), spec.numpy_dtype)

    def _inputs_of(self, header: Header, payload: memoryview) -> np.ndarray:
        """What a RUN drives the device with, refused unless it goes on from where the last one ended."""
        spec = self._open_device().spec
        if self._lost is not None:
            raise Refusal(Code.STATE_LOST, self._lost)
        if header.step != self._step:
            raise Refusal(Code.SEQUENCE, f"this RUN begins with step {header.step}, the device is at {self._step}")
        if header.batch != self._batch or header.width != spec.inputs or header.steps < 1:
            raise Refusal(
                Code.SHAPE,
                f"RUN takes ({self._batch}, time, {spec.inputs}) after the last RESET, got {header.shape}",
            )
        if header.flags & ~(Flag.MORE | Flag.OUTPUTS):
            raise Refusal(Code.MALFORMED, f"a RUN has no flags {header.flags:#x}")
        if header.flags & Flag.OUTPUTS and self._readout is None:
            raise Refusal(Code.CONFIGURATION, "outputs were asked for, but no READOUT was loaded")
        self._check_size(header.batch, header.steps, outputs=bool(header.flags & Flag.OUTPUTS))
        return self._values(header, payload, self._inputs)

    def _run_stream(self, first: Header, u: np.ndarray) -> None:
        """A device with its own clock is given each chunk as soon as all of it is here, and no later than it is due."""
        reservoir = self._reservoir
        period_s = reservoir.spec.step_period_s
        taken, given, latest = [first], first.steps, first.request
        started, started_ns = time.monotonic(), time.time_ns()

        def chunks() -> Iterator[np.ndarray]:
            nonlocal given, latest
            yield u
            more = first.flags & Flag.MORE
            while more:
                if self._stop.is_set():
                    raise Refusal(Code.SHUTTING_DOWN, "the server is shutting down")
                if self._session.number != self._attached or self._session.expired():
                    raise Refusal(Code.CANCELLED, "the client has left in the middle of a run")
                if self._session.is_cancelled(latest):
                    raise Refusal(Code.CANCELLED, "cancelled by the client")
                self._session.wait()
                message = self._next()
                if message is None:
                    if self._lost is not None:
                        raise Refusal(Code.STATE_LOST, self._lost)
                    if period_s and time.monotonic() > started + given * period_s:
                        reservoir.counters.underruns += 1
                        raise Discontinuity(
                            f"discontinuity at step {first.step + given}: its inputs were not there when they were due",
                            step=first.step + given,
                        )
                    continue
                header, payload = message
                latest = header.request
                taken.append(header)
                if header.operation != Operation.RUN:
                    raise Refusal(Code.SEQUENCE, f"{name_of(header.operation)} in the middle of a run")
                values = self._inputs_of(header._replace(step=header.step - ahead()), payload)
                more = header.flags & Flag.MORE
                given += header.steps
                yield values

        def ahead() -> int:
            """Steps that were taken up and not answered."""
            return sum(header.steps for header in taken[:-1])

        try:
            for states in reservoir.stream(chunks()):
                header = taken.pop(0)
                # A copy, as in `_memory_for`.
                states = np.array(states)
                since_first = header.step - first.step
                if not self._answer_run(header, states, started_ns + round(1e9 * since_first * (period_s or 0))):
                    reservoir.counters.overruns += 1
                    raise Discontinuity(
                        f"discontinuity at step {header.step}: nobody took its states in time", step=header.step
                    )
                self._step += header.steps
        except Exception as error:
            # The device went on without what it was refused.
            self._lost = self._lost or _sendable(text_of(error))
            for number, header in enumerate(taken):
                behind = Refusal(Code.STATE_LOST, f"the run has failed before this chunk: {text_of(error)}")
                self._fail(header, behind if number else error)

    def _values(self, header: Header, payload: memoryview, encoding: Encoding) -> np.ndarray:
        try:
            if (header.dtype, header.scale) != encoding:
                raise ProtocolError(f"dtype {header.dtype}, scale {header.scale:g}; declared were {tuple(encoding)}")
            numbers = array_of(header, payload)
        except ProtocolError as error:
            raise Refusal(Code.MALFORMED, str(error)) from error
        return encoding.decoded(numbers, self._reservoir.spec.numpy_dtype)

    def _check_size(self, batch: int, steps: int, *, outputs: bool = False) -> None:
        """Refuse what would answer with more than one frame may hold."""
        spec = self._reservoir.spec
        width = spec.nodes
        if outputs and self._readout is not None:
            width = max(width, len(self._readout[1]))
        if batch < 1:
            raise Refusal(Code.SHAPE, "batch must be at least 1")
        if spec.max_batch is not None and batch > spec.max_batch:
            raise Refusal(Code.TOO_LARGE, f"batch is {batch}, the device drives {spec.max_batch} sequences at once")
        answer = batch * steps * width * max(self._states.number.itemsize, spec.numpy_dtype.itemsize)
        if answer > self.max_frame_bytes:
            raise Refusal(
                Code.TOO_LARGE,
                f"{batch} x {steps} steps of {width} numbers are {answer} bytes, at most {self.max_frame_bytes} go "
                "into one frame: use shorter chunks or fewer sequences",
            )

    def _answer_run(self, header: Header, states: Any, time_ns: int) -> bool:
        """Whether it could be sent."""
        encoding = self._states
        if header.flags & Flag.OUTPUTS and self._readout is not None:
            weights, bias = self._readout
            states, encoding = states.astype(np.float32, copy=False) @ weights + bias, encoding_of("float32")
        return self._answer_array(header, states, encoding, time_ns)

    def _answer_array(self, header: Header, array: Any, encoding: Encoding, time_ns: int) -> bool:
        batch, steps, width = array.shape
        reply = Header(
            header.operation | REPLY, header.session, header.request, header.flags, header.step, batch, steps, width,
            encoding.dtype, encoding.scale, time_ns, self._reservoir.spec.step_period_s or 0.0,
        )  # fmt: skip
        try:
            numbers = encoding.encode(array)
        except InputRangeError as error:
            raise DeviceFault(f"the states cannot be sent as this server declares them: {error}") from error
        sent = self._send(self._peer, reply, numbers)
        self._session.finish(header.session, header.request)
        return sent

    def _answer_with(self, header: Header, payload: bytes, **fields: int) -> None:
        if len(payload) > self.max_frame_bytes:
            raise Refusal(
                Code.TOO_LARGE, f"the answer has {len(payload)} bytes, at most {self.max_frame_bytes} go into one frame"
            )
        self._send(self._peer, Header(header.operation | REPLY, header.session, header.request, **fields), payload)
        self._session.finish(header.session, header.request)

    def _fail(self, header: Header, error: BaseException) -> None:
        """Answer a request with an error."""
        code = code_of(error)
        if code is Code.INTERNAL:
            log.exception("request %d failed", header.request, exc_info=error)
        else:
            log.warning(
                "request %d (%s): %s",
                header.request,
                name_of(header.operation),
                _sendable(text_of(error)),
                extra={"event": "refused", "request": header.request, "code": int(code)},
            )
        more = header.operation == Operation.RUN and header.flags & Flag.MORE
        # What a device raises in the middle of its work loses the state, whatever it is called.
        lost = code not in HARMLESS or more or (self._reservoir.is_open and self._reservoir.state_lost is not None)
        if lost and self._lost is None:
            self._lost = _sendable(f"request {header.request} failed: {text_of(error)}")
        self._send_error(self._peer, header, error)
        self._session.finish(header.session, header.request)

    def _send_error(self, peer: bytes, header: Header, error: BaseException) -> None:
        self._session.traffic.errors += 1
        content: dict[str, Any] = {
            "code": int(code_of(error)),
            "text": "",
            "step": self._step,
            "state_lost": self._lost is not None,
            "steps_done": 0,
            "states": None,
        }
        text = text_of(error)
        if not isinstance(error, ReservoirError | Refusal):
            text = f"{type(error).__name__}: {text}"
        try:
            text = _sendable("\n".join([text, *map(str, getattr(error, "__notes__", ()))]))
            step = self._step_of(header, error)
            if 0 <= step < 1 << 64:
                content["step"] = step
            text = self._add_harvest(content, header, error, text)
        except Exception:
            # What a device puts into an error need not make sense: the error itself is what counts.
            log.exception("the error of request %d could not be told whole", header.request)
        content["text"] = _clipped(_sendable(text), self._longest_text)
        reply = Header(ERROR, header.session, header.request, step=header.step)
        with contextlib.suppress(zmq.ZMQError):
            # Whoever sent nonsense may be gone already.
            self._send(peer, reply, pack_map(content))

    @property
    def _longest_text(self) -> int:
        return min(LONGEST_TEXT, self.max_frame_bytes // 4)

    def _add_harvest(self, content: dict[str, Any], header: Header, error: BaseException, text: str) -> str:
        """Put into an error what was harvested before it, as far as it goes into a frame; its text."""
        if not isinstance(error, DeviceError) or error.states is None or header.operation != Operation.RUN:
            return text
        # What cannot be written as declared is not told.
        with contextlib.suppress(InputRangeError, TypeError, ValueError, IndexError):
            harvested = np.asarray(error.states)[:, : error.steps_done]
            batch, done, nodes = harvested.shape
            room = self.max_frame_bytes - 2 * self._longest_text
            kept = min(done, room // max(1, batch * nodes * self._states.number.itemsize))
            content["states"] = self._states.encode(harvested[:, :kept]).tobytes()
            content["steps_done"] = kept
            if kept < done:
                return f"{_clipped(text, self._longest_text // 2)}\n(states: {kept} of {done} steps, more do not fit)"
        return text

    def _step_of(self, header: Header, error: BaseException) -> int:
        """Where it happened."""
        if isinstance(error, Discontinuity):
            return int(error.step)
        if isinstance(error, DeviceError) and header.operation == Operation.RUN:
            return header.step + int(error.steps_done)
        return self._step

    def _send(self, peer: bytes, header: Header, payload: Any) -> bool:
        """Whether the message is on its way."""
        try:
            packed = pack_header(header, payload)
            # Only for the one who has the device is it worth while to wait.
            if peer == self._peer:
                send(self._data, packed, payload, peer=peer)
            else:
                send_at_once(self._data, [peer, packed, payload])
        except zmq.ZMQError as error:
            log.warning("request %d cannot be answered: %s", header.request, error)
            return False
        self._session.traffic.bytes_sent += len(payload) if isinstance(payload, bytes) else payload.nbytes
        return True

    def _release(self) -> None:
        """Bring the device to its safe state."""
        if self._attached:
            self._attached, self._peer, self._readout = 0, b"", None
        try:
            self._reservoir.close()
        except Exception:
            log.exception("the device could not be brought to its safe state")


def _printable(text: str) -> str:
    """What others sent, as it may be shown in a log or on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _sendable(text: str) -> str:
    """A text that may hold what an instrument has sent, which may be none at all."""
    return text.encode(errors="backslashreplace").decode()


def _clipped(text: str, size: int) -> str:
    """A text of at most `size` bytes."""
    raw = text.encode()
    return text if len(raw) <= size else raw[: size - 3].decode(errors="ignore") + "..."


def _named(payload: memoryview) -> dict[str, np.ndarray]:
    try:
        return unpack_arrays(payload)
    except ProtocolError as error:
        raise Refusal(Code.MALFORMED, str(error)) from error
