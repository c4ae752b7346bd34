"""The trained model of a run as a bundle for the edge, or as a C header."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.tokenizer import Tokenizer, load_tokenizer
from reservoir_hw.experiment.deploy.embedded import simulated_networks
from reservoir_hw.experiment.deploy.exported import Exported, Precision, Target
from reservoir_hw.experiment.deploy.missing_device import AbsentReservoir
from reservoir_hw.experiment.deploy.quantised import (
    Metrics,
    QuantisedReadout,
    series_metrics,
    session_computes,
    text_metrics,
)
from reservoir_hw.experiment.deploy.trained import TrainedRow, trained_row
from reservoir_hw.experiment.run import language
from reservoir_hw.readout import LMSReadout, RidgeReadout, RLSReadout
from reservoir_hw.readout.linear.configuration import ReadoutConfig
from reservoir_hw.readout.models.configuration import ModelConfig
from reservoir_hw.tasks.task import Task
from reservoir_hw.tasks.text.task import Text

if TYPE_CHECKING:
    from reservoir_hw.readout.edge.manifest import Manifest
    from reservoir_hw.readout.export.plan import Plan, Values
    from reservoir_hw.readout.models.token_model import TokenModel

Progress = Callable[[str, int, int], None]

RECORDED_STEPS = 300
"""Of the task's test, on which the exported graphs are compared with the model."""

# Of the standard deviation of the outputs: what computing in float32 may change in a header.
_SINGLE = 1e-3

# Tokens of the test that are shown as a prompt.
_PROMPT = 12

# What a replay puts behind the model of the device that it stands for.
_REPLAYED = "(replayed)"

_READOUTS = {"ridge": RidgeReadout, "rls": RLSReadout, "lms": LMSReadout}


