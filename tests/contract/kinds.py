"""Devices of every kind, each with what it must answer: the states of one run from rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from emulated_lab import emulated_lab
from served import free_address, ipc_address, served
from text_benches import GAIN, OFFSET, film, film_states
from toys import SnapshotToy, Toy

from reservoir_hw.backends.layered import LayersConfig
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import DeviceError, InputRangeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir
from reservoir_hw.core.signal import Mask
from reservoir_hw.core.spec import Continuity
from reservoir_hw.emulators.bench import BenchConfig, EventLog
from reservoir_hw.emulators.board.board import SCALE, Board, Code, DeviceProblem, VirtualNodes
from reservoir_hw.emulators.board.faults import BoardFaultPlan, Faults
from reservoir_hw.emulators.board.line import Line
from reservoir_hw.emulators.faults import FaultPlan, Struck
from reservoir_hw.emulators.physics.devices import Linear
from reservoir_hw.experiment.states.drive import Recorder

Config = dict[str, Any]
POISON = 7.0
"""An input at which devices of these tests fail."""


class Sequences(NamedTuple):
    """What was driven since a reset: inputs (batch, time, inputs) as the device got them, at a setting."""

    u: np.ndarray
    setting: float


Whole = Callable[[list[Sequences]], np.ndarray]
"""Every reset and its inputs since `open` -> states (batch, time, nodes) of the last one, as one run from rest."""


@dataclass
class Kind:
    """A device under test. All but `build` and `whole` is what it must declare, or what it can be asked for."""

    build: Callable[[str], Reservoir]
    whole: Whole
    inputs: int = 2
    continuity: Continuity = "held"
    most: int | None = None
    snapshot: bool = True
    settable: bool = False
    streams: bool = False
    late: int = 0
    memory: int = 0
    dtype: str = "float32"
    tolerance: float = 0.0
    low: float = -1.0
    high: float = 1.0
    limits: tuple[float, float] | None = None
    mask: Mask | None = None
    poison: float | None = None
    fault: type[Exception] = DeviceError
    clipped_by: int = 1
    """How many devices clip each input."""
    settings: tuple[float, ...] = (1.0,)
    change: Callable[[Reservoir, float], None] | None = None
    is_reset_by_change: bool = False
    keeps_setting: bool = False
    """Whether what was changed stays when the device is closed and opened again."""
    shared: bool = False
    """Whether `build` gives the same device again, as whoever had it left it."""
    keeps: bool = True
    """Whether a fault brings all steps before the one that failed."""
    strikes: list[bool] | None = None
    """What plants a fault in the place of an input."""
    draw: Callable[[int, int, int], np.ndarray] | None = None
    cost: int = 1
    """How many times fewer sequences of calls are tried."""
    kept: dict[bytes, np.ndarray] = field(default_factory=dict)

    def inner(self, u: np.ndarray) -> np.ndarray:
        """What the device gets for inputs that a caller gives, before its limits."""
        u = u.astype(self.dtype)
        return u if self.mask is None else self.mask.apply(u)

    def states(self, since: list[Sequences]) -> np.ndarray:
        """`whole`, once for the same inputs where it is costly."""
        if self.cost == 1:
            return self.whole(since)
        key = repr([(part.u.shape, part.u.tobytes(), part.setting) for part in since]).encode()
        if key not in self.kept:
            self.kept[key] = self.whole(since)
        return self.kept[key]


def built(config: Config, out_of_range: str = "error", inputs: int | None = None) -> Reservoir:
    parsed = parse_reservoir(Document.from_mapping({**config, "out_of_range": out_of_range}, "a test"))
    return build_reservoir(parsed if inputs is None else parsed.for_inputs(inputs))


# ---- what the states must be -----------------------------------------------------------------------


def by_another(config: Config) -> Whole:
    """Another simulation, opened anew, driven with everything since `open`: also where noise depends on it."""
    other = built(config)

    def whole(since: list[Sequences]) -> np.ndarray:
        states: Any = None
        with other:
            for number, part in enumerate(since):
                if number:
                    other.reset(len(part.u))
                states = other.run(part.u)
        return states

    return whole


def each_alone(config: Config, change: Callable[[Reservoir, float], None] | None = None) -> Whole:
    """Another simulation, which gets each sequence in a run of its own."""
    other = built(config)

    def whole(since: list[Sequences]) -> np.ndarray:
        with other:
            if change is not None:
                change(other, since[-1].setting)
            rows = []
            for row in since[-1].u:
                other.reset(1)
                rows.append(np.asarray(other.run(row[None])))
        return np.concatenate(rows)

    return whole


def of_each(states: Callable[[np.ndarray], np.ndarray]) -> Whole:
    """A function of one sequence (1, time, inputs)."""
    return lambda since: np.concatenate([states(row[None]) for row in since[-1].u])


def halves(u: np.ndarray, gain: float = 1.0) -> np.ndarray:
    """x <- x/2 + gain u, and its square."""
    states, x = np.empty((*u.shape[:2], 2)), np.zeros(len(u))
    for t in range(u.shape[1]):
        x = x / 2 + gain * u[:, t, 0]
        states[:, t] = np.stack([x, x**2], axis=1)
    return states


# ---- simulations -----------------------------------------------------------------------------------

ESN: Config = {"kind": "esn", "nodes": 6, "inputs": 2, "seed": 1, "input_scaling": 0.4, "bias_scaling": 0.1}
NOISE: Config = {"loop": {"noise": 0.05}, "readout": {"noise": 0.02, "lost_samples": 0.1, "bits": 8}}
DRIFT: Config = {"loop": {"noise": 0.05, "drift": 0.1, "drift_period_steps": 20}}
LOOP: Config = {"kind": "delay_loop", "nodes": 7, "inputs": 2, "theta": 0.2, "seed": 5}


def weights_of(reservoir: Reservoir, setting: float) -> None:
    """Upload weights of a network whose inputs count more or less."""
    weights = built({**ESN, "input_scaling": 0.4 * setting}).weights  # type: ignore[attr-defined]
    reservoir.upload({"W": weights.recurrent(), "W_in": weights.W_in, "bias": weights.bias})


def simulated(config: Config, whole: Whole | None = None, **more: Any) -> Kind:
    known = {"tolerance": 1e-6, "settable": True, "inputs": config.get("inputs", 2), **more}
    return Kind(lambda rule: built(config, rule), whole or each_alone(config), **known)


def noisy(config: Config) -> Kind:
    return simulated(config, by_another(config), settable=False, tolerance=1e-6)


def masked(rule_free: Config, inputs: int) -> Kind:
    """Two channels spread over the inputs of a network with a converter, which has a range."""
    config = {**rule_free, "inputs": inputs, "input_mask": {"kind": "uniform", "seed": 3, "scaling": 0.5}}
    with built(config, inputs=2) as one:
        mask = one.input_mask
    return Kind(
        lambda rule: built(config, rule, 2), each_alone({**rule_free, "inputs": inputs}), mask=mask,
        limits=(-1.0, 1.0), settable=True, tolerance=1e-6,
    )  # fmt: skip


SIMULATED: dict[str, Callable[[], Kind]] = {
    "esn": lambda: simulated(ESN, each_alone(ESN, weights_of), settings=(1.0, 2.0, 3.0), change=weights_of,
                             is_reset_by_change=True, keeps_setting=True),
    "esn, sparse float64": lambda: simulated(
        {**ESN, "nodes": 9, "connections_per_node": 3, "leak_rate": [0.3, 0.9], "dtype": "float64"}, dtype="float64"
    ),
    "esn that diverges": lambda: simulated({**ESN, "activation": "identity", "input_scaling": 1.0}, poison=3e38),
    "esn in torch": lambda: simulated({**ESN, "gradients": True}),
    "esn with noise": lambda: noisy({**ESN, "nonidealities": NOISE}),
    "esn with converters": lambda: simulated(
        {**ESN, "nonidealities": {"drive": {"bits": 6}, "loop": {"saturation": 0.8}}}, limits=(-1.0, 1.0)
    ),
    "esn behind a mask": lambda: masked({**ESN, "nonidealities": {"drive": {"bits": 12}}}, 3),
    "gated_esn": lambda: simulated({"kind": "gated_esn", "nodes": 6, "inputs": 2, "seed": 2}),
    "delay_loop": lambda: simulated(LOOP),
    "delay_loop, longer than a round": lambda: simulated({**LOOP, "tau": 1.8}, settable=False),
    "delay_loop with noise": lambda: noisy({**LOOP, "nonidealities": DRIFT}),
    "nvar": lambda: simulated(
        {"kind": "nvar", "inputs": 2, "lags": 3, "orders": 2, "spacing": 2}, settable=False, dtype="float64"
    ),
    "encoder_only": lambda: simulated(
        {"kind": "encoder_only", "of": ESN, "inputs": 2}, settable=False, dtype="float64"
    ),
}  # fmt: skip


# ---- toys of every continuity ----------------------------------------------------------------------


def toy(factory: type[Toy], known: Config, **declared: Any) -> Kind:
    def states(u: np.ndarray) -> np.ndarray:
        answer, x = np.empty(u.shape), np.zeros(2)
        for t in range(u.shape[1]):
            x = x / 2 + u[0, t]
            answer[0, t] = x
        return answer

    declared = {"input_range": (-1.5, 1.5), **declared}
    given = {"dtype": "float64", "limits": (-1.5, 1.5), "snapshot": factory is SnapshotToy, **known}
    settable = factory is SnapshotToy
    return Kind(lambda rule: factory(out_of_range=rule, **declared), of_each(states), settable=settable, **given)


TOYS: dict[str, Callable[[], Kind]] = {
    "held": lambda: toy(SnapshotToy, {}),
    "held, two at a time": lambda: toy(SnapshotToy, {"most": 2}, max_batch=2),
    "held, one at a time, never frozen": lambda: toy(Toy, {"most": 1}, max_batch=1),
    "replayed": lambda: toy(
        SnapshotToy, {"continuity": "replayed", "most": 1, "memory": 8, "tolerance": 0.02}, max_batch=1,
        continuity="replayed", memory_steps=8,
    ),
    "free running": lambda: toy(
        Toy, {"continuity": "free_running", "most": 1}, max_batch=1, continuity="free_running"
    ),
}  # fmt: skip


# ---- a lab's function ------------------------------------------------------------------------------

_charge = np.zeros(2)
"""State and gain of the function's device."""


