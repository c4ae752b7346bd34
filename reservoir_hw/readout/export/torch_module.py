"""A user's own torch module as a graph, through torch.export."""

from __future__ import annotations

import copy
import logging
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError, MissingExtra, ReservoirError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Crossing, DType, Value
from reservoir_hw.readout.edge.sessions import session_of
from reservoir_hw.readout.edge.verification import Deviation, deviation_of, limit_of
from reservoir_hw.readout.export.graph import IR_VERSION, OPSET, Graph, Plan, Values, Weights
from reservoir_hw.readout.models.token_model import device_of, evaluating

log = logging.getLogger(__name__)

# The lowest that torch writes; its own conversion to lower ones gives up without an error.
_TORCH_OPSET = 18

# Arrays with at least this many numbers are weights. Smaller ones, such as shapes, belong to the graph.
_SMALLEST_WEIGHT = 8

# Of how to debug torch itself.
_ADVICE = re.compile(r'For more information, run with TORCH_LOGS="[^"]*"\.?')

_DTYPES: dict[str, DType] = {
    "torch.float32": "float32", "torch.float64": "float64", "float32": "float32", "float64": "float64",
}  # fmt: skip

# How far back a module is looked for a memory.
_MEMORY = 300

_TINY = float(np.finfo(np.float32).tiny)

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


def export_module(
    module: nn.Module,
    example: Tensor,
    *,
    name: str = "module",
    reservoir: ReservoirSpec | None = None,
    input_connection: bool = False,
) -> Plan:
    """A module that takes (batch, time, features) to (batch, time, outputs), with both axes dynamic.

    With `reservoir`, the features are the states of that device, followed by its inputs with `input_connection`: the
    plan drives it with its input as it is, and the module reads. Without, they are the plan's input. The module
    computes in evaluation mode, in single precision with any `precision`. One that mixes positions is right for whole
    sequences only, and not step by step.

    `example` fixes the width and the dtype of the features; its numbers do not matter. The graph is compared with the
    module at shapes that torch has not seen. Raises `ConfigurationError` where torch.export refuses the module, such
    as for a loop over time or a branch on values, where the graph needs operators beyond opset 17, and where it
    differs from the module; `MissingExtra` without onnxscript.
    """
    if example.ndim != 3 or example.dtype not in (torch.float32, torch.float64) or not example.shape[2]:
        raise ConfigurationError(
            f"the example of a module's input must be (batch, time, features) of float32 or float64, not "
            f"{tuple(example.shape)} of {example.dtype}"
        )
    example = example.detach().cpu()
    dtype, width = _DTYPES[str(example.dtype)], example.shape[2]
    if reservoir is None:
        read = [Value(name="inputs", shape=(width,), dtype=dtype)]
        plan_input = read[0]
    else:
        given = reservoir.nodes + reservoir.inputs * input_connection
        if (given, reservoir.dtype) != (width, dtype):
            raise ConfigurationError(
                f"the example has {width} features of {dtype}, the reservoir gives {given} of {reservoir.dtype}"
            )
        plan_input = Value(name="inputs", shape=(reservoir.inputs,), dtype=reservoir.dtype)
        states = Value(name="states_0", shape=(reservoir.nodes,), dtype=reservoir.dtype)
        read = [states, plan_input] if input_connection else [states]
    answered = _outputs(module, example, f"its example, {tuple(example.shape)} of {dtype}")
    output = Value(name="outputs", shape=(answered.shape[2],), dtype=_DTYPES[answered.dtype.name])
    graph = Graph(0, Weights())
    names = [graph.read(value) for value in read]
    features = names[0] if len(names) == 1 else graph.node("Concat", *names, axis=-1)
    graph.give(output, emit_module(graph, features, module, example, name))

    def reference(values: Values) -> Values:
        features = np.concatenate([values[value.name] for value in read], axis=-1)
        return {"outputs": _outputs(module, torch.from_numpy(features))}

    return Plan(
        model=name_of_module(module),
        input=plan_input,
        output=output,
        output_meaning="values",
        graphs=[graph],
        references=[reference],
        reservoirs=[] if reservoir is None else [reservoir],
        crossings=[] if reservoir is None else [Crossing(slot=0, after=0, drive="inputs", states="states_0")],
        whole_sequences=mixes_positions(module, example),
    )