def export_run(
    run: str | Path,
    path: str | Path | None = None,
    *,
    precision: Precision = "fp32",
    target: Target = "segments",
    row: int | None = None,
    reservoir: str | Path | None = None,
    offline: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Export a trained model of a run folder.

    The reservoir that it was trained on is opened and driven: with the beginning of the task's test, on which the
    graphs are compared with the model, and with the golden probe. With int8, also with the test, to say what it costs.

    Parameters
    ----------
    run
        The folder that `reservoir-hw run` wrote.
    path
        By default `model.rhw`, a bundle in one file; `model.h` for the target c. A name without `.rhw` is a folder.
    target
        "segments": the graphs between the crossings of the reservoir. "whole": one graph with the simulated network
        inside. "c": a C99 header of a linear readout.
    row
        Which model of a grid.
    reservoir
        A reservoir file that says where the device is now, in the place of the run's.
    offline
        Open no device: nothing is recorded, and there will be no probe response to compare devices with.
    force
        Replace what is at `path`.

    Raises
    ------
    ConfigurationError
        The folder is no run, or damaged; the device is not the one of the training; the model cannot be exported.
    MissingExtra
        onnx or onnxruntime is not installed.
    """
    place = _target_path(path, target, force=force)
    if offline and reservoir is not None:
        raise ConfigurationError("offline opens no device: leave out the reservoir, or offline")
    if offline and target == "whole":
        raise ConfigurationError(
            "target whole holds a simulated reservoir, which is compared with the simulation: leave out offline"
        )
    chosen = trained_row(run, row, reservoir=reservoir)
    if target != "c":
        _require_export()
    work = _Work(chosen, place, precision, target, progress or (lambda what, done, total: None))
    if isinstance(chosen.point.config.readout, ModelConfig):
        exported = _export_model(work, offline=offline)
    else:
        exported = _export_readout(work, offline=offline)
    if offline:
        exported.notes.append(
            "No device was opened: the graphs were compared on random inputs alone, and the bundle has no response by "
            "which a device could be recognised (verify_probe)."
            if exported.manifest is not None
            else "No device was opened."
        )
    exported.command = _next_command(chosen, exported, reservoir)
    return exported


@dataclass
class _Work:
    row: TrainedRow
    path: Path
    precision: Precision
    target: Target
    progress: Progress

    def say(self, what: str, steps: int = 0) -> Callable[[int], None]:
        """Begin something that takes so many steps; the result is told of them."""
        done = 0

        def add(more: int) -> None:
            nonlocal done
            done += more
            self.progress(what, done, max(steps, done))

        self.progress(what, 0, steps)
        return add

    def written(self, manifest: Manifest) -> Exported:
        """What was made of a bundle."""
        from reservoir_hw.readout.edge.bundle import Bundle

        with Bundle.open(self.path) as bundle:
            parameters = [
                sum(array.size for array in bundle.weights_of(number).values())
                for number in range(len(manifest.segments))
            ]
            size = sum(bundle.sizes.values())
        return Exported(self.path, self.row.label, self.target, self.precision, size, manifest, parameters)


# ---- readouts of series


def _export_readout(work: _Work, *, offline: bool) -> Exported:
    row, config = work.row, work.row.point.config
    readout = _load_readout(row)
    repetitions = config.training.repetitions
    notes = []
    if isinstance(config.readout, ReadoutConfig) and config.readout.keeps_learning:
        notes.append("The readout went on learning in the test; what is exported has its last weights and stays so.")
    metrics: Metrics = {}
    if offline:
        (spec,) = row.reservoirs
        exported = _write_readout(work, readout, spec, None, None, {}, repetitions)
    else:
        task = config.task.build()
        work.say("opening")
        with build_reservoir(config.reservoir.for_inputs(task.inputs)) as device:
            _check_devices(row, [device])
            recorded = _recorded_series(work, device, task)
            ranges = _ranges(device.spec, recorded, task)
            if work.precision == "int8":
                quantised = _quantised_readout(work, readout, device.spec, ranges)
                add = work.say("driving the test", len(task.test.inputs) * task.test.inputs.shape[1] * repetitions)
                metrics = series_metrics(row.point, task, device, readout, quantised, add)
            exported = _write_readout(work, readout, device.spec, device, recorded, metrics, repetitions, ranges)
    exported.notes += notes
    exported.metrics = metrics
    return exported


def _load_readout(row: TrainedRow) -> Any:
    kind = row.point.config.readout.kind
    if kind not in _READOUTS:
        raise ConfigurationError(f"readout {kind} cannot be exported: known are {', '.join(_READOUTS)} and models")
    return _READOUTS[kind].load(row.weights)


def _recorded_series(work: _Work, device: Reservoir, task: Task) -> Values:
    from reservoir_hw.readout.export.recording import record_series

    inputs = task.test.inputs[:1, :RECORDED_STEPS]
    work.say(f"recording {inputs.shape[1]} steps")
    return record_series(device, inputs)


def _write_readout(
    work: _Work,
    readout: Any,
    spec: ReservoirSpec,
    device: Reservoir | None,
    recorded: Values | None,
    metrics: Metrics,
    repetitions: int,
    ranges: dict[str, tuple[float, float]] | None = None,
) -> Exported:
    if work.target == "c":
        limits = ranges if ranges is not None else _ranges(spec, None, None)
        return _write_header(work, readout, [spec], limits, recorded)
    from reservoir_hw.readout.export.exporter import write_plan
    from reservoir_hw.readout.export.models import plan_of_readout
    from reservoir_hw.readout.export.whole import whole_plan

    if work.target == "whole":
        assert device is not None
        _refuse_repetitions(repetitions)
        plan = whole_plan(readout, simulated_networks([device]), work.precision, reservoir=device)
        recorded = _carried_at_rest(plan, recorded)
    else:
        plan = plan_of_readout(readout, spec, work.precision, recorded=recorded)
    work.say("writing")
    manifest = write_plan(
        plan,
        work.path,
        devices=[] if device is None else [device],
        precision=work.precision,
        recorded=recorded,
        probe=device is not None,
        repetitions=repetitions,
        metrics=metrics,
        facts=_facts(work.row),
    )
    return work.written(manifest)


def _quantised_readout(
    work: _Work, readout: Any, spec: ReservoirSpec, ranges: dict[str, tuple[float, float]]
) -> QuantisedReadout:
    """The readout in int8 as it will be exported."""
    if work.target == "c":
        from reservoir_hw.readout.export.c_header import int8_readout

        coded = int8_readout(readout, **_used_ranges(readout, ranges))
        return QuantisedReadout(readout.input_connection, lambda states, inputs: coded.predict(states, inputs)[0])
    from reservoir_hw.readout.export.models import plan_of_readout

    (compute,) = session_computes(plan_of_readout(readout, spec, "int8"))

    def outputs(states: np.ndarray, inputs: np.ndarray | None) -> np.ndarray:
        given = {"states_0": states.astype(spec.dtype)}
        if inputs is not None:
            given["inputs"] = inputs.astype(spec.dtype)
        return compute(given)["outputs"]

    return QuantisedReadout(readout.input_connection, outputs)


# ---- language models


def _export_model(work: _Work, *, offline: bool) -> Exported:
    row, config = work.row, work.row.point.config
    tokenizer = load_tokenizer(row.tokenizer)
    with ExitStack() as stack:
        if offline:
            task, devices = None, None
            model = stack.enter_context(_model_without_devices(row, tokenizer))
        else:
            task = cast(Text, config.task.build())
            if task.vocabulary != tokenizer.vocabulary:
                raise ConfigurationError(
                    f"the text has {task.vocabulary} different tokens now, and had {tokenizer.vocabulary} when the "
                    "model was trained: put back the text of the run, or export offline"
                )
            work.say("opening")
            model, devices = stack.enter_context(
                language.opened(row.point, task, language.Place(row.folder, row.number, None))
            )
            _check_devices(row, devices)
        _load_weights(model, row)
        return _write_model(work, model, devices, task, tokenizer)


def _write_model(
    work: _Work, model: TokenModel, devices: Sequence[Reservoir] | None, task: Text | None, tokenizer: Tokenizer
) -> Exported:
    if work.target == "c":
        return _write_model_header(work, model, devices, task)
    from reservoir_hw.readout.export.exporter import write_plan
    from reservoir_hw.readout.export.models import plan_of
    from reservoir_hw.readout.export.whole import whole_plan

    recorded = None if task is None else _recorded_text(work, model, task)
    metrics: Metrics = {}
    if work.precision == "int8" and task is not None:
        metrics = _text_metrics(work, model, task, session_computes(plan_of(model, (), "int8")))
    if work.target == "whole":
        networks = simulated_networks([layer.reservoir for layer in model.reservoir_layers])
        plan = whole_plan(model, networks, work.precision)
        recorded = _carried_at_rest(plan, recorded)
    else:
        plan = plan_of(model, (), work.precision)
    work.say("writing")
    manifest = write_plan(
        plan,
        work.path,
        devices=devices or [],
        precision=work.precision,
        recorded=recorded,
        probe=devices is not None,
        tokenizer=tokenizer,
        metrics=metrics,
        facts=_facts(work.row),
    )
    exported = work.written(manifest)
    exported.metrics = metrics
    if task is not None:
        exported.prompt = tokenizer.decode(task.tokens_test[:_PROMPT]).split("\n")[0] or exported.prompt
    return exported


def _write_model_header(
    work: _Work, model: TokenModel, devices: Sequence[Reservoir] | None, task: Text | None
) -> Exported:
    from reservoir_hw.readout import ReservoirLM

    if not isinstance(model, ReservoirLM):
        raise ConfigurationError(
            f"target c is for linear and low-rank readouts of one reservoir, not for a {type(model).__name__}: "
            "export its segments"
        )
    spec = model.layer.spec
    recorded = None if task is None else _recorded_text(work, model, task)
    ranges = _ranges(spec, recorded, None)
    metrics: Metrics = {}
    if work.precision == "int8" and task is not None:
        from reservoir_hw.readout.export.c_header import int8_readout
        from reservoir_hw.readout.export.models import plan_of

        coded = int8_readout(model.readout, **_used_ranges(model.readout, ranges))
        drive = plan_of(model).references[0]
        metrics = _text_metrics(
            work, model, task, [drive, lambda given: {"outputs": coded.predict(given["states_0"])[0]}]
        )
    exported = _write_header(work, model.readout, [device.spec for device in devices or []] or [spec], ranges, recorded)
    exported.metrics = metrics
    return exported


def _text_metrics(work: _Work, model: TokenModel, task: Text, quantised: Sequence[Any]) -> Metrics:
    from reservoir_hw.readout.export.models import plan_of

    gradient = work.row.point.config.training.gradient
    assert gradient is not None
    add = work.say("judging int8 on the test", len(task.tokens_test))
    return text_metrics(model, plan_of(model), quantised, task, gradient.options, add)


def _recorded_text(work: _Work, model: TokenModel, task: Text) -> Values:
    from reservoir_hw.readout.export.recording import record_text

    tokens = task.tokens_test[None, :RECORDED_STEPS]
    work.say(f"recording {tokens.shape[1]} tokens")
    return record_text(model, tokens)


def _load_weights(model: TokenModel, row: TrainedRow) -> None:
    from reservoir_hw.readout.training import load_weights

    load_weights(model, row.weights)


@contextmanager
def _model_without_devices(row: TrainedRow, tokenizer: Tokenizer) -> Iterator[TokenModel]:
    """The model around what the devices declared when it was trained."""
    settings = row.point.config.readout
    assert isinstance(settings, ModelConfig)
    with ExitStack() as stack:
        absent = [stack.enter_context(AbsentReservoir(spec)) for spec in row.reservoirs]
        twins = [stack.enter_context(build_reservoir(twin)) for twin in settings.twins(tokenizer.vocabulary)]
        yield settings.build(tokenizer.vocabulary, absent, twins)


# ---- what both need


def _target_path(path: str | Path | None, target: Target, *, force: bool) -> Path:
    place = Path(path if path is not None else "model.h" if target == "c" else "model.rhw")
    if place.exists() and not force:
        raise ConfigurationError(f"{place} is there already: choose another name, or replace it (force, --force)")
    if target == "c" and place.suffix in (".rhw", ".zip"):
        raise ConfigurationError(f"{place}: target c writes a header, for instance {place.with_suffix('.h')}")
    if target != "c" and place.suffix == ".h":
        raise ConfigurationError(f"{place}: a bundle ends with .rhw, or is a folder; a header needs target c")
    return place


def _check_devices(row: TrainedRow, devices: Sequence[Reservoir]) -> None:
    """Raise `ConfigurationError` unless these are the devices of the training, and can be driven with anything."""
    wanted = row.reservoirs
    if len(devices) != len(wanted):
        raise ConfigurationError(f"the model was trained on {len(wanted)} reservoirs, and {len(devices)} are given")
    for number, (device, spec) in enumerate(zip(devices, wanted, strict=True)):
        here, there = device.spec.identity, spec.identity
        if here.model.endswith(_REPLAYED):
            raise ConfigurationError(
                f"reservoir {number}, {here.model}, is a recording: it answers nothing but what was recorded, and an "
                "export drives more; name the recorded device (--reservoir FILE), or export without one (--offline)"
            )
        if here.fingerprint != there.fingerprint:
            raise ConfigurationError(
                f"reservoir {number} is {here.vendor} {here.model} {here.serial}".rstrip()
                + f", fingerprint {here.fingerprint[:12]}, and row {row.number} of {row.folder} was trained on "
                + f"{there.vendor} {there.model} {there.serial}".rstrip()
                + f", {there.fingerprint[:12]}: open that one (--reservoir), export without a device (--offline), or "
                "run the experiment on this one"
            )


def _carried_at_rest(plan: Plan, recorded: Values | None) -> Values | None:
    """The recorded input of a whole model, from rest."""
    if recorded is None:
        return None
    inputs = recorded[plan.input.name]
    return {
        plan.input.name: inputs,
        **{one.reads: np.zeros((len(inputs), *one.shape), one.dtype) for one in plan.carried},
    }


def _refuse_repetitions(repetitions: int) -> None:
    if repetitions > 1:
        raise ConfigurationError(
            f"training.repetitions is {repetitions}, and a network without noise has nothing to average: run the "
            "experiment with 1, or export the segments"
        )


def _ranges(spec: ReservoirSpec, recorded: Values | None, task: Task | None) -> dict[str, tuple[float, float]]:
    """What states and inputs lie within: as declared, else as they were seen."""
    found = {}
    if spec.state_range is not None:
        found["state_range"] = spec.state_range
    elif recorded is not None:
        found["state_range"] = _extent(recorded["states_0"])
    if spec.input_range is not None:
        found["input_range"] = spec.input_range
    elif task is not None:
        found["input_range"] = _extent(task.train.inputs)
    return found


def _extent(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _used_ranges(readout: Any, ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Those that the header needs."""
    names = ("state_range", "input_range") if getattr(readout, "input_connection", False) else ("state_range",)
    return {name: ranges[name] for name in names if name in ranges}


def _single_note(readout: Any, recorded: Values) -> str:
    """What float32 changes on recorded states, in words: the formula of the header in both precisions.

    Raises `ConfigurationError` where it is more than `_SINGLE` of the standard deviation of an output.
    """
    states, inputs = recorded["states_0"], recorded.get("inputs")
    if not getattr(readout, "input_connection", False):
        inputs = None
    exact = _header_outputs(readout, states, inputs, np.float64)
    # Overflow is an error of its own, found below.
    with np.errstate(over="ignore", invalid="ignore"):
        found = _header_outputs(readout, states, inputs, np.float32)
        errors = np.abs(found - exact)
    steps = tuple(range(exact.ndim - 1))
    error, spread = errors.max(axis=steps), exact.std(axis=steps)
    # An output that hardly moves is as near as float32 comes to it after some roundings.
    allowed = np.maximum(_SINGLE * spread, 8 * np.finfo(np.float32).eps * np.abs(exact).max(axis=steps))
    # The output that loses most; NaN loses all.
    lost = np.nan_to_num(error / np.maximum(allowed, np.finfo(np.float64).tiny), nan=np.inf)
    worst = int(lost.argmax())
    measured = (
        f"{error[worst]:.2g} on {math.prod(exact.shape[:-1])} recorded steps (output {worst}, whose standard deviation "
        f"is {spread[worst]:.2g})"
    )
    if lost[worst] > 1:
        raise ConfigurationError(
            f"a header that computes in float32 differs from this readout by up to {measured}: more than "
            f"{_SINGLE:g} of it. Large states and weights that cancel are lost in float32: train again on states that "
            "are scaled to about 1 and have no large mean, or with a larger alpha; nothing was written"
        )
    return f"float32 changes an output by at most {measured}."


def _header_outputs(readout: Any, states: np.ndarray, inputs: np.ndarray | None, dtype: Any) -> np.ndarray:
    """What the fp32 header computes, in its order of sums, in a dtype."""
    from reservoir_hw.readout.export.c_header import _matrices

    def dot(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        weights = weights.astype(dtype)
        sums = np.zeros((4, *values.shape[:-1], len(weights)), dtype)
        in_fours = weights.shape[1] // 4 * 4
        for feature in range(weights.shape[1]):
            sums[feature % 4 if feature < in_fours else 0] += values[..., feature, None] * weights[:, feature]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    first, second, bias, widths = _matrices(readout)
    found = dot(first[:, : widths.nodes], states.astype(dtype))
    outputs = bias.astype(dtype) + (found if second is None else dot(second, found))
    return outputs if inputs is None else outputs + dot(first[:, widths.nodes :], inputs.astype(dtype))


def _write_header(
    work: _Work,
    readout: Any,
    specs: Sequence[ReservoirSpec],
    ranges: Mapping[str, tuple[float, float]],
    recorded: Values | None,
) -> Exported:
    from reservoir_hw.readout.export.c_header import c_header

    name = re.sub(r"\W", "_", work.path.stem, flags=re.ASCII) or "readout"
    if name[0].isdigit():
        name = f"readout_{name}"
    provenance = {
        "trained in the run of": str(work.row.provenance.get("time", "")),
        "model": work.row.label,
        **{f"device {number}": spec.identity.fingerprint for number, spec in enumerate(specs)},
    }
    used = _used_ranges(readout, ranges) if work.precision == "int8" else {}
    notes = [f"{key.replace('_', ' ')} {low:g} to {high:g}" for key, (low, high) in used.items()]
    if work.precision == "fp32" and recorded is not None:
        notes.append(_single_note(readout, recorded))
    text = c_header(readout, name=name, precision=work.precision, provenance=provenance, **used)
    work.path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(work.path, text)
    size = work.path.stat().st_size
    exported = Exported(work.path, work.row.label, work.target, work.precision, size)
    exported.notes += notes
    return exported


def _facts(row: TrainedRow) -> dict[str, Any]:
    """What the bundle says about the run."""
    config = row.point.config
    return {
        "run": {
            "title": config.title,
            "label": row.label,
            "row": row.number,
            "time": row.provenance.get("time"),
            "configuration_sha256": row.provenance.get("configuration_sha256"),
            "task": config.task.kind,
            "readout": config.readout.kind,
        }
    }


def _next_command(row: TrainedRow, exported: Exported, reservoir: str | Path | None) -> str:
    import shlex

    if exported.manifest is None:
        return f'#include "{exported.path.name}"'
    words = ["reservoir-hw", "infer", str(exported.path)]
    if exported.manifest.slots:
        varied = any(key.partition(".")[0] == "reservoir" for key in row.point.values)
        replayed = any(spec.identity.model.endswith(_REPLAYED) for spec in row.reservoirs)
        own = "reservoir.yaml" if varied or replayed else str(row.folder / "experiment.yaml")
        words += ["--reservoir", own if reservoir is None else str(reservoir)]
    if exported.manifest.tokenizer is not None:
        words += ["--prompt", exported.prompt, "--tokens", "200"]
    else:
        words += ["--input", "series.csv"]
    return shlex.join(words)


def _require_export() -> None:
    """One sentence where the extra is missing, before anything is driven."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"export needs onnx and onnxruntime: pip install 'reservoir-hw[export]' ({error})"
        ) from error