def to_rest() -> None:
    _charge[0] = 0.0


def turn_gain(value: float) -> None:
    _charge[1] = value


def read_gain() -> float:
    return float(_charge[1])


def measured(u: np.ndarray) -> list[float]:
    if u[0] == POISON:
        raise RuntimeError("the shutter is closed")
    _charge[0] = _charge[0] / 2 + _charge[1] * u[0]
    return [_charge[0], _charge[0] ** 2]


def burst(u: np.ndarray) -> np.ndarray:
    return np.array([measured(row) for row in u])


PYTHON: Config = {
    "kind": "python", "inputs": 1, "nodes": 2, "simulated": True, "mode": "step", "call": measured,
    "reset_call": to_rest, "continuity": "held", "input_range": [-1, 10],
    "knobs": {"gain": {"set": turn_gain, "read": read_gain, "value": 1.0, "limits": [0.5, 2.0]}},
}  # fmt: skip


def turn(reservoir: Reservoir, setting: float) -> None:
    reservoir.set(gain=setting)


def function(known: Config | None = None, **over: Any) -> Kind:
    def whole(since: list[Sequences]) -> np.ndarray:
        return of_each(lambda u: halves(u, since[-1].setting))(since)

    given = {"most": 1, "snapshot": False, **(known or {})}
    return Kind(
        lambda rule: built({**PYTHON, **over}, rule), whole, inputs=1, dtype="float64", limits=(-1.0, 10.0),
        poison=POISON, settings=(1.0, 0.5, 2.0), change=turn, tolerance=1e-12, **given,
    )  # fmt: skip


