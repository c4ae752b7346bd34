"""A small model as a bundle: an embedding, a reservoir, a linear readout; whole, or forged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from safetensors.numpy import save

from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.edge.manifest import FORMAT, VERSION, WEIGHTS, Extent, Ranges, digest_of
from reservoir_hw.readout.edge.verification import spread_of

VOCABULARY, INPUTS, NODES = 7, 3, 5
GRAPHS = ("graphs/segment_0.onnx", "graphs/segment_1.onnx")
TOKENS = {"name": "tokens", "dtype": "int64"}
DRIVE = {"name": "drive_0", "shape": [INPUTS]}
STATES = {"name": "states_0", "shape": [NODES]}
OUTPUTS = {"name": "outputs", "shape": [VOCABULARY]}
_ELEMENTS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int8": TensorProto.INT8}


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays of the model."""
    random = generator(seed, "edge bundle")
    return {
        "embedding": random.standard_normal((VOCABULARY, INPUTS)).astype(np.float32),
        "readout": random.standard_normal((NODES, VOCABULARY)).astype(np.float32),
        "bias": random.standard_normal(VOCABULARY).astype(np.float32),
    }


def external(data: bytes, name: str, /, **changes: Any) -> onnx.TensorProto:
    """An initializer that lies in a file of weights with the bytes `data`; `changes` make it lie."""
    length = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + length])[name]
    begin, end = about["data_offsets"]
    kinds = {"F32": TensorProto.FLOAT, "I8": TensorProto.INT8}
    tensor = TensorProto(
        name=changes.pop("name", name),
        data_type=changes.pop("data_type", kinds[about["dtype"]]),
        dims=changes.pop("dims", about["shape"]),
        data_location=TensorProto.EXTERNAL,
    )
    facts = {"location": "weights.safetensors", "offset": 8 + length + begin, "length": end - begin, **changes}
    for key, fact in facts.items():
        if fact is not None:
            tensor.external_data.add(key=key, value=str(fact))
    return tensor


def information(value: dict[str, Any]) -> onnx.ValueInfoProto:
    """The declaration of a value with the axes (batch, time, *shape)."""
    kind = _ELEMENTS[value.get("dtype", "float32")]
    return helper.make_tensor_value_info(value["name"], kind, ["batch", "time", *value.get("shape", ())])


def graph(
    nodes: Iterable[onnx.NodeProto],
    reads: dict[str, Any],
    gives: dict[str, Any],
    initializers: Iterable[onnx.TensorProto],
    opsets: Iterable[tuple[str, int]] = (("", 17),),
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A model of one graph."""
    made = helper.make_graph(
        list(nodes), "graph", [information(reads)], [information(gives)], initializer=list(initializers)
    )
    sets = [helper.make_opsetid(*one) for one in opsets]
    return helper.make_model(made, opset_imports=sets, ir_version=ir_version)


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """With its own hash, as a forger would make it too."""
    return {**manifest, "manifest_sha256": digest_of(manifest)}


@dataclass
class Case:
    """The parts of a bundle, to be changed before they are written."""

    facts: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)

    def manifest(self, **changes: Any) -> dict[str, Any]:
        """The manifest with the right hashes."""
        records = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in self.files.items()
        }
        return sealed({"format": FORMAT, "version": VERSION, **self.facts, "files": records, **changes})

    def forge(self, folder: Path, manifest: bytes | None = None) -> Path:
        """Write a folder without any check."""
        text = json.dumps(self.manifest()).encode() if manifest is None else manifest
        for name, data in {**self.files, "manifest.json": text}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder


def case(seed: int = 0, fingerprint: str = "0" * 64) -> Case:
    """A bundle of two segments with everything that a bundle has."""
    arrays = weights(seed)
    data = save(arrays)
    first = graph(
        [helper.make_node("Gather", ["embedding", "tokens"], ["drive_0"])],
        TOKENS, DRIVE, [external(data, "embedding")],
    )  # fmt: skip
    second = graph(
        [
            helper.make_node("MatMul", ["states_0", "readout"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["outputs"]),
        ],
        STATES, OUTPUTS, [external(data, "readout"), external(data, "bias")],
    )  # fmt: skip
    random = generator(seed, "edge bundle golden")
    tokens = random.integers(0, VOCABULARY, (2, 4))
    states = random.standard_normal((2, 4, NODES)).astype(np.float32)
    golden = {
        "segment_0/tokens": tokens,
        "segment_0/drive_0": arrays["embedding"][tokens],
        "segment_1/states_0": states,
        "segment_1/outputs": states @ arrays["readout"] + arrays["bias"],
        "spread/drive_0": np.ones(1),
    }
    golden["spread/outputs"] = spread_of(golden["segment_1/outputs"], logits=True)
    slot = {
        "inputs": INPUTS,
        "nodes": NODES,
        "dtype": "float32",
        "fingerprint": fingerprint,
        "identity": {"vendor": "lab", "model": "film", "simulated": False},
    }
    certified = {
        "channel": 0, "error": 1e-7, "limit": 1e-4, "spread": 1.0, "random_shapes": [[1, 1]], "recorded_steps": 0,
    }  # fmt: skip
    return Case(
        {
            "model": "ReservoirLM",
            "precision": "fp32",
            "target": "segments",
            "input": TOKENS,
            "output": OUTPUTS,
            "output_meaning": "logits",
            "segments": [
                {"graph": GRAPHS[0], "reads": [TOKENS], "gives": [DRIVE]},
                {"graph": GRAPHS[1], "reads": [STATES], "gives": [OUTPUTS]},
            ],
            "crossings": [{"slot": 0, "after": 1, "drive": "drive_0", "states": "states_0"}],
            "slots": [slot],
            "tokenizer": "tokenizer.json",
            "golden": "golden.safetensors",
            "certificate": {
                "reference": "numpy",
                "runtime": "onnxruntime",
                "segments": [
                    {"segment": 0, "value": "drive_0", **certified},
                    {"segment": 1, "value": "outputs", **certified},
                ],
            },
            "provenance": {"seed": seed},
        },
        {
            GRAPHS[0]: first.SerializeToString(deterministic=True),
            GRAPHS[1]: second.SerializeToString(deterministic=True),
            WEIGHTS: data,
            "golden.safetensors": save(golden),
            "tokenizer.json": b'{"kind": "characters", "characters": "abcdefg"}',
        },
    )


def ranges_of(inputs: np.ndarray, targets: np.ndarray) -> Ranges:
    """The ends of arrays (..., channels)."""

    def extent(values: np.ndarray) -> Extent:
        flat = values.reshape(-1, values.shape[-1])
        low, high = tuple(map(float, flat.min(0))), tuple(map(float, flat.max(0)))
        return Extent(low=low, high=high, low_point=low, high_point=high)

    return Ranges(inputs=extent(inputs), targets=extent(targets))
