"""Several reservoirs seen as one: driven at the same time, their states side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NoReturn, Self, TypeVar, cast

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.core import arrays, errors
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError, DeviceError, DeviceFault, ReservoirError, ShapeError, StateLost
from reservoir_hw.core.locks import end_waits
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import AnyReservoirConfig, ReservoirConfig, build_reservoir
from reservoir_hw.core.spec import Identity, ReservoirSpec

T = TypeVar("T")

_CAPABILITIES = ("snapshot", "settable", "programmable", "differentiable")


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Say where in the configuration it is wrong."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}{error}") from None


class DeviceConfig(Config):
    """One of the reservoirs, and what it is driven with."""

    reservoir: AnyReservoirConfig = Field(description="a reservoir of any kind, with its own `kind:`")
    channels: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = Field(
        default=None, description="which of the task's input channels it is driven with, 0 the first; by default all"
    )

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This device for a task with these channels, or those of them that it is driven with."""
        channels = Channels.of(inputs)
        if self.channels is not None:
            if max(self.channels) >= channels.count:
                raise ConfigurationError(
                    f"channels: {self.channels}, but there are {channels.count} input channels, 0 to "
                    f"{channels.count - 1}"
                )
            # Of one-hot channels, some alone may all be at their lower end.
            channels = replace(channels, count=len(self.channels), one_hot=False)
        with _placed(f"reservoir ({self.reservoir.name}): "):
            return self.model_copy(update={"reservoir": self.reservoir.for_inputs(channels)})