# Late by two steps: what it answers belongs to the input before the last.
_late = np.zeros((3, 2))


def late_to_rest() -> None:
    to_rest()
    _late[:] = 0.0


def late_measured(u: np.ndarray) -> list[float]:
    _late[:-1] = _late[1:]
    _late[-1] = measured(u)
    return _late[0].tolist()


FUNCTIONS: dict[str, Callable[[], Kind]] = {
    "python": function,
    "python, whole runs, replayed": lambda: function(
        {"continuity": "replayed", "snapshot": True, "memory": 60, "keeps": False}, mode="run", call=burst,
        continuity="replayed", memory_steps=60,
    ),
    "python, late": lambda: function(
        {"continuity": "free_running", "streams": True, "late": 2}, call=late_measured, reset_call=late_to_rest,
        latency_steps=2,
    ),
}  # fmt: skip


# ---- served, on lines, on benches ------------------------------------------------------------------


@contextlib.contextmanager
def behind_a_socket(scheme: str, kind: Kind, **over: Any) -> Iterator[Kind]:
    with contextlib.ExitStack() as held:
        address = free_address() if scheme == "tcp" else held.enter_context(ipc_address(scheme))
        held.enter_context(served(kind.build("error"), address))
        config = {"kind": "zmq", "address": address, "timeout_s": 10.0, "chunk_steps": 3, **over}
        kind.build = lambda rule: built(config, rule)
        kind.streams = kind.continuity != "free_running" or kind.streams
        kind.shared = True
        yield kind


