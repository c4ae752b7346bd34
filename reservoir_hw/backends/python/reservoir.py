"""A lab's own Python function as a reservoir, from the configuration alone."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.backends.python.lab_functions import ARGUMENTS, LabFunctions
from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES
from reservoir_hw.core.errors import ConfigurationError, DeviceError, DeviceFault, NotSupported
from reservoir_hw.core.functions import FunctionName, without_digest
from reservoir_hw.core.knobs import Knob, KnobConfig, Monitor, MonitorConfig
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import (
    Continuity,
    DType,
    Identity,
    ReservoirSpec,
    ResetByCommand,
    ResetPolicy,
    check_held_for,
)

Parameter = bool | int | float | str | list[bool | int | float | str]


class PythonKnob(KnobConfig):
    """A setting that functions of yours turn and read."""

    set: FunctionName = Field(description="called with the value")
    read: FunctionName | None = Field(default=None, description="returns the value that is there")


class PythonMonitor(MonitorConfig):
    """What a function of yours reads while the device is driven."""

    read: FunctionName = Field(description="returns the number")


class PythonConfig(ReservoirConfig):
    """A function of your own as a reservoir.

    Functions are named "package.module:function"; modules are looked for in the current folder first. A Python program
    can give the function itself.
    """

    never = frozenset({"settable", "differentiable"})
    most_at_once = 1

    kind: Literal["python"]
    mode: Literal["run", "step", "procedure"] = Field(
        default="run",
        description="run: call(u) takes (time, inputs) and returns (time, nodes); "
        "step: call(u) takes (inputs,) and returns (nodes,); "
        "procedure: once per step set_call(u), wait, sweep_call(), read_call() -> (nodes,)",
    )
    call: FunctionName | None = Field(default=None, description="the function of the modes run and step")
    set_call: FunctionName | None = Field(default=None, description="procedure: apply the inputs of one step")
    wait_s: NonNegativeFloat = Field(default=0.0, description="procedure: time between setting and sweeping")
    sweep_call: FunctionName | None = Field(default=None, description="procedure: start the measurement")
    read_call: FunctionName | None = Field(default=None, description="procedure: return the states")
    setup_call: FunctionName | None = Field(
        default=None,
        description="called by open(); a mapping it returns is kept in the provenance",
    )
    volatile: Annotated[list[str], NO_INFLUENCE_ON_STATES] = Field(
        default=[], description="what of setup_call's mapping changes by nature: a temperature, the time"
    )
    tolerance: Annotated[dict[str, NonNegativeFloat], NO_INFLUENCE_ON_STATES] = Field(
        default={}, description="how far a value of setup_call's mapping may differ when a harvest goes on"
    )
    reset_call: FunctionName | None = Field(default=None, description="called by every reset")
    close_call: FunctionName | None = Field(default=None, description="called by close(): the safe state")
    stop_call: FunctionName | None = Field(
        default=None, description="emergency stop, called from another thread while a function hangs"
    )
    params: dict[str, Parameter] = Field(
        default={}, description="settings of the device; each function gets those that it has as an argument"
    )
    knobs: dict[str, PythonKnob] = Field(
        default={}, description="settings that are turned while the device is open, by name"
    )
    monitors: Annotated[dict[str, PythonMonitor], NO_INFLUENCE_ON_STATES] = Field(
        default={}, description="what is read every few seconds while the device is driven, by name"
    )
    timeout_s: Annotated[PositiveFloat | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None,
        description="the longest wait for a function, which then runs in a thread; a declared step_period_s is added "
        "for each step",
    )
    nodes: PositiveInt
    dtype: DType = Field(default="float64", description="of inputs and states")
    simulated: bool = Field(description="false for a real device: every result says which it was")
    continuity: Continuity = Field(
        description="held: frozen between calls; replayed: driven in bursts from rest; free_running: never stops"
    )
    memory_steps: NonNegativeInt = Field(
        default=0,
        description="after so many steps an input no longer matters; replayed: each call begins with so many earlier "
        "ones; else a harvest that was interrupted does",
    )
    held_for_s: PositiveFloat | None = Field(
        default=None,
        description="held: how long the device keeps its state between two calls; after a longer pause StateLost is "
        "raised before anything is called; by default for ever",
    )
    latency_steps: NonNegativeInt = Field(
        default=0,
        description="how many steps its answers are late: it is driven so much longer, with the last input, and the "
        "first rows are dropped",
    )
    reset: ResetPolicy | None = Field(default=None, description="how the device is brought to rest without reset_call")
    input_range: tuple[float, float] | None = None
    deterministic: bool = False
    step_period_s: NonNegativeFloat | None = None
    vendor: str = "user"
    model: str = "python"
    serial: str = ""
    firmware: str = ""
    calibration_id: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(
        default="", description="kept in the provenance; the fingerprint does not cover it"
    )
    resource: Annotated[str | list[str] | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="what one process uses at a time, or a list of them; by default the function"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [*self.params, *self.knobs, *self.monitors]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} is in two of params, knobs and monitors: params stay, knobs are turned")
        needed = {"procedure": ["set_call", "read_call"]}.get(self.mode, ["call"])
        if missing := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"mode {self.mode} needs {' and '.join(missing)}")
        if self.continuity == "replayed" and self.memory_steps == 0:
            raise ValueError("continuity replayed needs memory_steps: how many earlier inputs each call replays")
        check_held_for(self.held_for_s, self.continuity, self.step_period_s)
        if self.input_range is not None and not self.input_range[0] < self.input_range[1]:
            raise ValueError(f"input_range {list(self.input_range)} must be [lowest, highest]")
        if self.reset_call is None and (self.reset is None or isinstance(self.reset, ResetByCommand)):
            raise ValueError(
                "say how the device is brought to rest: reset_call, or reset: {kind: idle | washout | waveform | none}"
            )
        if self.reset_call is not None and self.reset is not None and not isinstance(self.reset, ResetByCommand):
            raise ValueError("give either reset_call or reset, not both")
        return self

    @property
    def kind_name(self) -> str:
        """Maker and model of the device where they are given, or else the kind and size."""
        return f"{self.vendor} {self.model}" if {"vendor", "model"} <= self.model_fields_set else super().kind_name

    @property
    def main_function(self) -> str:
        """The function that stands for the device: what drives it."""
        return self.call or self.set_call or ""

    @property
    def declared_continuity(self) -> Continuity:
        """A device that is held, and late, moves on while its late answers are fetched."""
        return "free_running" if self.continuity == "held" and self.latency_steps else self.continuity

    def played_steps(self, steps: int) -> int:
        """Those of a run, and as many more as the answers are late."""
        return steps + self.latency_steps if steps else 0

    def functions(self) -> LabFunctions:
        """The functions, imported. Raises `ConfigurationError`."""
        targets = {key: target for key in ARGUMENTS if (target := getattr(self, key)) is not None}
        for section, named in (("knobs", self.knobs), ("monitors", self.monitors)):
            for name, one in named.items():
                for action in ("set", "read"):
                    if (target := getattr(one, action, None)) is not None:
                        targets[f"{section}.{name}.{action}"] = target
        return LabFunctions(targets, self.params, self.timeout_s)

    def check_machine(self) -> None:
        """Import the functions, and see that each gets its arguments. Calls none."""
        self.functions()

    def build(self) -> PythonReservoir:
        """Make the reservoir; the functions are imported by `open()`."""
        return PythonReservoir(self)


class PythonReservoir(Reservoir):
    """Drives a user's function, one sequence at a time."""

    def __init__(self, config: PythonConfig) -> None:
        spec = ReservoirSpec(
            inputs=config.required_inputs(),
            nodes=config.nodes,
            dtype=config.dtype,
            input_range=config.input_range,
            max_batch=1,
            continuity=config.declared_continuity,
            memory_steps=config.memory_steps,
            # A late device takes one run after a reset, so that it holds nothing between two.
            held_for_s=None if config.latency_steps else config.held_for_s,
            latency_steps=config.latency_steps,
            snapshot=config.continuity == "replayed",
            deterministic=config.deterministic,
            step_period_s=config.step_period_s,
            identity=_identity(config),
        )
        resource = config.resource or (None if config.simulated else f"python:{without_digest(config.main_function)}")
        super().__init__(
            spec,
            reset=config.reset,
            out_of_range=config.out_of_range,
            resource=resource,
            knobs=[self._knob(name, knob) for name, knob in config.knobs.items()],
            monitors=[
                Monitor(name, one, lambda key=f"monitors.{name}.read": self._lab.call(key))
                for name, one in config.monitors.items()
            ],
        )
        self._config = config
        self._functions: LabFunctions | None = None
        self._setup_result: dict[str, Any] = {}

    def _knob(self, name: str, knob: PythonKnob) -> Knob:
        key = f"knobs.{name}"
        read = None if knob.read is None else lambda: self._lab.call(f"{key}.read")
        return Knob(name, knob, lambda value: self._lab.call(f"{key}.set", value), read)

    @property
    def name(self) -> str:
        """For messages: what its configuration calls it, or else its function."""
        config = self._config
        named = config.label or {"vendor", "model"} <= config.model_fields_set
        return config.name if named else without_digest(config.main_function)

    @property
    def _lab(self) -> LabFunctions:
        assert self._functions is not None
        return self._functions

    def _open(self) -> None:
        if self._functions is not None:
            # The last close failed: nothing is called beside what may still run.
            self._close()
        self._functions = self._config.functions()
        result = self._lab.call_if_given("setup_call")
        with self._lab.faults("setup_call"):
            if not isinstance(result, Mapping | None):
                raise DeviceFault(f"returned {type(result).__name__} instead of a mapping or nothing")
        self._setup_result = {str(name): value for name, value in (result or {}).items()}
        for key, names in (("volatile", self._config.volatile), ("tolerance", self._config.tolerance)):
            if unknown := [name for name in names if name not in self._setup_result]:
                known = ", ".join(self._setup_result) or "nothing"
                raise ConfigurationError(f"reservoir.{key}: setup_call does not return {unknown[0]!r} (but {known})")

    def _close_knobs(self) -> None:
        if self._functions is not None and self._functions.is_free():
            super()._close_knobs()

    def _close(self) -> None:
        if self._functions is not None:
            self._functions.close()
            self._functions = None

    def _emergency_stop(self) -> None:
        if not self._lab.has("stop_call"):
            raise NotSupported(f"{self.name} has no stop_call")
        self._lab.stop()

    def _reset(self, batch: int) -> None:
        self._lab.call_if_given("reset_call")

    def played_steps(self, steps: int) -> int:
        """As its configuration says."""
        return self._config.played_steps(steps)

    @property
    def streams(self) -> bool:
        """Whether chunks are driven one after the other: a device that stands still waits for each, late or not."""
        return self._config.continuity == "held" and self._config.latency_steps > 0

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        late, first = self._config.latency_steps, self.steps_driven
        if self.spec.continuity == "replayed":
            # Earlier inputs come before those of this drive.
            first -= min(first, self.spec.memory_steps)
        if not late:
            return self._driven(u, first)
        self.counters.steps += late
        try:
            return self._driven(np.concatenate([u, self._beyond(u)], axis=1), first)[:, late:]
        except DeviceError as fault:
            if fault.states is not None:
                fault.states = fault.states[:, late:]
                fault.steps_done = fault.states.shape[1]
            raise

    def _stream(self, chunks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The states of each chunk, as soon as so much of the next ones was driven as they are late."""
        late, at, lengths = self._config.latency_steps, 0, deque[int]()
        rows = np.empty((1, 0, self._config.nodes), self.spec.numpy_dtype)

        def pieces() -> Iterator[np.ndarray]:
            last = None
            for u in chunks:
                lengths.append(u.shape[1])
                last = u if u.shape[1] else last
                yield u
            if last is not None:
                self.counters.steps += late
                yield self._beyond(last)

        for u in pieces():
            too_early = max(0, late - at)
            if u.shape[1]:
                try:
                    rows = np.concatenate([rows, self._driven(u, at)[:, too_early:]], axis=1)
                except DeviceError as fault:
                    more = [] if fault.states is None else [fault.states[:, too_early:]]
                    fault.states = np.concatenate([rows, *more], axis=1)[:, : lengths[0]]
                    fault.steps_done = fault.states.shape[1]
                    raise
            at += u.shape[1]
            while lengths and rows.shape[1] >= lengths[0]:
                steps = lengths.popleft()
                yield rows[:, :steps]
                rows = rows[:, steps:]

    def _beyond(self, u: np.ndarray) -> np.ndarray:
        """What it is driven with until the answers to `u` are there: its last input, which is taken for sure."""
        return np.repeat(u[:, -1:], self._config.latency_steps, axis=1)

    def _driven(self, u: np.ndarray, first: int) -> np.ndarray:
        """What the functions return, step by step. `first` is the number of the first step in its sequence."""
        config, steps = self._config, u.shape[1]
        period = config.step_period_s or 0.0
        self.look_at_monitors()
        if config.mode == "run":
            # A copy: the function may do with its argument what it likes.
            at = f" in steps {first} to {first + steps - 1}"
            answer = self._lab.call("call", u[0].copy(), at=at, allowed_s=steps * period)
            with self._lab.faults("call", at):
                return self._as_states(answer, (steps, config.nodes))[None]
        states = np.empty((1, steps, config.nodes), self.spec.numpy_dtype)
        last = "call" if config.mode == "step" else "read_call"
        for t in range(steps):
            at = f" at step {first + t}"
            where = {"at": at, "states": states[:, :t], "allowed_s": period}
            # During the last step the device may have been stopped already.
            self.refuse_stopped(states[:, : max(0, t - 1)])
            self.look_at_monitors(states[:, :t])
            if config.mode == "step":
                answer = self._lab.call("call", u[0, t].copy(), **where)
            else:
                self._lab.call("set_call", u[0, t].copy(), **where)
                time.sleep(config.wait_s)
                self._lab.call_if_given("sweep_call", **where)
                answer = self._lab.call("read_call", **where)
            with self._lab.faults(last, at, states[:, :t]):
                states[0, t] = self._as_states(answer, (config.nodes,))
        return states

    def _as_states(self, returned: Any, shape: tuple[int, ...]) -> np.ndarray:
        if returned is None:
            raise DeviceFault("returned None: does it end with `return`?")
        returned = np.asarray(arrays.as_numpy(returned))
        if returned.dtype.kind not in "fiub":
            raise DeviceFault(f"returned {returned.dtype} instead of real numbers")
        # A copy: the function may return a buffer that it fills again.
        states = np.array(returned, dtype=self.spec.numpy_dtype)
        if states.shape != shape:
            hint = ": steps come first, return its transpose (.T)" if states.shape == shape[::-1] else ""
            raise DeviceFault(f"returned an array of shape {states.shape} instead of {shape}{hint}")
        return states

    def read_back(self) -> dict[str, Any]:
        """What `setup_call` returned, without what changes by nature."""
        return {name: value for name, value in self._setup_result.items() if name not in self._config.volatile}

    @property
    def tolerances(self) -> Mapping[str, float]:
        """Those of the configuration."""
        return self._config.tolerance

    def _settings(self) -> dict[str, Any]:
        config = self._config
        return {"settings": self._setup_result, "params": config.params, "calibration_id": config.calibration_id}


def _identity(config: PythonConfig) -> Identity:
    """The device with its main function and parameters."""
    described = {name: getattr(config, name) for name in ("vendor", "model", "serial", "firmware", "simulated")}
    params = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(config.params.items()))
    content = f"{config.main_function}({params})" if params else config.main_function
    identity = Identity(**described, content=content)
    # A readout that was trained on rows of one latency cannot read those of another.
    return identity.behind(f"a latency of {config.latency_steps} steps") if config.latency_steps else identity