def emit_module(graph: Graph, x: str, module: nn.Module, example: Tensor, name: str) -> str:
    """The module's output for the tensor `x`, which is like `example`: see `export_module` for what is raised."""
    converted = _converted(module, example)
    kept = _weights_of(converted, module, name)
    (input_name,) = (value.name for value in converted.input)
    _check_parity(converted, input_name, module, example)
    (output,) = graph.include(converted, {input_name: x}, kept)
    return output


def emit_readout(graph: Graph, states: str, module: nn.Module, name: str = "readout", *, features: int) -> str:
    """Logits of states (batch, time, features): as the module writes itself (`emit`), or as torch.export reads it.

    Raises `ConfigurationError` for a module that `export_module` refuses, or that mixes positions.
    """
    written = graph.emitted(module, states, name)
    if written is not None:
        return written
    if graph.precision == "int8":
        log.warning(
            "the readout %s has no method emit of its own, so torch.export writes it: it stays in float32, and int8 "
            "changes nothing in it",
            name_of_module(module),
        )
    example = torch.zeros(1, 1, features)
    module = _in_single(module, example)
    if mixes_positions(module, example):
        raise ConfigurationError(
            f"a readout of type {name_of_module(module)} mixes the positions of a sequence, so that a text token by "
            "token would give other logits than in one piece: use one that treats positions independently"
        )
    return emit_module(graph, states, module, example, name)


def mixes_positions(module: nn.Module, example: Tensor) -> bool:
    """Whether the module's output at a position depends on others, as far as `_MEMORY` steps away."""
    for steps in (5, _MEMORY):
        trial = _unseen(example, 2, steps)
        whole = _outputs(module, trial, f"sequences of {steps} steps")
        parts = np.concatenate([_outputs(module, trial[:, step : step + 1]) for step in range(steps)], 1)
        if not _deviation(parts, whole).share <= 1:
            return True
    return False


def _in_single(module: nn.Module, example: Tensor) -> nn.Module:
    """The module, or a copy of it that takes single precision, in which the graph computes."""

    def is_single(one: nn.Module) -> bool:
        try:
            with evaluating(one), on_cpu(one):
                return getattr(one(example), "dtype", None) == torch.float32
        except RuntimeError:
            return False

    def agree(one: nn.Module, other: nn.Module) -> bool:
        trial = _unseen(example, 2, 3)
        return _deviation(_outputs(one, trial), _outputs(other, trial)).share <= 1

    if not any(tensor.dtype == torch.float64 for tensor in (*module.parameters(), *module.buffers())):
        return module
    try:
        single = copy.deepcopy(module).float()
        # A readout that needs double precision, or always computes in it, is not changed.
        if is_single(module) and not (is_single(single) and agree(single, module)):
            return module
        return single
    except Exception as error:
        if is_single(module):
            return module
        raise ConfigurationError(
            f"a readout of type {name_of_module(module)} computes in double and cannot be copied: {error}; make it "
            "single precision (.float()) before the export"
        ) from error


def _outputs(module: nn.Module, x: Tensor, taking: str = "") -> np.ndarray:
    """The module's outputs as an array.

    Raises `ConfigurationError` for other than (batch, time, outputs), and for a module that does not take what is said.
    """
    try:
        with evaluating(module), on_cpu(module):
            y: Any = module(x)
    except RuntimeError as error:
        if not taking or isinstance(error, ReservoirError):
            raise
        what = f"a module of type {name_of_module(module)} does not take {taking}"
        raise ConfigurationError(f"{what}: {_reason(error)}") from error
    kinds = (torch.float32, torch.float64)
    if not isinstance(y, Tensor) or y.ndim != 3 or y.shape[:2] != x.shape[:2] or y.dtype not in kinds:
        found = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise ConfigurationError(
            f"{name_of_module(module)} must take {tuple(x.shape)} to (batch, time, outputs) of float32 or float64, it "
            f"gives {found}"
        )
    return y.detach().numpy()


