"""A lab's own Python function as a reservoir, from the configuration alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES
from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceFault, DeviceTimeout, ReservoirError
from reservoir_hw.core.functions import FUNCTION, import_function
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.reset import ResetByCommand, ResetPolicy
from reservoir_hw.core.spec import Continuity, Identity, ReservoirSpec


class PythonConfig(ReservoirConfig):
    """A function of your own as a reservoir.

    Functions are named "package.module:function"; modules are looked for in the current folder first.
    """

    kind: Literal["python"]
    mode: Literal["run", "step", "procedure"] = Field(
        default="run",
        description="run: call(u) takes (time, inputs) and returns (time, nodes); "
        "step: call(u) takes (inputs,) and returns (nodes,); "
        "procedure: once per step set_call(u), wait, sweep_call(), read_call() -> (nodes,)",
    )
    call: str | None = Field(default=None, pattern=FUNCTION, description="the function of the modes run and step")
    set_call: str | None = Field(default=None, pattern=FUNCTION, description="procedure: apply the inputs of one step")
    wait_s: NonNegativeFloat = Field(default=0.0, description="procedure: time between setting and sweeping")
    sweep_call: str | None = Field(default=None, pattern=FUNCTION, description="procedure: start the measurement")
    read_call: str | None = Field(default=None, pattern=FUNCTION, description="procedure: return the states")
    setup_call: str | None = Field(
        default=None,
        pattern=FUNCTION,
        description="called by open(); a mapping it returns is kept in the provenance",
    )
    reset_call: str | None = Field(default=None, pattern=FUNCTION, description="called by every reset")
    close_call: str | None = Field(default=None, pattern=FUNCTION, description="called by close(): the safe state")
    nodes: PositiveInt
    simulated: bool = Field(description="false for a real device: every result says which it was")
    continuity: Continuity = Field(
        description="held: frozen between calls; replayed: driven in bursts from rest; free_running: never stops"
    )
    memory_steps: NonNegativeInt = Field(default=0, description="replayed: how many earlier inputs each call replays")
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
        needed = {"procedure": ["set_call", "read_call"]}.get(self.mode, ["call"])
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"mode {self.mode} needs {' and '.join(missing)}")
        if self.continuity == "replayed" and self.memory_steps == 0:
            raise ValueError("continuity replayed needs memory_steps: how many earlier inputs each call replays")
        if self.input_range is not None and not self.input_range[0] < self.input_range[1]:
            raise ValueError(f"input_range {list(self.input_range)} must be [lowest, highest]")
        if self.reset_call is None and (self.reset is None or isinstance(self.reset, ResetByCommand)):
            raise ValueError(
                "say how the device is brought to rest: reset_call, or reset: {kind: idle | washout | waveform | none}"
            )
        if self.reset_call is not None and self.reset is not None and not isinstance(self.reset, ResetByCommand):
            raise ValueError("give either reset_call or reset, not both")
        return self

    def build(self) -> PythonReservoir:
        """Make the reservoir; the functions are imported by `open()`."""
        return PythonReservoir(self)


class PythonReservoir(Reservoir):
    """Drives a user's function, one sequence at a time."""

    def __init__(self, config: PythonConfig) -> None:
        main = config.call or config.set_call or ""
        spec = ReservoirSpec(
            inputs=config.required_inputs(),
            nodes=config.nodes,
            dtype="float64",
            input_range=config.input_range,
            max_batch=1,
            continuity=config.continuity,
            memory_steps=config.memory_steps,
            snapshot=config.continuity == "replayed",
            deterministic=config.deterministic,
            step_period_s=config.step_period_s,
            identity=_identity(config, main),
        )
        resource = config.resource or (None if config.simulated else f"python:{main}")
        super().__init__(spec, reset=config.reset, out_of_range=config.out_of_range, resource=resource)
        self._config = config
        self._functions: dict[str, Callable[..., Any]] = {}
        self._setup_result: dict[str, Any] = {}

    def _open(self) -> None:
        config = self._config
        for name in ("call", "set_call", "sweep_call", "read_call", "setup_call", "reset_call", "close_call"):
            target = getattr(config, name)
            if target is not None:
                self._functions[name] = import_function(target, f"reservoir.{name}")
        result = self._call("setup_call")
        if isinstance(result, Mapping):
            self._setup_result = {str(name): value for name, value in result.items()}

    def _close(self) -> None:
        self._call("close_call")

    def _reset(self, batch: int) -> None:
        del batch
        self._call("reset_call")

    def _call(self, name: str) -> Any:
        """What this function of the user returns; None where there is none."""
        if name not in self._functions:
            return None
        with _named(getattr(self._config, name)):
            return self._functions[name]()

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        del out
        config = self._config
        if config.mode == "run":
            with _named(config.call or ""):
                # A copy: the function may do with its argument what it likes.
                return self._as_states(self._functions["call"](u[0].copy()), (u.shape[1], config.nodes))[None]
        states = np.empty((1, u.shape[1], config.nodes))
        measure = self._functions["call"] if config.mode == "step" else self._measure
        target = config.call or config.read_call or ""
        for t in range(u.shape[1]):
            with _named(target, t, states):
                states[0, t] = self._as_states(measure(u[0, t].copy()), (config.nodes,))
        return states

    def _measure(self, u: np.ndarray) -> Any:
        self._functions["set_call"](u)
        time.sleep(self._config.wait_s)
        if "sweep_call" in self._functions:
            self._functions["sweep_call"]()
        return self._functions["read_call"]()

    def _as_states(self, returned: Any, shape: tuple[int, ...]) -> np.ndarray:
        if np.asarray(returned).dtype.kind not in "fiub":
            raise DeviceFault(f"returned {np.asarray(returned).dtype} instead of real numbers")
        # A copy: the function may return a buffer that it fills again.
        states = np.array(returned, dtype=np.float64)
        if states.shape != shape:
            raise DeviceFault(f"returned an array of shape {states.shape} instead of {shape}")
        return states

    def _settings(self) -> dict[str, Any]:
        return {"settings": self._setup_result, "calibration_id": self._config.calibration_id}


def _identity(config: PythonConfig, function: str) -> Identity:
    """The device with this main function. Earlier versions counted the calibration as a part of it."""
    described = {name: getattr(config, name) for name in ("vendor", "model", "serial", "firmware", "simulated")}
    before = f"{function} {config.calibration_id}".strip()
    former = () if before == function else (Identity(**described, content=before).fingerprint,)
    return Identity(**described, content=function, former=former)


@contextmanager
def _named(target: str, step: int = 0, states: np.ndarray | None = None) -> Any:
    """Say whose code failed and at which step; keep the states so far."""
    try:
        yield
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        kinds = {TimeoutError: DeviceTimeout, ConnectionError: DeviceDisconnected}
        kind = next((fault for known, fault in kinds.items() if isinstance(error, known)), DeviceFault)
        what = str(error) if isinstance(error, ReservoirError) else f"{type(error).__name__}: {error}"
        where = f" at step {step}" if states is not None else ""
        raise kind(
            f"{target}{where}: {what}",
            steps_done=step,
            states=None if states is None else states[:, :step],
        ) from error
