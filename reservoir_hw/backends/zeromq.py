"""A device that somebody else serves: everything behind docs/protocol.md."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr, ValidationError, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    Discontinuity,
    NotSupported,
    ProtocolError,
    ReservoirError,
    ShapeError,
    StateLost,
    extra,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import Identity, ReservoirSpec, ResetPolicy
from reservoir_hw.drivers.codes import encoding_of, printable

log = logging.getLogger(__name__)

# Of the wider of inputs and states: large enough to hide the cost of a message, small enough for the cache.
CHUNK_BYTES = 1 << 21
# Numbers in a time step: the field of the header.
WIDEST = (1 << 32) - 1


class SecurityConfig(Config):
    """CURVE keys (`reservoir-hw device keys` makes them)."""

    server_key: str = Field(description="the device's public key: a .key file, or its 40 characters")
    key: Path = Field(description="our own .key_secret file")


class ZmqConfig(ReservoirConfig):
    """A device behind a socket: what `reservoir-hw serve` offers, or anything that speaks docs/protocol.md."""

    declares_inputs = True
    never = frozenset({"differentiable"})

    kind: Literal["zmq"]
    address: str = Field(description="tcp://host:port, ipc://path or unix://path of the data socket")
    control: Annotated[str | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="address of the control socket; by default the next port, or the path + .control"
    )
    timeout_s: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = Field(
        default=5.0,
        le=86400,
        description="wait so long for a sign of life; what a device is busy with may take any time",
    )
    credits: Annotated[PositiveInt | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="chunks under way at once; by default what the device offers"
    )
    chunk_steps: Annotated[PositiveInt | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="time steps in a message; by default about two megabytes"
    )
    check_states: Annotated[bool | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None,
        description="look for states that are not finite: always, never, or by default unless the device says that it "
        "does so itself",
    )
    checksums: Annotated[bool, NO_INFLUENCE_ON_STATES] = Field(
        default=False, description="payloads have checksums at a unix address, too; at tcp and ipc they always have"
    )
    security: Annotated[SecurityConfig | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="keys, where the device asks for them"
    )
    memory_steps: PositiveInt | None = Field(
        default=None, description="after so many steps the device has forgotten an input; by default what it declares"
    )
    reset: ResetPolicy | None = Field(default=None, description="in addition to the reset of the device itself")
    knobs: dict[str, float] = Field(
        default={}, description="name -> value of settings of the device, by default as its server opens it"
    )
    # Copies of a configuration share it: whichever is opened learns it for all.
    _said: dict[str, str] = PrivateAttr(default_factory=dict)
    _units: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def kind_name(self) -> str:
        """What the device calls itself, as soon as one was opened from here; before that its address."""
        return self._said.get("label", self._by_address)

    @property
    def _by_address(self) -> str:
        return f"ZMQ({self.address})"

    def with_own_name(self, label: str) -> str:
        """The label without the address, and with the units of knobs."""
        label = label.replace(self._by_address, self.kind_name)
        for name, unit in self._units.items():
            label = re.sub(rf"(?<!\S)({re.escape(name)}=\S+)", rf"\1 {unit}", label)
        return label

    @property
    def knob_units(self) -> dict[str, str]:
        """Those that the open device has told."""
        return dict(self._units)

    def learn_name(self, label: str, units: Mapping[str, str] | None = None) -> None:
        """What the open device calls itself, and the units of its knobs."""
        if label:
            self._said["label"] = label
        self._units.update({name: unit for name, unit in (units or {}).items() if unit})

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        from reservoir_hw.drivers.zeromq.addresses import address_to_connect, by_unix_sockets, control_address

        by_unix_sockets(
            [address_to_connect(at) for at in (self.address, self.control or control_address(self.address))]
        )
        return self

    def build(self) -> ZmqReservoir:
        """Make the reservoir; nothing is sent before `open()`."""
        return ZmqReservoir(self)


class ZmqReservoir(Reservoir):
    """A device on the other end of two sockets.

    `set_readout` and `run_outputs` use a readout on the device, where it has one.
    """

    # Chunk by chunk, while they are in the cache.
    checks_states = True

    def __init__(self, config: ZmqConfig) -> None:
        super().__init__(reset=config.reset, out_of_range=config.out_of_range)
        self._config = config
        self._connection: Any = None
        # The driver is imported by open(): it needs packages that not everybody has.
        self._frames: Any = None
        self._next_step = self._wire_outputs = 0
        self._untouched = False
        # Sequences that the device holds.
        self._rows = 1
        self._last_timing: tuple[int, int, float] | None = None
        self._monitored_until: dict[str, float] = {}

    # ---- more than the contract -----------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the server says about itself: device, holder, counters."""
        self.spec  # noqa: B018 - raises NotOpen
        return self._connection.status()

    def set_readout(self, weights: np.ndarray, bias: np.ndarray, *, dtype: Literal["int8", "int16", "float32"]) -> None:
        """Load a linear readout into the device: y = weights x + bias, (outputs, nodes) and (outputs,).

        Integers are quantised with a scale for each output, so that its largest weight uses the whole range.
        """
        weights, bias = np.asarray(weights, np.float64), np.asarray(bias, np.float64)
        if weights.ndim != 2 or weights.shape[1] != self.spec.nodes or bias.shape != weights.shape[:1]:
            raise ShapeError(f"a readout needs weights (outputs, {self.spec.nodes}) and bias (outputs,)")
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise ConfigurationError("a readout needs finite weights and a finite bias")
        if not self._declaration.readout:
            raise NotSupported(f"{self.name} has no readout: the device does not declare it")
        scale = np.ones(len(weights))
        if dtype != "float32":
            largest = np.abs(weights).max(axis=1)
            scale = np.where(largest > 0, largest, 1.0) / np.iinfo(dtype).max
            weights = np.rint(weights / scale[:, None])
        self._connection.load_readout(weights.astype(dtype), scale.astype(np.float32), bias.astype(np.float32))
        self._wire_outputs = len(weights)

    def run_outputs(self, u: np.ndarray) -> np.ndarray:
        """Drive the device like `run`, but get what its readout makes of the states: (batch, time, outputs) float32."""
        if not self._wire_outputs:
            raise NotSupported(f"{self.name} has no readout loaded: call set_readout first")

        def outputs(native: np.ndarray) -> np.ndarray:
            out = np.empty((*native.shape[:2], self._wire_outputs), np.float32)
            self._drive_chunks(native, out, outputs=True)
            return out

        answers = self.drive(u, outputs)
        return np.empty((len(u), 0, self._wire_outputs), np.float32) if answers is None else answers

    # ---- hooks ----------------------------------------------------------------------------------

    def _open(self) -> ReservoirSpec:
        with extra("zmq", "devices over ZeroMQ need pyzmq"):
            from reservoir_hw.drivers.zeromq import frames
            from reservoir_hw.drivers.zeromq.client import Connection
            from reservoir_hw.drivers.zeromq.security import read_pair, read_public
        self._frames = frames
        config = self._config
        security = config.security
        self._connection = Connection(
            config.address,
            control=config.control,
            timeout_s=config.timeout_s,
            server_key=None if security is None else read_public(security.server_key),
            keys=None if security is None else read_pair(security.key),
            checksums=config.checksums,
        )
        spec = self._accept(self._connection.attach())
        if not config.knobs:
            return spec
        for name, value in config.knobs.items():
            if name not in spec.knobs:
                known = ", ".join(spec.knobs) or "none"
                raise ConfigurationError(f"knobs: {config.address} has no knob {name!r}; it has: {known}")
            if problem := spec.knobs[name].problem_of(value):
                raise ConfigurationError(f"knobs.{name}: {problem}")
        return self._set(config.knobs)

    def _accept(self, declaration: Any) -> ReservoirSpec:
        self._declaration = declaration
        self._next_step, self._untouched, self._wire_outputs = 0, True, 0
        known = _known(declaration.spec, ReservoirSpec)
        if isinstance(known.get("identity"), dict):
            identity = _known(known["identity"], Identity)
            known["identity"] = {name: _shown(value) for name, value in identity.items()}
        # The gradient of a simulation does not cross the wire.
        known["differentiable"] = False
        if self._config.memory_steps is not None:
            known["memory_steps"] = self._config.memory_steps
        try:
            spec = ReservoirSpec.model_validate(known)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors())
            raise ProtocolError(f"{self._config.address} declares a spec that cannot be used: {problems}") from error
        self._refuse_impossible(spec)
        units = {name: _shown(knob.unit) for name, knob in spec.knobs.items()}
        self._config.learn_name(declaration.label or _shown(spec.identity.name), units)
        self.label = self._config.name
        self.states_are_checked = self._declaration.finite or self._config.check_states is not False
        wanted = self._config.inputs
        if wanted is not None and wanted != spec.inputs:
            raise ConfigurationError(
                f"{self._config.address} has {spec.inputs} inputs, but {wanted} are wanted: leave reservoir.inputs out"
            )
        return spec

    def _refuse_impossible(self, spec: ReservoirSpec) -> None:
        """Refuse declarations of a foreign device that no array of this program can hold."""
        where = self._config.address
        if max(spec.inputs, spec.nodes) > WIDEST:
            raise ProtocolError(f"{where} declares {spec.inputs} inputs and {spec.nodes} nodes; {WIDEST} can be sent")
        most = self._connection.max_frame_bytes
        for name, width, encoding in (
            ("inputs", spec.inputs, self._declaration.inputs), ("nodes", spec.nodes, self._declaration.states),
        ):  # fmt: skip
            if width * encoding.number.itemsize > most:
                raise ProtocolError(f"{where} declares {width} {name}: a step does not go into a frame of {most} bytes")
        largest = float(np.finfo(spec.numpy_dtype).max)
        for name in ("input_range", "state_range"):
            limits = getattr(spec, name)
            if limits is not None and not all(abs(limit) <= largest for limit in limits):
                raise ProtocolError(f"{where} declares {name} {list(limits)}: no {spec.dtype} number is as large")
        states = self._declaration.states
        if states.number.kind == "i" and max(states.limits) > largest:
            raise ProtocolError(f"{where} declares states with a scale of {states.scale:g}, too large for {spec.dtype}")
        if states.number.itemsize > spec.numpy_dtype.itemsize and states.number.kind == "f":
            # What is finite there need not be finite here.
            self._declaration = replace(self._declaration, finite=False)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _reset(self, batch: int) -> None:
        # ATTACH has left the device at rest for one sequence.
        if not (self._untouched and batch == 1):
            self._abandon()
            self._connection.reset(batch)
        self._rows = batch
        self._next_step, self._untouched, self._last_timing = 0, False, None

    def _snapshot(self) -> dict[str, np.ndarray]:
        state = self._connection.snapshot()
        for name, array in state.items():
            if array.ndim < 1 or len(array) != self._rows:
                raise self._connection.broken(
                    f"array {name!r} of the snapshot has shape {list(array.shape)}, not a row for each of {self._rows} "
                    "sequences"
                )
        if not state:
            raise self._connection.broken("the snapshot holds no array")
        return state

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._abandon()
        if not state:
            raise ConfigurationError("restore: the snapshot holds no array of the device")
        self._rows = len(next(iter(state.values())))
        self._connection.restore(self._rows, state)
        self._next_step, self._untouched, self._last_timing = 0, False, None

    def _transition(self, u: Any, states: Any) -> Any:
        out = np.empty((len(u), 1, self.spec.nodes), self.spec.numpy_dtype)
        if not len(u):
            return out[:, 0]
        encoding = self._declaration.states
        rows = encoding.encode(np.concatenate([u, states], axis=1))[:, None]
        sent = self._connection.send(
            self._frames.Operation.TRANSITION, rows, batch=rows.shape[0], steps=1, width=rows.shape[2],
            dtype=encoding.dtype, scale=encoding.scale,
        )  # fmt: skip
        self._deliver(sent, out)
        return out[:, 0]

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        self._abandon()
        return self._accept(self._connection.upload(weights))

    def _set(self, values: Mapping[str, float]) -> ReservoirSpec:
        self._abandon()
        # The server wants a RESET, also where ATTACH had left the device at rest.
        spec = self._accept(self._connection.turn(values))
        self._untouched = False
        return spec

    def _get(self, names: Sequence[str]) -> dict[str, float | None]:
        return self._connection.read(names)

    def played_steps(self, steps: int) -> int:
        """A device that answers late is driven so much longer. Only an open one says so."""
        return steps + self.device_spec.latency_steps if steps and self.is_open else steps

    def _run(self, u: Any, out: Any) -> Any:
        if out is None:
            out = np.empty((*u.shape[:2], self.device_spec.nodes), self.spec.numpy_dtype)
        self.counters.steps += u.shape[0] * self.device_spec.latency_steps
        self._drive_chunks(u, out, outputs=False)
        return out

    @property
    def streams(self) -> bool:
        """Whether the device behind the server takes chunks without a pause between them."""
        self.spec  # noqa: B018 - raises NotOpen
        return self._declaration.chunked

    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        nodes, dtype = self.device_spec.nodes, self.spec.numpy_dtype
        self.counters.steps += self._rows * self.device_spec.latency_steps
        # Of each message: the states of its chunk, its first step there, and whether it is the last.
        sent: deque[tuple[np.ndarray, int, bool]] = deque()

        def messages() -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
            for u in chunks:
                out = np.empty((*u.shape[:2], nodes), dtype)
                size = self._steps_within(self._connection.max_frame_bytes, u.shape[0])
                for first in range(0, max(1, u.shape[1]), size):
                    sent.append((out, first, first + size >= u.shape[1]))
                    yield u[:, first : first + size], out[:, first : first + size], first

        try:
            for _ in self._in_flight(messages(), outputs=False):
                out, _, is_last = sent.popleft()
                if is_last:
                    yield out
        except DeviceError as fault:
            if sent:
                out, first, _ = sent[0]
                fault.steps_done += first
                fault.states = out[:, : fault.steps_done]
            raise

    def _begin_monitors(self) -> None:
        # What the server's monitors have read before is not counted.
        self._monitored_until = {name: max(one["times"], default=0.0) for name, one in self._series().items()}

    def monitored(self) -> dict[str, dict[str, Any]]:
        """What the monitors behind the server have read in this session."""
        found = self._series()
        for name, one in found.items():
            kept = [n for n, at in enumerate(one["times"]) if at > self._monitored_until.get(name, 0.0)]
            if len(kept) < len(one["times"]):
                values = [one["values"][n] for n in kept]
                found[name] = {**one, "times": [one["times"][n] for n in kept], "values": values, **_ends(values)}
        return found

    def _series(self) -> dict[str, dict[str, Any]]:
        declared = self.device_spec.monitors if self.is_open else {}
        if not declared:
            return {}
        told = self._connection.status().get("monitors", {})
        series: dict[str, dict[str, Any]] = {}
        for name, one in told.items() if isinstance(told, dict) else ():
            times, values = (one.get(key) for key in ("times", "values")) if isinstance(one, dict) else (None, None)
            if name in declared and _are_numbers(times) and _are_numbers(values) and len(times) == len(values):
                ends = {key: one[key] if _are_numbers([one.get(key)]) else end for key, end in _ends(values).items()}
                series[name] = {**declared[name].model_dump(mode="json"), "times": times, "values": values, **ends}
        return series

    def read_back(self) -> dict[str, Any]:
        """What the device behind the server says of its settings."""
        return dict(self._declaration.settings)

    @property
    def tolerances(self) -> Mapping[str, float]:
        """Those that the server declares."""
        return self._declaration.tolerances

    def _settings(self) -> dict[str, Any]:
        timing, told = self._last_timing, self._declaration.provenance
        return {
            # As if the device were here; its own reset is done over there.
            **{name: value for name, value in told.items() if name != "reset"},
            **({"served": {"reset": told["reset"]}} if "reset" in told else {}),
            "address": self._config.address,
            "server": self._connection.welcome.get("server"),
            "incidents": vars(self._connection.incidents).copy(),
            "device_time": None if timing is None else {"step": timing[0], "time_ns": timing[1], "period_s": timing[2]},
        }

    # ---- how ------------------------------------------------------------------------------------

    def _message_steps(self, u: np.ndarray) -> int:
        """Steps of one message of a run. `ConfigurationError` where the device must have more at once than it takes."""
        steps, declared = u.shape[1], self._declaration
        if steps == 1 or (not declared.chunked and not declared.whole_run_bytes):
            return steps
        size, width = self._config.chunk_steps, declared.inputs.number.itemsize
        if size is None:
            size = self._steps_within(min(CHUNK_BYTES, self._connection.max_frame_bytes), u.shape[0])
        if not declared.chunked and steps > size and u.size * width > declared.whole_run_bytes:
            raise ConfigurationError(
                f"{self.name} must have a whole run at once, and takes {declared.whole_run_bytes} bytes of inputs; "
                f"these are {u.size * width}: drive shorter runs, each from a reset"
            )
        return size

    def _steps_within(self, size: int, batch: int) -> int:
        """Steps of `batch` sequences whose inputs, and whose answer, have at most so many bytes; at least one."""
        spec, declared = self.device_spec, self._declaration
        # Of states a server also counts what they take before they are encoded.
        number = max(declared.states.number.itemsize, spec.numpy_dtype.itemsize)
        answered = max(spec.nodes, self._wire_outputs) * number
        row = batch * max(spec.inputs * declared.inputs.number.itemsize, answered)
        return max(1, size // row)

    def _drive_chunks(self, u: np.ndarray, out: np.ndarray, *, outputs: bool) -> None:
        """Fill `out` with the answers to `u`, several chunks under way at once."""
        steps = u.shape[1]
        size = self._message_steps(u)
        done = 0
        try:
            if steps <= size:
                # A step of a closed loop: nothing else is under way.
                self._take(self._send_run(u, more=False, outputs=outputs), out, 0)
                return
            starts = range(0, steps, size)
            parts = ((u[:, first : first + size], out[:, first : first + size], first) for first in starts)
            for answered in self._in_flight(parts, outputs=outputs):
                done += answered.shape[1]
        except DeviceError as fault:
            fault.steps_done = done if outputs else done + fault.steps_done
            fault.states = None if outputs else out[:, : fault.steps_done]
            raise
        except StateLost as lost:
            lost.add_note(f"{done} steps of this run had come before")
            raise
        except KeyboardInterrupt:
            with contextlib.suppress(ReservoirError):
                self._abandon()
            raise

    def _in_flight(
        self, chunks: Iterator[tuple[np.ndarray, np.ndarray, int]], *, outputs: bool
    ) -> Iterator[np.ndarray]:
        """Drive chunks, `credits` of them under way at once; each answer comes out in the order of the chunks.

        All are under way where the device must have the whole run: it answers when all of it is there. A chunk is its
        inputs, the array for its answer, and the number of its first step. A fault keeps what came of its own chunk.
        """
        waiting: deque[tuple[Any, np.ndarray, int]] = deque()
        ahead: deque[tuple[np.ndarray, np.ndarray, int]] = deque()
        most = math.inf
        if self._declaration.chunked:
            most = min(self._connection.credits, self._config.credits or math.inf)

        def more() -> bool:
            # A chunk without steps has nothing to send: whether one comes behind it is not known yet.
            while not any(u.shape[1] for u, _, _ in ahead):
                if (chunk := next(chunks, None)) is None:
                    return False
                ahead.append(chunk)
            return True

        while more() or ahead or waiting:
            while (more() or ahead) and len(waiting) < most:
                u, out, first = ahead.popleft()
                sent = self._send_run(u, more=more(), outputs=outputs) if u.shape[1] else None
                waiting.append((sent, out, first))
            sent, out, first = waiting.popleft()
            if sent is not None:
                self._take(sent, out, first)
            yield out

    def _take(self, sent: Any, out: np.ndarray, first: int) -> None:
        """As `_deliver`; of states that came before a fault, as many as are right are put into `out` and the fault."""
        try:
            self._deliver(sent, out, first)
        except DeviceError as fault:
            if not sent.flags & self._frames.Flag.OUTPUTS:
                self._keep(fault, out, first)
            raise

    def _send_run(self, u: np.ndarray, *, more: bool, outputs: bool) -> Any:
        encoding = self._declaration.inputs
        header = self._connection.send(
            self._frames.Operation.RUN, encoding.encode(u), flags=int(more) + 2 * int(outputs), step=self._next_step,
            batch=u.shape[0], steps=u.shape[1], width=u.shape[2], dtype=encoding.dtype, scale=encoding.scale,
        )  # fmt: skip
        self._next_step += u.shape[1]
        self._untouched = False
        return header

    def _deliver(self, sent: Any, out: np.ndarray, first: int = 0) -> None:
        """Receive the answer to `sent` into `out`, if it is what it must be. Its first step has the number `first`."""
        header, payload = self._connection.receive(sent)
        outputs = sent.flags & self._frames.Flag.OUTPUTS
        encoding = encoding_of("float32") if outputs else self._declaration.states
        try:
            if header.shape != out.shape or (header.dtype, header.scale) != encoding:
                raise ProtocolError(
                    f"{header.shape} of dtype {header.dtype}, scale {header.scale:g} came instead of {out.shape} of "
                    f"dtype {encoding.dtype}, scale {encoding.scale:g}"
                )
            numbers = self._frames.array_of(header, payload)
        except ProtocolError as error:
            raise self._connection.broken(f"the reply to request {sent.request}: {error}") from error
        encoding.decode(numbers, out)
        look = self._config.check_states
        if outputs or (not self._declaration.finite if look is None else look):
            self.refuse_not_finite(out, first)
        self._check_time(header)

    def _check_time(self, header: Any) -> None:
        """Chunks of a device with its own clock follow each other without a gap."""
        before, now = self._last_timing, (header.step, header.time_ns, header.period_s)
        self._last_timing = now
        spec = self.device_spec
        if spec.continuity != "free_running" or before is None or not header.step or not (before[1] and now[1]):
            return
        expected = before[1] + (now[0] - before[0]) * before[2] * 1e9
        if before[2] and abs(now[1] - expected) > 0.5e9 * before[2]:
            raise Discontinuity(
                f"{self.name}: discontinuity at step {header.step}: it began {(now[1] - expected) / 1e9:+.6f} s "
                "from where the step before ended",
                step=header.step,
            )

    def _keep(self, fault: DeviceError, out: np.ndarray, first: int) -> None:
        """Put what was harvested before a fault into `out`, and that into the fault."""
        steps, raw = fault.steps_done, fault.states
        fault.steps_done = 0
        if isinstance(raw, np.ndarray):
            # The states are in `out`, and there the client saw that they are not finite.
            fault.steps_done = steps
        elif isinstance(raw, bytes) and steps and steps <= out.shape[1]:
            encoding = self._declaration.states
            try:
                numbers = np.frombuffer(raw, encoding.number).reshape(len(out), steps, out.shape[2])
            except ValueError:
                log.warning("the states in the error are not (%d, %d, %d)", len(out), steps, out.shape[2])
            else:
                encoding.decode(numbers, out[:, :steps])
                finite = np.isfinite(out[:, :steps]).all((0, 2))
                if not finite.all():
                    steps = int(finite.argmin())
                    fault.add_note(
                        f"what came with the error is not finite from step {first + steps} on, and was dropped"
                    )
                fault.steps_done = steps
        fault.states = out[:, : fault.steps_done]

    def _abandon(self) -> None:
        """Forget what is under way; the answers are dropped when they come."""
        if self._connection.unanswered:
            self._connection.cancel()


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)


def _ends(values: Sequence[float]) -> dict[str, float | None]:
    return {"lowest": min(values, default=None), "highest": max(values, default=None)}


def _shown(value: Any) -> Any:
    """A text of a foreign device, which a terminal would obey, as it may be printed."""
    return printable(value) if isinstance(value, str) else value


def _known(declared: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """What this version knows of a declaration; a later one may say more."""
    return {name: value for name, value in declared.items() if name in model.model_fields}
