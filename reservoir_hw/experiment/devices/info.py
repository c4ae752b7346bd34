"""The device of a file: what it says about itself, and how fast it answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from reservoir_hw.core.axes import refuse_vary
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError, DeviceError, ReservoirError, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import NoReset, ReservoirSpec
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import parse_experiment
from reservoir_hw.measures import Nodes, about_latency, latency_of, nodes_of

_ROUND_TRIPS = 300
# A run that took this part of the time says enough.
_ENOUGH = 1 / 6
_LARGEST_RUN_BYTES = 1 << 26
# Of each of two drives that say what its nodes do, at most, and in this part of the time.
_NODE_STEPS = 400
_NODE_TIME = 1 / 4
_SHOWN_NODES = 16

# So many random inputs, (1, steps, inputs).
_Draw: TypeAlias = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class RoundTrip:
    """One step and its answer, in seconds."""

    steps: int
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Throughput:
    """One run; the bytes are those of inputs and states."""

    steps: int
    steps_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Drive:
    """What came back from the same random inputs, twice from rest."""

    shape: tuple[int, ...]
    dtype: str
    lowest: float
    highest: float
    steps_per_s: float


@dataclass
class DeviceInfo:
    """Identity and spec, what its server says if there is one, how fast it is, and what its nodes do.

    `taken` is the range in which all inputs are taken, behind a mask too, None where no limits are declared.
    `not_driven` says why there are no figures of speed. `remarks` are sentences about what casts doubt on its states.
    """

    kind: str
    label: str
    spec: ReservoirSpec
    settings: dict[str, Any]
    reset_s: float | None
    server: dict[str, Any] | None = None
    round_trip: RoundTrip | None = None
    throughput: Throughput | None = None
    drive: Drive | None = None
    nodes: Nodes | None = None
    taken: tuple[float, float] | None = None
    behind_mask: tuple[int, tuple[float, float]] | None = None
    remarks: list[str] = field(default_factory=list)
    not_driven: str = ""
    counters: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        spec = self.spec.model_dump(mode="json", exclude={"identity"})
        about = {"kind": self.kind, "identity": self.spec.identity.model_dump(), **asdict(self), "spec": spec}
        return {**about, "nodes": None if self.nodes is None else self.nodes.as_dict()}

    def sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """For people: titles, and below each of them names and what there is to say."""
        identity = self.spec.identity
        title = self.label or f"{identity.vendor} {identity.model} {identity.serial}".strip()
        sections = [(title, [*_identity_facts(self.spec), *self._spec_facts()])]
        if self.server is not None:
            sections.append(("Its status", _server_facts(self.server)))
        sections.append(("Speed, as seen from here", self._speed_facts()))
        if self.nodes is not None:
            sections.append(("Its nodes, under random inputs", self._node_facts(self.nodes)))
        if self.remarks:
            sections.append(("Worth a look", [("", remark) for remark in self.remarks]))
        return sections

    def _node_facts(self, nodes: Nodes) -> list[tuple[str, str]]:
        rows = [
            (f"node {node}", f"{limits}, noise {noise}, {share} of the samples at a limit")
            for node, limits, noise, share in nodes.rows(_SHOWN_NODES)
        ]
        others = len(nodes.still) - len(rows)
        return [*rows, *([("others", f"{others}, which --json has")] if others else [])]

    def _spec_facts(self) -> list[tuple[str, str]]:
        facts = _spec_facts(self.spec)
        if self.behind_mask is None:
            return facts
        inputs, (low, high) = self.behind_mask
        declared = f"{self.spec.inputs}, spread over {inputs} by a mask, behind which {low:g} to {high:g} are declared"
        taken = "{:.4g} to {:.4g} are sure to be taken".format(*self.taken) if self.taken else ""
        return [("inputs", f"{declared}; {taken}" if taken else f"{declared}: it clips"), *facts[1:]]

    def _speed_facts(self) -> list[tuple[str, str]]:
        facts = [] if self.reset_s is None else [("reset", _seconds(self.reset_s))]
        if self.round_trip is not None:
            trip = self.round_trip
            facts.append(
                ("step", f"{_seconds(trip.p50_s)} (median of {trip.steps}), {_seconds(trip.p99_s)} (99th percentile)")
            )
        if self.throughput is not None:
            run = self.throughput
            facts.append(("run", f"{_rate(run.steps_per_s)}, {run.bytes_per_s / 1e6:,.3g} MB/s ({run.steps:,} steps)"))
        if self.drive is not None:
            drive = self.drive
            facts.append(("states", f"{drive.shape} of {drive.dtype}, {drive.lowest:.4g} to {drive.highest:.4g}"))
            facts.append(("run", f"{_rate(drive.steps_per_s)} ({drive.shape[1]:,} steps)"))
        if self.not_driven:
            facts.append(("not measured", self.not_driven))
        return facts


def look_at(
    reservoir: Reservoir,
    kind: str,
    *,
    label: str = "",
    drive: bool = True,
    steps: int | None = None,
    input_range: tuple[float, float] | None = None,
    seconds: float = 3.0,
) -> DeviceInfo:
    """Ask an open reservoir, and drive it with inputs drawn over its range: so many seconds at most for each figure.

    At the end it is driven twice with the same inputs, and what its nodes answered is described. With `steps` that is
    all, with so many steps. It is at rest for one sequence before and after. What it refuses to be driven with is said
    in `not_driven`; a fault goes on to the caller. `label` is what people call it. Raises `ConfigurationError` for an
    `input_range` that is not (lowest, highest).
    """
    spec = reservoir.spec
    low, high = input_range or reservoir.safe_range
    if not low < high:
        raise ConfigurationError(f"input_range {low:g} {high:g}: lowest first")
    known = reservoir.provenance()
    contract = {"identity", "spec", "reset", "input_mask", "counters", "latency"}
    settings = {name: value for name, value in known.items() if name not in contract}
    info = DeviceInfo(kind, label, spec, settings, reservoir.reset_duration_s)
    if isinstance(reservoir.reset_policy, NoReset):
        info.remarks.append(f"nothing brings it to rest: {reservoir.reset_policy.reason}")
    # What lies behind a server can say more of it.
    status = getattr(reservoir, "status", None)
    info.server = None if status is None else status()
    declared = reservoir.device_spec.input_range
    if reservoir.input_mask is not None and declared is not None:
        info.behind_mask = reservoir.device_spec.inputs, declared
    info.taken = reservoir.known_range
    if not drive:
        info.not_driven = "it was not driven (--no-drive)"
        return info
    random = generator(0, "device info")

    def draw(steps: int) -> np.ndarray:
        return random.uniform(low, high, (1, steps, spec.inputs)).astype(spec.dtype)

    try:
        reservoir.reset(1)
        info.reset_s = reservoir.reset_duration_s
        if steps is None:
            info.round_trip = _round_trip(reservoir, draw, seconds)
            info.throughput = _throughput(reservoir, draw, seconds, info.round_trip.p50_s)
            rate = min(info.throughput.steps_per_s, 1 / (spec.step_period_s or 1e-9))
            _look_at_nodes(reservoir, draw(max(2, min(_NODE_STEPS, int(seconds * _NODE_TIME / 2 * rate)))), info)
        else:
            info.drive = _look_at_nodes(reservoir, draw(steps), info)
        reservoir.reset(1)
    except (DeviceError, StateLost):
        raise
    except ReservoirError as error:
        info.not_driven = f"it could not be driven: {error}"
    info.counters = reservoir.counters.as_dict()
    return info


def _round_trip(reservoir: Reservoir, draw: _Draw, seconds: float) -> RoundTrip:
    until = time.perf_counter() + seconds
    taken: list[float] = []
    # The first call may compile a kernel or wake a device: it does not count.
    for number in range(_ROUND_TRIPS + 1):
        if reservoir.spec.continuity == "free_running":
            reservoir.reset(1)
        u = draw(1)[:, 0]
        started = time.perf_counter()
        reservoir.step(u)
        now = time.perf_counter()
        if number:
            taken.append(now - started)
            if now > until:
                break
    p50, p99 = np.percentile(taken, [50, 99])
    return RoundTrip(len(taken), float(p50), float(p99))


def _look_at_nodes(reservoir: Reservoir, u: np.ndarray, info: DeviceInfo) -> Drive:
    """Drive it twice, and put down what its nodes did, and whether they are late."""
    spec, answers, fastest = reservoir.spec, [], math.inf
    for _ in range(2):
        reservoir.reset(1)
        started = time.perf_counter()
        # A copy: the device may fill the same memory again.
        answers.append(np.array(reservoir.run(u)))
        fastest = min(fastest, max(time.perf_counter() - started, 1e-9))
    states = np.concatenate(answers)
    info.nodes = nodes_of(states, state_range=spec.state_range, simulated=spec.identity.simulated)
    info.remarks += info.nodes.sentences()
    if late := latency_of(u[0], states):
        info.remarks.append(about_latency(late))
    low, high = float(states.min()), float(states.max())
    return Drive(answers[0].shape, str(states.dtype), low, high, u.shape[1] / fastest)


def _throughput(reservoir: Reservoir, draw: _Draw, seconds: float, step_s: float) -> Throughput:
    """Of the longest run that the time allows: runs grow until one took long enough."""
    spec = reservoir.spec
    bytes_per_step = (spec.inputs + spec.nodes) * spec.numpy_dtype.itemsize
    most = max(1, _LARGEST_RUN_BYTES // bytes_per_step)
    # A step in a run takes no longer than a single step, except where the device has a clock of its own.
    slowest = max(step_s, spec.step_period_s or 0.0, 1e-9)
    enough = seconds * _ENOUGH
    steps = int(min(most, max(1, enough / slowest)))
    until = time.perf_counter() + seconds
    while True:
        # Past inputs that are replayed would count as well, and what runs freely takes one run after a reset.
        if spec.continuity != "held":
            reservoir.reset(1)
        u = draw(steps)
        started = time.perf_counter()
        reservoir.run(u)
        now = time.perf_counter()
        taken = max(now - started, 1e-9)
        longer = int(min(most, steps * 8, 1.5 * steps * enough / taken))
        if taken >= enough or longer <= steps or now + longer * taken / steps > until:
            return Throughput(steps, steps / taken, steps * bytes_per_step / taken)
        steps = longer


def _identity_facts(spec: ReservoirSpec) -> list[tuple[str, str]]:
    identity = spec.identity
    given = ((name, getattr(identity, name)) for name in ("vendor", "model", "serial", "firmware", "fingerprint"))
    return [
        ("is", "a simulation" if identity.simulated else "hardware"),
        *((name, text) for name, text in given if text),
    ]


def _spec_facts(spec: ReservoirSpec) -> list[tuple[str, str]]:
    continuity = spec.continuity.replace("_", " ")
    if spec.held_for_s is not None:
        continuity += f" for {_seconds(spec.held_for_s)}"
    if spec.memory_steps:
        continuity += f", remembers {spec.memory_steps} steps"
    if spec.latency_steps:
        continuity += f"; answers come {spec.latency_steps} steps late, and are put where their inputs are"
    can = [name for name in ("snapshot", "settable", "programmable", "deterministic") if getattr(spec, name)]
    facts = [
        ("inputs", f"{spec.inputs}, {_range(spec.input_range, spec.input_unit, spec.input_bits)}"),
        ("nodes", f"{spec.nodes}, {_range(spec.state_range, spec.state_unit, spec.output_bits)}, {spec.dtype}"),
        ("at once", "any number of sequences" if spec.max_batch is None else f"{spec.max_batch} sequences"),
        ("between calls", continuity),
        ("declares", ", ".join(can) or "none of snapshot, settable, programmable, deterministic"),
    ]
    if spec.step_period_s:
        facts.append(("period", f"{_seconds(spec.step_period_s)} a step, by the clock of the {spec.clock}"))
    for name, knob in spec.knobs.items():
        at = f"{spec.identity.knobs[name]:g}" if name in spec.identity.knobs else "?"
        facts.append((f"knob {name}", f"{at} {knob.unit}, {knob.limits[0]:g} to {knob.limits[1]:g}".replace(" ,", ",")))
    for name, monitor in spec.monitors.items():
        limits = "no limits" if monitor.limits is None else f"{monitor.limits[0]:g} to {monitor.limits[1]:g}"
        facts.append((f"monitor {name}", f"{limits} {monitor.unit}".rstrip()))
    facts += [(f"not {name}", reason) for name, reason in spec.not_supported.items()]
    return facts


def _server_facts(status: dict[str, Any]) -> list[tuple[str, str]]:
    """The status as the server reports it. A foreign server may report other things."""
    facts = []
    for name, value in status.items():
        if name in {"device", "fingerprint"}:
            continue
        if isinstance(value, dict):
            seen = ", ".join(f"{key.replace('_', ' ')} {entry}" for key, entry in value.items() if entry)
            facts.append((name, seen or "nothing"))
        elif name.endswith("_s") and isinstance(value, int | float):
            facts.append((name.removesuffix("_s"), _seconds(value)))
        else:
            facts.append((name, str(value)))
    return facts


def _rate(steps_per_s: float) -> str:
    return f"{steps_per_s:,.0f} steps/s" if steps_per_s >= 100 else f"{steps_per_s:.3g} steps/s"


def _range(limits: tuple[float, float] | None, unit: str, bits: int | None) -> str:
    text = "no limits declared" if limits is None else f"{limits[0]:g} to {limits[1]:g}"
    text += "" if unit == "1" else f" ({unit})"
    return text if bits is None else f"{text}, {bits} bits"


def _seconds(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1:
            return f"{value * factor:,.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


# ---- The reservoir of a file, where no experiment is run: to be served, or to be looked at.


def config_from_file(path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None) -> ReservoirConfig:
    """The configuration of the reservoir of a reservoir or experiment file.

    The number of input channels is that of the experiment's task; of a reservoir file, what it says itself, or
    `inputs`.
    """
    config, channels, _ = _read(path, set, inputs)
    return config if channels is None else config.for_inputs(channels)


def reservoir_from_file(
    path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None
) -> tuple[ReservoirConfig, Reservoir]:
    """`config_from_file`, and its reservoir, not yet open.

    Raises `ConfigurationError` where neither file nor `inputs` says what the kind needs to know.
    """
    config = config_from_file(path, set=set, inputs=inputs)
    return config, _built(path, config, inputs)


def reservoirs_from_file(path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None) -> list[Reservoir]:
    """The reservoirs of all layers of a model (`kind: layers`, `kind: laerc_layers`), or the only one; not yet open.

    Raises `ConfigurationError` as `reservoir_from_file`, and for `laerc_layers` without an experiment.
    """
    config, channels, layers = _read(path, set, inputs)
    found = config.for_layers(None if channels is None else channels.count, layers)
    return [_built(path, one if channels is None else one.for_inputs(channels), inputs) for one in found]


def _read(
    path: str | Path, set: Iterable[str], inputs: int | None
) -> tuple[ReservoirConfig, Channels | None, int | None]:
    """The section, what it is driven with, and how many layers there are; None where the file does not say."""
    document = load_document(path, set=list(set))
    if "task" not in document.data:
        return parse_reservoir(document), None if inputs is None else Channels(inputs), None
    refuse_vary(document, ("reservoir",))
    experiment = parse_experiment(document)
    channels = experiment.readout.channels(experiment.task.build())
    if inputs is not None and inputs != channels.count:
        raise ConfigurationError(f"{path}: its task has {channels.count} input channels, not {inputs}")
    return experiment.reservoir, channels, experiment.readout.layers_of_reservoirs


def _built(path: str | Path, config: ReservoirConfig, inputs: int | None) -> Reservoir:
    try:
        return build_reservoir(config)
    except ConfigurationError as error:
        if inputs is None and (config.inputs is None or isinstance(config.input_mask, MaskConfig)):
            raise ConfigurationError(f"{path}: {error} (--inputs N says it here)") from error
        raise