def name_of_module(module: nn.Module) -> str:
    """What messages and manifests call it: the name of its class, or `exported_as` of one that stands for another."""
    return getattr(module, "exported_as", type(module).__name__)


def _converted(module: nn.Module, example: Tensor) -> Any:
    """An ONNX graph of opset 17 with standard operators."""
    if find_spec("onnxscript") is None:
        raise MissingExtra("exporting a torch module needs onnxscript: pip install 'reservoir-hw[export]'")
    what = f"a module of type {name_of_module(module)}"
    axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("time", min=1)}
    # Axes of length 1 would be taken for fixed ones, and equal ones for the same.
    given = _unseen(example, 2, 3)
    with evaluating(module), on_cpu(module), _quiet():
        try:
            program = torch.export.export(module, (given,), dynamic_shapes=(axes,))
        except Exception as error:
            # torch raises classes of many kinds here, some of them private.
            raise ConfigurationError(
                f"torch.export refuses {what}{_place(error)}: {_reason(error)} (a loop over time and a branch on "
                "values cannot be exported; batch and time must stay free)"
            ) from error
        try:
            exported: Any = torch.onnx.export(program, dynamo=True, opset_version=_TORCH_OPSET, verbose=False)
        except Exception as error:
            raise ConfigurationError(f"torch cannot write {what} as ONNX: {_reason(error)}") from error
    proto = exported.model_proto
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    if versions.get("", 0) > _TORCH_OPSET:
        raise ConfigurationError(f"torch wrote {what} in opset {versions['']}, which cannot be brought to {OPSET}")
    _lower(proto.graph, {tensor.name: tensor for tensor in proto.graph.initializer}, what)
    return proto.graph


def _lower(graph: Any, constants: dict[str, Any], what: str) -> None:
    """Bring a graph from opset 18 to 17, in place; notes are left out."""
    for node in graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t
    # Where the operators came from: source files of this machine.
    graph.ClearField("doc_string")
    del graph.metadata_props[:], graph.value_info[:]
    for part in (*graph.node, *graph.initializer):
        part.ClearField("doc_string")
        del part.metadata_props[:]
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise ConfigurationError(f"{what} needs the operator {node.domain}.{node.op_type}, no standard one")
        if any(attribute.HasField("g") for attribute in node.attribute):
            raise ConfigurationError(
                f"{what} has a branch or a loop in its graph (operator {node.op_type}, as of torch.cond): not exported"
            )
        if node.op_type == "LayerNormalization" and len(node.input) == 2 and node.input[1] in constants:
            # As in `Graph.layer_norm`: onnxruntime 1.16 breaks down without a shift.
            nothing = np.zeros_like(numpy_helper.to_array(constants[node.input[1]]))
            graph.initializer.append(numpy_helper.from_array(nothing, f"{node.output[0]}_shift"))
            node.input.append(f"{node.output[0]}_shift")
        try:
            since = onnx.defs.get_schema(node.op_type, _TORCH_OPSET).since_version
        except onnx.defs.SchemaError as error:
            raise ConfigurationError(f"{what} needs the operator {node.op_type}, which ONNX does not know") from error
        if since > OPSET and not _lowered(node, constants):
            raise ConfigurationError(f"{what} needs the operator {node.op_type} as of opset {since}, above {OPSET}")


