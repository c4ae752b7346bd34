"""A board at the end of a serial line: everything behind docs/serial-protocol.md."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    NotSupported,
    ProtocolError,
    ReservoirError,
    StateLost,
    extra,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec, ResetPolicy
from reservoir_hw.drivers.ports import resource_of_port


class SerialConfig(ReservoirConfig):
    """A board on a serial line: a microcontroller, anything that speaks docs/serial-protocol.md."""

    declares_inputs = True
    never = frozenset({"settable", "differentiable"})
    most_at_once = 1

    kind: Literal["serial"]
    port: str = Field(min_length=1, description="/dev/ttyACM0, COM5, or a URL of pyserial: socket://host:port")
    baud: Annotated[PositiveInt, NO_INFLUENCE_ON_STATES] = Field(
        default=115200, description="bits a second, as the board has it; USB boards and sockets take any"
    )
    timeout_s: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = Field(
        default=3.0,
        le=86400,
        description="wait so long for an answer, beyond the time that its bytes and the declared steps take",
    )
    chunk_steps: Annotated[PositiveInt | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="time steps in a frame; by default as many as the board takes"
    )
    memory_steps: PositiveInt | None = Field(
        default=None, description="after so many steps the board has forgotten an input; by default what it declares"
    )
    reset: ResetPolicy | None = Field(default=None, description="in addition to the reset of the board itself")

    @field_validator("port")
    @classmethod
    def _host_and_port(cls, port: str) -> str:
        place = urlsplit(port)
        if place.scheme == "socket" and not (place.hostname and place.port):
            raise ValueError(f"{port} is not socket://host:port")
        return port

    @property
    def kind_name(self) -> str:
        """A short name for tables and figures."""
        return f"serial({self.port})"

    def build(self) -> SerialReservoir:
        """Make the reservoir; nothing is sent before `open()`."""
        # pyserial is an extra.
        with extra("serial", "boards on a serial line need pyserial"):
            import reservoir_hw.drivers.serial.line  # noqa: F401
        return SerialReservoir(self, resource_of_port(self.port))


class SerialReservoir(Reservoir):
    """A board that is asked one thing at a time. It holds one sequence."""

    def __init__(self, config: SerialConfig, resource: str) -> None:
        super().__init__(reset=config.reset, out_of_range=config.out_of_range, resource=resource)
        self._config = config
        # The driver is imported by open(): it needs a package that not everybody has.
        self._connection: Any = None
        self._untouched = False

    def status(self) -> dict[str, Any]:
        """What the board says about itself: where it is, its counts since it was switched on, and its problem."""
        self.spec  # noqa: B018 - raises NotOpen
        return asdict(self._connection.status())

    # ---- hooks ----------------------------------------------------------------------------------

    def _open(self) -> ReservoirSpec:
        from reservoir_hw.drivers.serial import Connection

        config = self._config
        self._connection = Connection(config.port, baud=config.baud, timeout_s=config.timeout_s)
        spec = self._declared()
        self._connection.attach()
        self._untouched = True
        return spec

    def _declared(self) -> ReservoirSpec:
        board, port = self._connection.declaration, self._config.port

        def told(*names: str) -> dict[str, Any]:
            return {name: getattr(board, name) for name in names}

        encodings = board.input_encoding, board.state_encoding
        # Wide enough for every number that can come.
        dtype: DType = "float64" if any(e.number == np.int32 for e in encodings) else "float32"
        try:
            spec = ReservoirSpec(
                **told("inputs", "nodes", "continuity", "step_period_s", "reset_time_s", "deterministic"),
                identity=Identity(**told("vendor", "model", "serial", "firmware", "content", "simulated")),
                dtype=dtype,
                input_range=_range_of(board),
                max_batch=1,
                memory_steps=self._config.memory_steps or board.memory_steps,
                input_bits=_bits(board.input_encoding),
                output_bits=_bits(board.state_encoding),
            )
        except ValidationError as error:
            problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
            raise ProtocolError(f"{port}: the board declares what cannot be used: {problems}") from error
        wanted = self._config.inputs
        if wanted is not None and wanted != spec.inputs:
            raise ConfigurationError(
                f"{port} has {spec.inputs} inputs, but {wanted} are wanted: leave reservoir.inputs out"
            )
        return spec

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _reset(self, batch: int) -> None:
        # ATTACH has left the board at rest.
        if not self._untouched:
            self._connection.reset()
        self._untouched = False

    def _check_inputs(self, u: Any) -> None:
        most = self._frame_steps
        if self.device_spec.continuity == "free_running" and u.shape[1] > most:
            raise NotSupported(
                f"{self.name} is free running and takes at most {most} steps after a reset, not {u.shape[1]}: put more "
                "into one frame (frame_bytes, run_steps of the board), or fewer into a run"
            )

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        connection, board = self._connection, self._connection.declaration
        steps = u.shape[1]
        if out is None:
            out = np.empty((1, steps, board.nodes), self.spec.numpy_dtype)
        numbers = board.input_encoding.encode(u[0])
        size, done = self._frame_steps, 0
        try:
            while done < steps:
                chunk = numbers[done : done + size]
                self._take(connection.drive(chunk.tobytes(), len(chunk)), out[0, done : done + len(chunk)])
                done += len(chunk)
        except DeviceError as fault:
            fault.steps_done = done + self._kept(fault, out[0, done : done + size])
            fault.states = out[:, : fault.steps_done]
            raise
        except StateLost as lost:
            lost.add_note(f"{done} steps of this run had come before")
            raise
        return out

    def _settings(self) -> dict[str, Any]:
        connection = self._connection
        if connection.in_step:
            # What it says now, if it still does.
            with contextlib.suppress(ReservoirError):
                connection.status()
        return {
            "port": self._config.port,
            "baud": self._config.baud,
            "incidents": asdict(connection.incidents),
            "board": asdict(connection.last_status),
        }

    # ---- how ------------------------------------------------------------------------------------

    @property
    def _frame_steps(self) -> int:
        most: int = self._connection.run_steps
        return most if self._config.chunk_steps is None else min(most, self._config.chunk_steps)

    def _take(self, states: bytes, out: np.ndarray) -> None:
        """Put the states (steps, nodes) of a frame into `out`."""
        encoding = self._connection.declaration.state_encoding
        encoding.decode(np.frombuffer(states, encoding.number).reshape(out.shape), out)

    def _kept(self, fault: DeviceError, out: np.ndarray) -> int:
        """Put the states that came with a fault into `out`; how many steps they are."""
        board, steps = self._connection.declaration, fault.steps_done
        if not steps:
            return 0
        if steps > len(out) or len(fault.states) != steps * board.state_bytes:
            fault.add_note(f"the states that came with it were dropped: they are not {steps} steps of this request")
            return 0
        self._take(fault.states, out[:steps])
        broken = arrays.not_finite(out[:steps], arrays.NO_NUMBER).any(axis=1)
        if broken.any():
            steps = int(broken.argmax())
            fault.add_note(f"what came with it is not finite from its step {steps} on, and was dropped")
        return steps


def _bits(encoding: Any) -> int | None:
    return None if encoding.number.kind == "f" else 8 * encoding.number.itemsize


def _range_of(board: Any) -> tuple[float, float] | None:
    """What the board declares, as far as its integers reach."""
    if board.input_encoding.number.kind == "f":
        return board.input_range
    low, high = board.input_encoding.limits
    if board.input_range is None:
        return low, high
    return max(low, board.input_range[0]), min(high, board.input_range[1])