class Poisoned(VirtualNodes):
    """The device of a board; it fails at an input that is no other's."""

    def step(self, counts: np.ndarray) -> np.ndarray:
        if counts[0] == round(1.5 / SCALE):
            raise DeviceProblem(Code.DEVICE_FAULT, "no light")
        return super().step(counts)


@contextlib.contextmanager
def on_a_serial_line() -> Iterator[Kind]:
    def states(u: np.ndarray) -> np.ndarray:
        counts = np.rint(u[0].astype(np.float64) / SCALE).astype(np.int64)
        return (VirtualNodes(3, 2).run(counts) * SCALE).astype(np.float32)[None]

    device, events = Poisoned(3, 2), EventLog(None)
    limits = (-16384, round(1.75 / SCALE))
    board = Board(device, content=device.content, frame_bytes=256, lease_ms=30000, input_range=limits, log=events)
    with contextlib.closing(events), Line(board, Faults(BoardFaultPlan())) as line:
        config = {"kind": "serial", "port": line.port, "timeout_s": 10.0, "chunk_steps": 4}
        yield Kind(
            lambda rule: built(config, rule), of_each(states), most=1, snapshot=False, limits=(-1.0, 1.75),
            poison=1.5,
        )  # fmt: skip


@contextlib.contextmanager
def told_lines_of_text() -> Iterator[Kind]:
    """A source, a switch and a film; the source hangs up at one voltage."""
    poison = (0.7777 - OFFSET) / GAIN
    hangs_up = {"kind": "disconnect", "instrument": "source", "at": "SOUR:VOLT 0.7777", "times": None}
    with film(faults=FaultPlan.model_validate({"faults": [hangs_up]})) as (_, config):
        yield Kind(
            lambda rule: built({**config, "inputs": 1}, rule), of_each(lambda u: film_states(u).reshape(1, -1, 3)),
            inputs=1, most=1, snapshot=False,
            dtype="float64", low=0.0, high=0.4, limits=(0.0, 0.5), poison=poison, tolerance=1e-12, cost=6,
        )  # fmt: skip


_strikes = [False]


class Planted(Struck):
    """Strikes as long as it is told to."""

    def is_due(self, count: int) -> bool:
        return _strikes[0]


