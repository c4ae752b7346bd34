"""Graphs made ready to run by onnxruntime, the stages of a model, and where their time goes."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, MissingExtra, StateLost, extra
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.sharing import Share
from reservoir_hw.core.threads import quiet_session
from reservoir_hw.readout.edge.manifest import Crossing, Manifest, Segment, Value

if TYPE_CHECKING:
    import onnxruntime

    from reservoir_hw.readout.edge.bundle import Bundle

# In onnxruntime 1.16 it ends the process where it meets a sum whose axes are left out.
_DISABLED_OPTIMIZERS = ["AttentionFusion"]

_FIRST_WITH_NUMPY_2 = (1, 19)


def import_onnxruntime() -> Any:
    """The runtime, or one sentence that says how to get one that works with the numpy that is here."""
    try:
        installed = version("onnxruntime")
    except PackageNotFoundError:
        # Some builds have another name. If there is none at all, the import says so.
        installed = ""
    numbers = tuple(map(int, re.findall(r"\d+", installed)[:2]))
    if numbers and numbers < _FIRST_WITH_NUMPY_2 and int(np.__version__.split(".")[0]) >= 2:
        raise MissingExtra(
            f"onnxruntime {installed} was built for numpy 1 and would crash with numpy {np.__version__}: "
            "pip install 'onnxruntime>=1.19' (or 'numpy<2')"
        )
    with extra("edge", "running a bundle needs onnxruntime"):
        import onnxruntime
    return onnxruntime


def first_line(error: Exception) -> str:
    """What the runtime says, without what a terminal would obey: names of a foreign graph are in it."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:300]