def _lowered(node: Any, constants: dict[str, Any]) -> bool:
    """Write a node of opset 18 as one of 17 with the same meaning; False where that is not known to be possible."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in {f"Reduce{name}" for name in _REDUCTIONS}:
        # The axes were an attribute.
        axes = node.input[1] if len(node.input) > 1 else ""
        if axes not in constants and (axes or attributes.get("noop_with_empty_axes")):
            return False
        kept = {"keepdims": attributes.get("keepdims", 1)}
        if axes:
            kept["axes"] = numpy_helper.to_array(constants[axes]).tolist()
        _rewrite(node, node.input[:1], kept)
        return True
    if node.op_type == "Split":
        # Without sizes, opset 17 makes parts of one size, or refuses to run.
        _rewrite(node, node.input, {"axis": attributes.get("axis", 0)})
        return True
    if node.op_type == "Pad":
        return len(node.input) < 4 and attributes.get("mode") != b"wrap"
    if node.op_type in ("ScatterElements", "ScatterND"):
        return attributes.get("reduction", b"none") in (b"none", b"add", b"mul")
    return False


def _rewrite(node: Any, inputs: Any, attributes: dict[str, Any]) -> None:
    node.input[:] = list(inputs)
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())


def _weights_of(graph: Any, module: nn.Module, name: str) -> dict[str, tuple[str, np.ndarray]]:
    """The initialisers that are weights: name in the graph -> name in the file, and the numbers.

    Torch stores some matrices the other way round, under names of its own: they get the name of the parameter.
    """
    tensors = {key: value.detach().cpu().numpy() for key, value in module.state_dict().items()}
    found: dict[str, tuple[str, np.ndarray]] = {}
    used = set()
    for initializer in graph.initializer:
        numbers = numpy_helper.to_array(initializer)
        if numbers.dtype.name not in ("float32", "float64"):
            continue
        if numbers.size < _SMALLEST_WEIGHT and initializer.name not in tensors:
            continue
        same = [key for key, tensor in tensors.items() if np.array_equal(tensor, numbers)]
        turned = [key for key, tensor in tensors.items() if tensor.ndim == 2 and np.array_equal(tensor.T, numbers)]
        label = next((key for key in (initializer.name, *same, *turned) if key in tensors), initializer.name)
        if label in used:
            label = initializer.name
        used.add(label)
        found[initializer.name] = (f"{name}.{label}", numbers)
    return found


def _check_parity(converted: Any, input_name: str, module: nn.Module, example: Tensor) -> None:
    """Compare with the module at shapes other than the exported one."""
    what = f"the graph of {name_of_module(module)}"
    model = helper.make_model(converted, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = session_of(model.SerializeToString(), {}, what)
    for batch, steps in ((1, 1), (3, 7), (1, 12)):
        trial = _unseen(example, batch, steps)
        expected = _outputs(module, trial)
        try:
            got: Any = session.run(None, {input_name: trial.numpy()})[0]
        except Exception as error:
            # onnxruntime raises its own classes, which share no base but Exception.
            raise ConfigurationError(
                f"{what} does not take {batch} sequences of {steps} steps; an axis was frozen: {_reason(error)}"
            ) from error
        if got.shape != expected.shape:
            raise ConfigurationError(
                f"{what} gives {got.shape} where the module gives {expected.shape}: an axis was frozen"
            )
        worst = _deviation(got, expected)
        if worst.share > 1:
            raise ConfigurationError(
                f"{what} differs from the module by {worst.error:.2g} of the size of an output, more than "
                f"{worst.limit:.2g}, for {batch} sequences of {steps} steps: a branch was dropped, or the module is "
                "random or changes when it is called"
            )


def _deviation(got: np.ndarray, expected: np.ndarray) -> Deviation:
    # A single step moves nothing: what counts here is the size.
    size = np.sqrt(np.square(expected, dtype=np.float64).mean(keepdims=True)).reshape(1)
    return deviation_of("outputs", got, expected.astype(np.float32), size + _TINY, limit_of("float32"))


def _unseen(example: Tensor, batch: int, steps: int) -> Tensor:
    """Random numbers like the example, of another shape."""
    numbers = generator(0, "example").standard_normal((batch, steps, example.shape[2]))
    return torch.from_numpy(numbers).to(example.dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch writes and warns of what concerns its own parts; what fails is raised."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "torch.export", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _place(error: BaseException) -> str:
    """The last line of the module's own code that torch has met on its way to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [str(Path(torch.__file__).parent), str(Path(__file__).parents[2])]
    own = [one for one in frames if not one.filename.startswith(tuple(inside))]
    return f" at {Path(own[-1].filename).name}, line {own[-1].lineno} ({own[-1].line})" if own else ""


def _reason(error: BaseException) -> str:
    """What the first of the errors says, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(_ADVICE.sub("", str(error)).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


@contextmanager
def on_cpu(model: nn.Module) -> Iterator[None]:
    """The model on the CPU meanwhile, afterwards where it was."""
    device = device_of(model)
    if device.type == "cpu":
        yield
        return
    model.to("cpu")
    try:
        yield
    finally:
        model.to(device)