@contextlib.contextmanager
def on_a_bench() -> Iterator[Kind]:
    """A generator, a low-pass and an oscilloscope. Another bench of the same kind plays the whole from rest."""
    still = BenchConfig(trigger_jitter=0.0, digitizer_ppm=0.0).with_device(Linear(noise_v=0.0))
    size = {"nodes": 4, "memory_steps": 12, "samples_per_node": 20.0}
    hangs_up = Planted(kind="disconnect", instrument="generator", at="*TRG")
    faults = FaultPlan.model_construct(faults=[hangs_up])
    with (
        emulated_lab(still, dialect="tektronix", faults=faults, **size) as lab,
        emulated_lab(still, dialect="tektronix", **size) as other,
    ):
        for one in (lab, other):
            one.config["digitizer"]["inputs"] = {"1": {"range_v": [-1, 1]}, "2": {"range_v": [-1.1, 1.1]}}
            one.config["input_range"] = [-1, 1]
        yield Kind(
            lambda rule: built(lab.config, rule), each_alone(other.config), inputs=1, continuity="replayed", most=1,
            memory=12, dtype="float64", tolerance=2e-4, limits=(-1.0, 1.0), keeps=False, strikes=_strikes,
            cost=6,
        )  # fmt: skip


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[Kind]:
    """What a network answered to three sequences."""
    u = np.random.default_rng(3).uniform(-1, 1, (3, 480, 2)).astype(np.float32)
    with built(ESN) as device:
        device.reset(3)
        with Recorder(device, folder / "trace", chunk_steps=64):
            states = np.asarray(device.run(u))

    def whole(since: list[Sequences]) -> np.ndarray:
        given = since[-1].u
        of = [next(n for n in range(3) if np.array_equal(u[n, : len(row)], row)) for row in given]
        return states[of, : given.shape[1]]

    yield Kind(
        lambda rule: built({"kind": "replay", "trace": str(folder / "trace")}, rule), whole,
        draw=lambda batch, first, steps: u[:batch, first : first + steps], poison=0.5, fault=InputRangeError,
    )  # fmt: skip


# ---- several as one --------------------------------------------------------------------------------


def side_by_side(*members: tuple[Config, Whole, list[int]], **known: Any) -> Kind:
    devices = [{"reservoir": one, "channels": channels} for one, _, channels in members]
    config = {"kind": "parallel", "inputs": 2, "devices": devices}
    parts = [(states, channels) for _, states, channels in members]

    def whole(since: list[Sequences]) -> np.ndarray:
        u, setting = since[-1]
        return np.concatenate([states([Sequences(u[..., of], setting)]) for states, of in parts], axis=2)

    return Kind(lambda rule: built(config, rule), whole, tolerance=1e-6, **known)


def layered() -> Kind:
    """The second of the reservoirs of a layered model."""
    layers = [{**ESN, "seed": 8}, {**ESN, "seed": 9}]
    whole = parse_reservoir(Document.from_mapping({"kind": "layers", "reservoirs": layers}, "a test"))
    assert isinstance(whole, LayersConfig)

    def build(rule: str) -> Reservoir:
        return build_reservoir(whole.for_layers(None, 2)[1].model_copy(update={"out_of_range": rule}))

    return Kind(build, each_alone(layers[1]), settable=True, tolerance=1e-6)


OTHER: Config = {**ESN, "nodes": 4, "inputs": 1, "seed": 7}
SEVERAL: dict[str, Callable[[], Kind]] = {
    "parallel": lambda: side_by_side(
        (ESN, each_alone(ESN), [1, 0]), (OTHER, each_alone(OTHER), [1]), settable=True
    ),
    "parallel, of unequal ones": lambda: side_by_side(
        ({**PYTHON, "simulated": False}, of_each(halves), [0]), (ESN, each_alone(ESN), [0, 1]), most=1, snapshot=False,
        poison=POISON, dtype="float64",
    ),
    "layers": layered,
}  # fmt: skip

HERE: Mapping[str, Callable[[], Kind]] = {**SIMULATED, **TOYS, **FUNCTIONS, **SEVERAL}
SERVED = {"esn": "esn", "noise": "esn with noise", "python": "python", "late": "python, late"}
KINDS: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[Kind]]] = {
    **{name: lambda _, kind=kind: contextlib.nullcontext(kind()) for name, kind in HERE.items()},
    **{
        f"{name} at {scheme}": lambda _, scheme=scheme, kind=kind: behind_a_socket(scheme, HERE[kind]())
        for scheme in ("tcp", "ipc", "unix")
        for name, kind in SERVED.items()
    },
    "serial": lambda _: on_a_serial_line(),
    "commands": lambda _: told_lines_of_text(),
    "visa": lambda _: on_a_bench(),
    "replay": recorded,
}