def make_session(bundle: Bundle, index: int, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session on the CPU for a segment of a bundle, which may be closed afterwards.

    The runtime gets the checked bytes of the graph and the mapped weights: it never opens a file. What it rearranges
    for its kernels it copies (the matrices of MatMul); the rest is read from the mapped file.

    Raises `ConfigurationError` if the runtime refuses the graph.
    """
    name = f"segment {index} of {bundle.name}"
    return session_of(bundle.graph(index), bundle.weights_of(index), name, threads=threads)


def session_of(
    graph: bytes, weights: Mapping[str, np.ndarray], name: str, *, threads: int = 1
) -> onnxruntime.InferenceSession:
    """A session on the CPU for a graph whose external weights are these arrays, and only these.

    Raises `ConfigurationError` if the runtime refuses the graph.
    """
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    quiet_session(options, threads)
    # What fails is raised, in one message.
    options.log_severity_level = 4
    if weights:
        values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        # There is nothing to fall back to, and falling back would print to standard output.
        session = runtime.InferenceSession(
            graph,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,
            disabled_optimizers=_DISABLED_OPTIMIZERS,
        )
    except Exception as error:
        # onnxruntime raises its own classes, which share no base but Exception.
        raise ConfigurationError(
            f"onnxruntime {runtime.__version__} cannot load {name}: {first_line(error)}"
        ) from error
    session.disable_fallback()
    # The runtime keeps the addresses of the arrays, but not the arrays: they must live as long as the session.
    weakref.finalize(session, dict.clear, dict(weights)).atexit = False
    return session


# ---- The stages of a model at the edge: graphs and crossings, on arrays as they come, or bound once for single steps.


class SegmentStage:
    """A graph."""

    # Graphs keep no state of the sequences.
    steps = None

    def __init__(self, number: int, segment: Segment, session: Any) -> None:
        self.name = f"segment {number}"
        self.segment = segment
        self.session = session
        self._gives = [value.name for value in segment.gives]

    def begin(self, batch: int) -> None:
        """Graphs keep nothing."""

    def run(self, values: dict[str, np.ndarray], repetitions: int) -> None:
        """Compute what the segment gives."""
        given = {value.name: values[value.name] for value in self.segment.reads}
        try:
            values.update(zip(self._gives, self.session.run(self._gives, given), strict=True))
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ConfigurationError:
        # onnxruntime raises its own classes, which share no base but Exception.
        return ConfigurationError(f"{self.segment.graph} fails at work: {first_line(error)}")

    def bound(self, values: Mapping[str, np.ndarray]) -> Callable[[], None]:
        """The same, always on these arrays."""
        ort_value = import_onnxruntime().OrtValue.ortvalue_from_numpy
        binding = self.session.io_binding()
        for value in self.segment.reads:
            binding.bind_ortvalue_input(value.name, ort_value(values[value.name]))
        for value in self.segment.gives:
            binding.bind_ortvalue_output(value.name, ort_value(values[value.name]))
        run = self.session.run_with_iobinding

        def compute() -> None:
            try:
                run(binding)
            except Exception as error:
                raise self._failed(error) from error

        return compute


class CrossingStage:
    """A reservoir between two graphs."""

    def __init__(self, number: int, crossing: Crossing, reservoir: Reservoir, dtype: str) -> None:
        self.name = f"crossing {number}"
        self.crossing = crossing
        self.dtype = np.dtype(dtype)
        """Of the states that the graphs read. A device may have another, in which it takes its inputs by itself."""
        self.reservoir = reservoir
        self._share = Share(reservoir)
        self._casts = reservoir.spec.dtype != dtype

    @property
    def steps(self) -> int | None:
        """How many steps of these sequences the device has taken; None if it keeps no state of them."""
        return self._share.steps if self.crossing.state is None else None

    def begin(self, batch: int) -> None:
        """The device is reset when it is driven next."""
        self._share.begin(batch)

    def run(self, values: dict[str, np.ndarray], repetitions: int) -> None:
        """Drive the device."""
        crossing = self.crossing
        drive = self._in_device(values[crossing.drive])
        if crossing.state is not None:
            states: Any = self.reservoir.transition(drive[:, 0], values[crossing.state][:, 0])
            values[crossing.states] = self._cast(states[:, None])
            return
        if repetitions == 1:
            values[crossing.states] = self._cast(np.asarray(self._share.run(drive)))
            return
        if self._share.steps:
            raise StateLost("a model that averages repetitions takes whole sequences from rest: call reset before run")
        total = np.zeros((*drive.shape[:2], self.reservoir.spec.nodes))
        for _ in range(repetitions):
            self._share.begin(len(drive))
            total += self._share.run(drive)
        values[crossing.states] = self._cast(total / repetitions)

    def _in_device(self, drive: np.ndarray) -> np.ndarray:
        """In the precision of the device. What is its limit in that of the training is its limit here."""
        spec = self.reservoir.spec
        if not self._casts:
            return drive
        given = drive.astype(spec.dtype)
        if spec.input_range is not None:
            low, high = spec.input_range
            np.maximum(given, low, out=given, where=drive >= drive.dtype.type(low))
            np.minimum(given, high, out=given, where=drive <= drive.dtype.type(high))
        return given

    def _cast(self, states: np.ndarray) -> np.ndarray:
        # What becomes infinite shows in the outputs.
        with np.errstate(over="ignore"):
            return states.astype(self.dtype, copy=False)

    def bound(self, values: Mapping[str, np.ndarray]) -> Callable[[], None]:
        """The same, always on these arrays; a reservoir that can writes its states into them."""
        crossing, reservoir, run = self.crossing, self.reservoir, self._share.run
        drive, target = values[crossing.drive], values[crossing.states]

        def transition() -> None:
            assert crossing.state is not None
            target[:, 0] = reservoir.transition(self._in_device(drive)[:, 0], values[crossing.state][:, 0])

        def drive_once() -> None:
            states = run(drive, target)
            if states is not target:
                target[...] = states

        def drive_and_cast() -> None:
            target[...] = self._cast(run(self._in_device(drive)))

        if crossing.state is not None:
            return transition
        return drive_and_cast if self._casts else drive_once


Stage = SegmentStage | CrossingStage


class Bound:
    """Arrays of one step for `batch` sequences, and the calls that work on them.

    `calls` are those of all stages in their order, each with what is to be told how many nanoseconds it took.
    """

    def __init__(self, manifest: Manifest, stages: Sequence[Stage], watch: Stopwatch, batch: int) -> None:
        self.batch = batch
        self._carried = manifest.carried
        values = self._values = {manifest.input.name: _empty(manifest.input, batch)}
        for one in manifest.carried:
            values |= {name: np.zeros((batch, *one.shape), one.dtype) for name in (one.reads, one.gives)}
        for stage in stages:
            if isinstance(stage, CrossingStage):
                values[stage.crossing.states] = np.zeros((batch, 1, stage.reservoir.spec.nodes), stage.dtype)
            else:
                for value in stage.segment.gives:
                    values.setdefault(value.name, _empty(value, batch))
        self.calls = [
            (stage.bound(values), histogram.add) for stage, histogram in zip(stages, watch.histograms, strict=True)
        ]
        self.input = values[manifest.input.name]
        self.output = values[manifest.output.name][:, 0]
        self.counts = [value for name, value in values.items() if name.startswith("clipped_")]
        """How many values each of the input maps clipped in the last step."""

    def begin(self, carried: Mapping[str, np.ndarray]) -> None:
        """Take over what goes on from step to step."""
        for name, value in carried.items():
            self._values[name][...] = value

    def carry(self, carried: dict[str, np.ndarray]) -> None:
        """What the step gave is what the next one reads."""
        for one in self._carried:
            self._values[one.reads][...] = self._values[one.gives]
            carried[one.reads] = self._values[one.reads]


def _empty(value: Value, batch: int) -> np.ndarray:
    return np.zeros(() if value.scalar else (batch, 1, *value.shape), value.dtype)


def stages_of(manifest: Manifest, sessions: Sequence[Any], reservoirs: Sequence[Reservoir]) -> list[Stage]:
    """Segments and crossings in the order in which they are needed."""
    segments = zip(manifest.segments, sessions, strict=True)
    stages: list[Stage] = [SegmentStage(number, *one) for number, one in enumerate(segments)]
    # From the last, so that the places of those before stay as they are.
    for place, crossing in reversed(list(enumerate(manifest.crossings))):
        dtype = manifest.slots[crossing.slot].dtype
        stages.insert(crossing.after, CrossingStage(place, crossing, reservoirs[crossing.slot], dtype))
    return stages


# ---- Where the time of a step goes.


# Upper ends of the bins in nanoseconds, eight to an octave.
_EDGES = np.append(2.0 ** np.arange(7, 37, 0.125), np.inf)

# Durations that wait to be sorted into bins: sorting many at once takes a tenth of the time.
_WAITING = 4096


class Histogram:
    """Durations in bins of 9 % width from 128 ns to 126 s; of constant size however many they are."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.add = self.waiting.append
        """Take one duration in nanoseconds. Somebody must call `sort` now and then, and before anything is read."""
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.waiting.clear()
        self.counts = np.zeros(len(_EDGES), np.int64)
        self.total_ns = self.longest_ns = 0

    def sort(self) -> None:
        """Put what was added into bins."""
        if self.waiting:
            ns = np.array(self.waiting, np.int64)
            self.waiting.clear()
            self.total_ns += int(ns.sum())
            self.longest_ns = max(self.longest_ns, int(ns.max()))
            self.counts += np.bincount(np.searchsorted(_EDGES, ns), minlength=len(self.counts))

    def quantile_s(self, share: float) -> float:
        """The duration in seconds that this share of all does not exceed, to the width of a bin; NaN without any."""
        total = self.counts.sum()
        if not total:
            return math.nan
        place = int(np.searchsorted(self.counts.cumsum(), share * total))
        return min(float(_EDGES[place]), self.longest_ns) * 1e-9


@dataclass(frozen=True)
class StageLatency:
    """A segment or a crossing, with the durations of its calls; `steps` are the time steps of all calls."""

    stage: str
    calls: int
    steps: int
    mean_s: float
    p50_s: float
    p99_s: float
    longest_s: float


class Stopwatch:
    """Histograms of the stages of a model."""

    def __init__(self, stages: list[str]) -> None:
        self.stages = stages
        self.steps = 0
        self.histograms = [Histogram() for _ in stages]

    def clear(self) -> None:
        """Forget what was measured."""
        self.steps = 0
        for histogram in self.histograms:
            histogram.clear()

    def count(self, steps: int) -> None:
        """All stages have taken so many time steps."""
        self.steps += steps
        if len(self.histograms[0].waiting) >= _WAITING:
            for histogram in self.histograms:
                histogram.sort()

    def summary(self) -> list[StageLatency]:
        """A row for each stage."""
        found = []
        for name, histogram in zip(self.stages, self.histograms, strict=True):
            histogram.sort()
            calls, total_s = int(histogram.counts.sum()), histogram.total_ns * 1e-9
            quantiles = histogram.quantile_s(0.5), histogram.quantile_s(0.99)
            mean_s, longest_s = total_s / max(1, calls), histogram.longest_ns * 1e-9
            found.append(StageLatency(name, calls, self.steps, mean_s, *quantiles, longest_s))
        return found