class ParallelConfig(ReservoirConfig):
    """Several reservoirs, simulated or real, driven at the same time; their states stand side by side.

    `out_of_range: clip` clips for each device to its own range.
    """

    kind: Literal["parallel"]
    devices: Annotated[list[DeviceConfig], Field(min_length=1)] = Field(
        description="each with `reservoir:`, and with `channels:` if it takes only some of the inputs"
    )

    @property
    def kind_name(self) -> str:
        """The names of the devices."""
        return " + ".join(device.reservoir.name for device in self.devices)

    @property
    def nodes(self) -> int | None:
        """Of all devices together; None where a configuration leaves it open."""
        nodes = [getattr(device.reservoir, "nodes", None) for device in self.devices]
        return None if None in nodes else sum(n for n in nodes if n is not None)

    @property
    def step_period_s(self) -> float | None:
        """The value of the slowest device; None if no device declares one."""
        return _greatest(getattr(device.reservoir, "step_period_s", None) for device in self.devices)

    def played_steps(self, steps: int) -> int:
        """Of the device that is driven for most."""
        return max(device.reservoir.played_steps(steps) for device in self.devices)

    def check_machine(self) -> None:
        """That of every device."""
        for device in self.devices:
            device.reservoir.check_machine()

    def encoder(self) -> NoReturn:
        """Raises `ConfigurationError`: each device has its own."""
        raise ConfigurationError("kind parallel has an input chain for each device: name one of them in `of:`")

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration, and that of every device, for a task with these channels."""
        config = super().for_inputs(inputs)
        return config.model_copy(update={"devices": config._devices()})

    def _devices(self) -> list[DeviceConfig]:
        """The devices, told what they are driven with (behind the mask, where there is one)."""
        inputs: int | Channels = self.required_inputs()
        if self._channels is not None and self._channels.count == inputs and self.planned_mask() is None:
            inputs = self._channels
        devices = []
        for index, device in enumerate(self.devices):
            with _placed(f"devices.{index}."):
                devices.append(device.for_inputs(inputs))
        return devices

    def build(self) -> Parallel:
        """Build every device; none is opened."""
        parts = []
        for index, device in enumerate(self._devices()):
            config = device.reservoir
            if self.out_of_range == "clip":
                config = config.model_copy(update={"out_of_range": "clip"})
            with _placed(f"devices.{index}.reservoir ({config.name}): "):
                parts.append(Part(build_reservoir(config), device.channels, config.name))
        return Parallel(parts, self.required_inputs())


@dataclass(frozen=True, eq=False)
class Part:
    """One device of a `Parallel`. `channels` are the inputs that it is driven with, None: all of them."""

    reservoir: Reservoir
    channels: Sequence[int] | None = None
    label: str = ""

    def inputs(self, u: Any) -> Any:
        """Its share of inputs whose last axis is the channel."""
        return u if self.channels is None else u[..., list(self.channels)]


class Parallel(Reservoir):
    """Several reservoirs as one.

    Each is driven by its public methods, so each replays, counts and checks as it does alone. Each has a thread
    in which all of its calls are made, and a call returns when all have: a device that fails leaves no other
    running unread. Where all are simulated in this process they are called in turn: a simulation uses all cores
    by itself, and torch's gradient mode and streams belong to the caller's thread.

    Among the devices a free-running one makes the whole free running, and the whole is fed with one `run`; else it
    is held: devices that replay do so on their own. A capability is declared where all devices have it. The names
    of a snapshot's and an upload's arrays begin with the number of the device and a dot.

    Parameters
    ----------
    parts
        The devices, not yet open: `open` and `close` are for all of them.
    inputs
        Number of input channels of the whole.

    Raises `ConfigurationError` for channels that do not exist, for devices that are open already or named twice.
    """

    def __init__(self, parts: Sequence[Part], inputs: int) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self._inputs = inputs
        if not self.parts or len({id(part.reservoir) for part in self.parts}) < len(self.parts):
            raise ConfigurationError("a parallel reservoir needs at least one device, and each only once")
        for index, part in enumerate(self.parts):
            if part.reservoir.is_open:
                raise ConfigurationError(
                    f"{self._called(index)} is open already: parallel opens and closes its devices"
                )
            if part.channels is not None and not ({*part.channels} and {*part.channels} <= {*range(inputs)}):
                raise ConfigurationError(
                    f"{self._called(index)}: channels {list(part.channels)}: there are {inputs} input channels, "
                    f"0 to {inputs - 1}"
                )
        self._in_turn = all(part.reservoir.in_process for part in self.parts)
        computes = {(part.reservoir.native, part.reservoir.device) for part in self.parts}
        if self._in_turn and len(computes) == 1 and self.parts[0].reservoir.native == "torch":
            self.native, self.device = "torch", self.parts[0].reservoir.device
        self._workers: list[ThreadPoolExecutor] = []
        self._at_rest = False

    @property
    def in_process(self) -> bool:
        """Whether all devices are."""
        return self._in_turn

    @property
    def resources(self) -> tuple[str, ...]:
        """Those of all devices."""
        return tuple(sorted({resource for part in self.parts for resource in part.reservoir.resources}))

    # ---- hooks ----------------------------------------------------------------------------------

    def _open(self) -> ReservoirSpec:
        for part in self.parts:
            part.reservoir.honours_reservations = self.honours_reservations
        if not self._in_turn:
            self._workers = [
                ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"parallel-{index}")
                for index in range(len(self.parts))
            ]
        try:
            self._all("to open", lambda _, part: part.reservoir.open())
        except KeyboardInterrupt:
            # Else a thread that waits for its device could not close it.
            end_waits()
            raise
        # As open() has left them: a second reset may take a bench minutes.
        self._at_rest = True
        return self._compose()

    def _close(self) -> None:
        try:
            self._all("to close", lambda _, part: part.reservoir.close())
        finally:
            for worker in self._workers:
                worker.shutdown()
            self._workers = []

    def _reset(self, batch: int) -> None:
        if not (self._at_rest and batch == 1):
            self._all("to reset", lambda _, part: part.reservoir.reset(batch))
        self._at_rest = False

    def _run(self, u: Any, out: Any) -> Any:
        results, failed = self._outcomes(lambda _, part: part.reservoir.run(part.inputs(u)))
        if not failed:
            return arrays.concatenate(results, -1, out)
        # What all have: the others ran to the end, or to a fault of their own.
        found = [getattr(failed[index], "states", None) if index in failed else r for index, r in enumerate(results)]
        if any(states is None for states in found):
            raise self._gathered("to run", failed)
        steps = min(states.shape[1] for states in found if states is not None)
        harvested = arrays.concatenate([states[:, :steps] for states in found if states is not None], -1)
        raise self._gathered("to run", failed, steps, harvested)

    def _transition(self, u: Any, states: Any) -> Any:
        # Which of the states are whose.
        ends = np.cumsum([0, *(part.reservoir.spec.nodes for part in self.parts)]).tolist()

        def transition(index: int, part: Part) -> Any:
            return part.reservoir.transition(part.inputs(u), states[:, ends[index] : ends[index + 1]])

        return arrays.concatenate(self._all("a transition", transition), -1)

    def _snapshot(self) -> dict[str, np.ndarray]:
        return self._numbered(self._all("to snapshot", lambda _, part: part.reservoir.snapshot()))

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        given = self._by_device(state, "restore")
        if len(given) < len(self.parts):
            raise ConfigurationError(
                f"restore: the snapshot is one of {len(given)} devices, this reservoir has {len(self.parts)}"
            )
        self._all_or_none("to restore", lambda index, part: part.reservoir.restore(given[index]), given, StateLost)

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        given = self._by_device(weights, "upload")

        def upload(index: int, part: Part) -> None:
            if index in given:
                part.reservoir.upload(given[index])

        self._all_or_none("to upload", upload, given, DeviceFault)
        return self._compose()

    def played_steps(self, steps: int) -> int:
        """Of the device that is driven for most."""
        return max(part.reservoir.played_steps(steps) for part in self.parts)

    @property
    def about_mask(self) -> str | None:
        """A sentence for each mask that nobody asked for, of the whole and of its devices."""
        found = [super().about_mask, *(part.reservoir.about_mask for part in self.parts)]
        return "; ".join(sentence for sentence in found if sentence) or None

    def seconds_for(self, steps: int, period_s: float) -> float:
        """Of the slowest device."""
        return max(part.reservoir.seconds_for(steps, period_s) for part in self.parts)

    def _emergency_stop(self) -> None:
        """Of every device that has one; raises what the first said that failed."""
        failed: list[Exception] = []
        for part in self.parts:
            try:
                part.reservoir.emergency_stop()
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def read_back(self) -> dict[str, Any]:
        """Of all devices; each name begins with the number of the device."""
        return self._numbered(part.reservoir.read_back() for part in self.parts)

    @property
    def tolerances(self) -> Mapping[str, float]:
        """Of all devices."""
        return self._numbered(part.reservoir.tolerances for part in self.parts)

    def _settings(self) -> dict[str, Any]:
        return {
            "devices": [
                {"label": part.label, "channels": part.channels and list(part.channels), **part.reservoir.provenance()}
                for part in self.parts
            ]
        }

    def _check_inputs(self, u: Any) -> None:
        """Refuse for every device before one is driven; those that clip do so themselves, and count."""
        for index, part in enumerate(self.parts):
            if part.reservoir.out_of_range == "error":
                try:
                    part.reservoir.inputs_for_device(part.inputs(u))
                except errors.InputRangeError as error:
                    where = "" if part.channels is None else f", whose channels are {list(part.channels)} of the inputs"
                    raise errors.InputRangeError(f"{self._called(index)}{where}: {error}") from None

    # ---- all devices at once --------------------------------------------------------------------

    def _outcomes(self, call: Callable[[int, Part], T]) -> tuple[list[T | None], dict[int, BaseException]]:
        """What `call` returned for each device, and what it raised; it was made for all of them."""
        results: list[T | None] = [None] * len(self.parts)
        failed: dict[int, BaseException] = {}
        futures = [worker.submit(call, index, self.parts[index]) for index, worker in enumerate(self._workers)]
        wait(futures)
        for index, part in enumerate(self.parts):
            try:
                results[index] = futures[index].result() if futures else call(index, part)
            except Exception as error:
                failed[index] = error
        for counter in dataclasses.fields(self.counters):
            # Its own steps and faults are those of the whole.
            if counter.name not in {"steps", "faults"}:
                total = sum(getattr(part.reservoir.counters, counter.name) for part in self.parts)
                setattr(self.counters, counter.name, total)
        return results, failed

    def _all(self, doing: str, call: Callable[[int, Part], T]) -> list[T]:
        """What `call` returned for each device; if one fails, all errors as one, after all have returned."""
        results, failed = self._outcomes(call)
        if failed:
            raise self._gathered(doing, failed)
        return cast("list[T]", results)

    def _all_or_none(
        self, doing: str, call: Callable[[int, Part], None], asked: Sized, otherwise: type[ReservoirError]
    ) -> None:
        """As `_all`; raises `otherwise` unless all that were asked have refused, so that they are unchanged."""
        _, failed = self._outcomes(call)
        if failed:
            error = self._gathered(doing, failed)
            refused = all(isinstance(one, ConfigurationError | ShapeError) for one in failed.values())
            raise error if refused and len(failed) == len(asked) else otherwise(str(error)) from error

    def _gathered(
        self, doing: str, failed: Mapping[int, BaseException], steps_done: int = 0, states: Any = None
    ) -> BaseException:
        """One error that names every device that failed, of the kind that the first fault of a device has."""
        ordered = sorted(failed.values(), key=lambda error: not isinstance(error, DeviceError))
        lines = [f"{self._called(index)}: {error}" for index, error in failed.items()]
        text = lines[0]
        if len(lines) > 1:
            listed = "".join("\n  " + line.replace("\n", "\n  ") for line in lines)
            text = f"{len(lines)} of {len(self.parts)} devices failed {doing}:{listed}"
        unforeseen = next((error for error in ordered if not isinstance(error, ReservoirError)), None)
        if unforeseen is not None:
            unforeseen.add_note(text)
            return unforeseen
        # A class of the tree itself: those that others derive may be made in another way.
        kind: Any = next(base for base in type(ordered[0]).__mro__ if base.__module__ == errors.__name__)
        error: ReservoirError = (
            kind(text, steps_done=steps_done, states=states) if issubclass(kind, DeviceError) else kind(text)
        )
        error.__cause__ = ordered[0]
        for index, one in failed.items():
            for note in getattr(one, "__notes__", ()):
                error.add_note(f"{self._called(index)}: {note}")
        return error

    def _called(self, index: int) -> str:
        part = self.parts[index]
        return f"device {index} ({part.label or type(part.reservoir).__name__})"

    def _numbered(self, told: Iterable[Mapping[str, T]]) -> dict[str, T]:
        """What each device told, with its number and a dot before the names."""
        return {f"{index}.{name}": one for index, of_one in enumerate(told) for name, one in of_one.items()}

    def _by_device(self, named: Mapping[str, np.ndarray], doing: str) -> dict[int, dict[str, np.ndarray]]:
        """The arrays of each device, without its number before their names."""
        given: dict[int, dict[str, np.ndarray]] = {}
        for name, array in named.items():
            number, dot, rest = name.partition(".")
            if not (dot and number.isdecimal() and int(number) < len(self.parts)):
                raise ConfigurationError(
                    f"{doing}: {name!r} belongs to no device; names begin with its number, 0 to "
                    f"{len(self.parts) - 1}, and a dot"
                )
            given.setdefault(int(number), {})[rest] = array
        return given

    def _compose(self) -> ReservoirSpec:
        """What the whole can do, from what the devices declare."""
        specs = [part.reservoir.spec for part in self.parts]
        runs_freely = any(spec.continuity == "free_running" for spec in specs)
        for index, (part, spec) in enumerate(zip(self.parts, specs, strict=True)):
            width = self._inputs if part.channels is None else len(part.channels)
            if spec.inputs != width:
                raise ConfigurationError(f"{self._called(index)} takes {spec.inputs} inputs, but gets {width} channels")
        refused: dict[str, str] = {}
        for capability in _CAPABILITIES:
            lacking = next((index for index, spec in enumerate(specs) if not getattr(spec, capability)), None)
            if lacking is not None:
                reason = specs[lacking].not_supported.get(capability, "it does not declare it")
                refused[capability] = f"{self._called(lacking)} has none: {reason}"
        if self.native != "torch":
            refused.setdefault("differentiable", "the devices compute in different places")
        memory = [spec.memory_steps for spec in specs]
        capabilities: dict[str, Any] = {capability: capability not in refused for capability in _CAPABILITIES}
        return ReservoirSpec(
            inputs=self._inputs,
            nodes=sum(spec.nodes for spec in specs),
            identity=self._identity(specs),
            dtype="float64" if any(spec.dtype == "float64" for spec in specs) else "float32",
            input_range=self._input_range(specs),
            state_range=_hull([spec.state_range for spec in specs]),
            max_batch=min((spec.max_batch for spec in specs if spec.max_batch is not None), default=None),
            # None holds its states between two drives if one runs freely.
            held_for_s=None if runs_freely else self._held_for(specs),
            continuity="free_running" if runs_freely else "held",
            memory_steps=max(memory) if all(memory) else 0,
            latency_steps=max(spec.latency_steps for spec in specs),
            step_period_s=_greatest(spec.step_period_s for spec in specs),
            clock=_common((spec.clock for spec in specs), "host"),
            reset_time_s=max(spec.reset_time_s for spec in specs),
            deterministic=all(spec.deterministic for spec in specs),
            input_bits=_common((spec.input_bits for spec in specs), None),
            output_bits=_common((spec.output_bits for spec in specs), None),
            input_unit=_common((spec.input_unit for spec in specs), "mixed"),
            state_unit=_common((spec.state_unit for spec in specs), "mixed"),
            node_names=_node_names(specs),
            not_supported=refused,
            **capabilities,
        )

    def _identity(self, specs: Sequence[ReservoirSpec]) -> Identity:
        parts = [
            {"fingerprint": spec.identity.fingerprint, "channels": part.channels and list(part.channels)}
            for part, spec in zip(self.parts, specs, strict=True)
        ]
        simulated = all(spec.identity.simulated for spec in specs)
        return Identity(vendor="reservoir_hw", model="parallel", simulated=simulated, content=json.dumps(parts))

    def _held_for(self, specs: Sequence[ReservoirSpec]) -> float | None:
        """How long all of them hold their states."""
        known = [(spec.held_for_s, index) for index, spec in enumerate(specs) if spec.held_for_s is not None]
        if not known:
            return None
        held_for_s, index = min(known)
        period_s = _greatest(spec.step_period_s for spec in specs)
        if period_s is not None and held_for_s < period_s:
            raise ConfigurationError(
                f"{self._called(index)} holds its state for {held_for_s:g} s, and a step of all devices takes "
                f"{period_s:g} s: take devices of one pace"
            )
        return held_for_s

    def _input_range(self, specs: Sequence[ReservoirSpec]) -> tuple[float, float] | None:
        """The range of every channel, if they have the same; else each device refuses what is outside its own."""
        low, high = np.full(self._inputs, -np.inf), np.full(self._inputs, np.inf)
        for part, spec in zip(self.parts, specs, strict=True):
            if spec.input_range is not None and part.reservoir.out_of_range == "error":
                seen = slice(None) if part.channels is None else list(part.channels)
                low[seen] = np.maximum(low[seen], spec.input_range[0])
                high[seen] = np.minimum(high[seen], spec.input_range[1])
        if (low >= high).any():
            channel = int((low >= high).argmax())
            raise ConfigurationError(
                f"no input on channel {channel} would suit all devices: one refuses what is below "
                f"{low[channel]:g}, one what is above {high[channel]:g}; give the channels to different devices, "
                "or set out_of_range: clip"
            )
        same = (low == low[0]).all() and (high == high[0]).all() and np.isfinite([low[0], high[0]]).all()
        return (float(low[0]), float(high[0])) if same else None


def _hull(ranges: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [limits for limits in ranges if limits is not None]
    if len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _common(values: Iterable[T], otherwise: T) -> T:
    """The value that all have, or `otherwise`."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else otherwise


def _node_names(specs: Sequence[ReservoirSpec]) -> tuple[str, ...]:
    """Device and name (or number) of each node; empty if no device names its nodes."""
    if not any(spec.node_names for spec in specs):
        return ()
    return tuple(
        f"{index}.{name}" for index, spec in enumerate(specs) for name in spec.node_names or map(str, range(spec.nodes))
    )
