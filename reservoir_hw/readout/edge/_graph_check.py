"""What an ONNX graph of a bundle may hold, found out without the onnx package and before a runtime sees it.

The graph is read as protobuf's wire format (https://protobuf.dev/programming-guides/encoding) with the field numbers
of onnx.proto3 up to IR version 8. Whatever two readers could take for two different things is refused: fields that
are not known, fields in the wrong encoding, and a second copy of a field that may occur once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from reservoir_hw.readout.edge.manifest import WEIGHTS, Refused, Segment, Value, shown, strict_json

HEADER_LIMIT = 4 << 20
RANK_LIMIT = 8
_NAME_LIMIT = 256
# What safetensors calls a type of numbers, its number in ONNX, and what it is.
_NUMBERS = (
    ("BOOL", 9, np.dtype("?")),
    ("U8", 2, np.dtype("u1")),
    ("I8", 3, np.dtype("i1")),
    ("U16", 4, np.dtype("<u2")),
    ("I16", 5, np.dtype("<i2")),
    ("F16", 10, np.dtype("<f2")),
    ("U32", 12, np.dtype("<u4")),
    ("I32", 6, np.dtype("<i4")),
    ("F32", 1, np.dtype("<f4")),
    ("U64", 13, np.dtype("<u8")),
    ("I64", 7, np.dtype("<i8")),
    ("F64", 11, np.dtype("<f8")),
)
DTYPES = {name: dtype for name, _, dtype in _NUMBERS}
_OF_ONNX = {number: dtype for _, number, dtype in _NUMBERS}


@dataclass(frozen=True)
class Extent:
    """An array in a file: `start` and `length` are bytes, from the beginning of the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    length: int


def parse_header(take: Callable[[int, int], bytes], size: int) -> dict[str, Extent]:
    """The arrays of a file of `size` bytes; `take` returns the bytes at (start, length).

    Raises `Refused` unless the arrays lie one behind the other and fill the file exactly.
    """
    if size < 8:
        raise Refused("is too short for a safetensors file")
    length = int.from_bytes(take(0, 8), "little")
    if length > HEADER_LIMIT:
        raise Refused(f"has a header of {length} bytes, more than the {HEADER_LIMIT} of a safetensors file")
    if 8 + length > size:
        raise Refused(f"has a header of {length} bytes, but only {size} bytes in all: it is cut off or damaged")
    described = strict_json(take(8, length), "has a header that ")
    at = 8 + length
    extents = {name: _extent(name, about, at) for name, about in described.items() if name != "__metadata__"}
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].start, item[1].length)):
        if extent.start != at:
            raise Refused(f"array {shown(name)} overlaps with another, or does not begin where the one before it ends")
        if extent.start % extent.dtype.itemsize:
            raise Refused(f"array {shown(name)} does not begin at a multiple of {extent.dtype.itemsize} bytes")
        at += extent.length
    if at != size:
        raise Refused(f"has {size} bytes, but its arrays end at {at}: it is cut off or damaged")
    return extents


def views(data: np.ndarray, extents: Mapping[str, Extent]) -> dict[str, np.ndarray]:
    """Read-only arrays that share the memory of the file's bytes `data` (size,)."""
    found = {}
    for name, extent in extents.items():
        part = data[extent.start : extent.start + extent.length]
        if not part.view(extent.dtype).flags.aligned:
            # Other programs' zip files begin their entries anywhere.
            part = part.copy()
        array = part.view(extent.dtype).reshape(extent.shape)
        array.flags.writeable = False
        found[name] = array
    return found


def _extent(name: str, about: Any, first: int) -> Extent:
    if not name or len(name) > _NAME_LIMIT or not name.isprintable():
        raise Refused(f"has an array called {shown(name)}")
    if not isinstance(about, dict) or about.keys() != {"dtype", "shape", "data_offsets"}:
        raise Refused(f"array {shown(name)} is not described by dtype, shape and data_offsets")
    kind, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    dtype = DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise Refused(f"array {shown(name)} has the dtype {shown(str(kind))}; known are {', '.join(DTYPES)}")
    if not _counts(shape) or len(shape) > RANK_LIMIT or math.prod(max(1, axis) for axis in shape) >= 1 << 48:
        raise Refused(f"array {shown(name)} has no valid shape of at most {RANK_LIMIT} axes")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Refused(f"array {shown(name)} has no valid data_offsets")
    length = offsets[1] - offsets[0]
    if math.prod(shape) * dtype.itemsize != length:
        raise Refused(f"array {shown(name)} of {kind} {shape} does not fit into its {length} bytes")
    return Extent(dtype, tuple(shape), first + offsets[0], length)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 62 for value in values)


OPSET, IR_VERSIONS = 17, range(3, 9)
DEPTH_LIMIT = 8
FIELDS_LIMIT = 200_000
_ELEMENTS_LIMIT = 1 << 40

_EXTERNAL = 1

_Found: TypeAlias = "dict[str, list[int | memoryview]]"


class _Field(NamedTuple):
    """`kind`: what the wire format calls it; `many`: it may occur more than once."""

    name: str
    kind: str
    many: bool


_VARINT, _FIXED_64, _BYTES, _FIXED_32 = "varint", "fixed64", "bytes", "fixed32"
_KINDS = {0: _VARINT, 1: _FIXED_64, 2: _BYTES, 5: _FIXED_32}


def _fields(declared: str) -> dict[int, _Field]:
    """Fields by their numbers, declared as in onnx.proto3, with the wire format's names for their types."""
    found = re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", declared)
    return {int(number): _Field(name, kind, many=bool(repeated)) for repeated, kind, name, number in found}


_MODEL = _fields("""
    varint ir_version = 1; bytes producer_name = 2; bytes producer_version = 3; bytes domain = 4;
    varint model_version = 5; bytes doc_string = 6; bytes graph = 7; repeated bytes opset_import = 8;
    repeated bytes metadata_props = 14; repeated bytes training_info = 20; repeated bytes functions = 25;
""")
_GRAPH = _fields("""
    repeated bytes node = 1; bytes name = 2; repeated bytes initializer = 5; bytes doc_string = 10;
    repeated bytes input = 11; repeated bytes output = 12; repeated bytes value_info = 13;
    repeated bytes quantization_annotation = 14; repeated bytes sparse_initializer = 15;
    repeated bytes metadata_props = 16;
""")
_NODE = _fields("""
    repeated bytes input = 1; repeated bytes output = 2; bytes name = 3; bytes op_type = 4;
    repeated bytes attribute = 5; bytes doc_string = 6; bytes domain = 7; repeated bytes metadata_props = 9;
""")
_ATTRIBUTE = _fields("""
    bytes name = 1; fixed32 f = 2; varint i = 3; bytes s = 4; bytes t = 5; bytes g = 6; repeated fixed32 floats = 7;
    repeated varint ints = 8; repeated bytes strings = 9; repeated bytes tensors = 10; repeated bytes graphs = 11;
    bytes doc_string = 13; bytes tp = 14; repeated bytes type_protos = 15; varint type = 20; bytes ref_attr_name = 21;
    bytes sparse_tensor = 22; repeated bytes sparse_tensors = 23;
""")
_TENSOR = _fields("""
    repeated varint dims = 1; varint data_type = 2; bytes segment = 3; repeated fixed32 float_data = 4;
    repeated varint int32_data = 5; repeated bytes string_data = 6; repeated varint int64_data = 7; bytes name = 8;
    bytes raw_data = 9; repeated fixed64 double_data = 10; repeated varint uint64_data = 11; bytes doc_string = 12;
    repeated bytes external_data = 13; varint data_location = 14; repeated bytes metadata_props = 16;
""")
_OPERATOR_SET = _fields("bytes domain = 1; varint version = 2;")
_PAIR = _fields("bytes key = 1; bytes value = 2;")
_VALUE = _fields("bytes name = 1; bytes type = 2; bytes doc_string = 3; repeated bytes metadata_props = 4;")
_TYPE = _fields("bytes tensor_type = 1; bytes denotation = 6;")
_TENSOR_TYPE = _fields("varint elem_type = 1; bytes shape = 2;")


def check_graph(data: bytes, segment: Segment, weights: Mapping[str, Extent]) -> tuple[str, ...]:
    """Refuse a graph that is not one of standard operators on its segment's values and the bundle's weights.

    Returns the names of the weights that it needs.

    Raises `Refused` for a damaged file, an IR version above 8, an operator set other than ONNX 17, local functions,
    operators of other domains (in subgraphs, too), inputs and outputs other than the segment's, and external data
    that is not exactly the array of the same name in the file of weights.
    """
    return _Check(weights).model(data, segment)


class _Check:
    def __init__(self, weights: Mapping[str, Extent]) -> None:
        self._weights = weights
        self._left = FIELDS_LIMIT

    def model(self, data: bytes, segment: Segment) -> tuple[str, ...]:
        model = self._message(memoryview(data), _MODEL, "the model")
        version = _number(model, "ir_version")
        if version not in IR_VERSIONS:
            raise Refused(f"has the IR version {version}; a bundle's graphs have at most {IR_VERSIONS[-1]}")
        if model["functions"]:
            raise Refused("has local functions; a bundle's graphs are made of standard operators only")
        if model["training_info"]:
            raise Refused("has training information, which a bundle's graphs have not")
        sets = [self._message(part, _OPERATOR_SET, "an operator set") for part in _parts(model, "opset_import")]
        found = [(_text(one, "domain"), _number(one, "version")) for one in sets]
        if found != [("", OPSET)]:
            named = ", ".join(f"{shown(domain or 'ai.onnx')} {version}" for domain, version in found[:4]) or "none"
            raise Refused(f"uses the operator sets {named}; a bundle's graphs use ONNX {OPSET} only")
        if not model["graph"]:
            raise Refused("has no graph")
        graph = self._graph(_parts(model, "graph")[0], depth=0)
        initializers = {_text(tensor, "name") for tensor in graph["tensors"]}
        if len(initializers) != len(graph["tensors"]):
            raise Refused("has two initializers of one name")
        for what, values in (("input", segment.reads), ("output", segment.gives)):
            self._values(graph["message"], what, values)
        overridden = initializers & {value.name for value in segment.reads}
        if overridden:
            raise Refused(f"has the input {shown(min(overridden))} as an initializer, too")
        return tuple(_text(tensor, "name") for tensor in graph["tensors"] if self._is_weight(tensor))

    def _graph(self, data: memoryview, depth: int) -> dict:
        if depth > DEPTH_LIMIT:
            raise Refused(f"has graphs inside graphs, more than {DEPTH_LIMIT} deep")
        graph = self._message(data, _GRAPH, "a graph")
        if graph["sparse_initializer"]:
            raise Refused("has sparse initializers, which a bundle's graphs have not")
        for node in _parts(graph, "node"):
            self._node(self._message(node, _NODE, "a node"), depth)
        tensors = [self._message(tensor, _TENSOR, "an initializer") for tensor in _parts(graph, "initializer")]
        if depth:
            for tensor in tensors:
                self._inline(tensor)
        return {"message": graph, "tensors": tensors}

    def _node(self, node: _Found, depth: int) -> None:
        operator, domain = _text(node, "op_type"), _text(node, "domain")
        if domain:
            where = " inside another operator" if depth else ""
            raise Refused(
                f"has the operator {shown(operator)} of the domain {shown(domain)}{where}; a bundle's graphs are made "
                "of standard ONNX operators only"
            )
        if operator == "Loop":
            raise Refused("has the operator Loop, which may never end; a bundle's graphs repeat with Scan")
        for part in _parts(node, "attribute"):
            attribute = self._message(part, _ATTRIBUTE, "an attribute")
            if attribute["ref_attr_name"] or attribute["sparse_tensor"] or attribute["sparse_tensors"]:
                raise Refused(f"has an attribute of {shown(operator)} that is sparse or belongs to a function")
            for tensor in (*_parts(attribute, "t"), *_parts(attribute, "tensors")):
                self._inline(self._message(tensor, _TENSOR, "a tensor"))
            for graph in (*_parts(attribute, "g"), *_parts(attribute, "graphs")):
                self._graph(graph, depth + 1)

    def _values(self, graph: _Found, what: str, expected: tuple[Value, ...]) -> None:
        found = []
        for part in _parts(graph, what):
            value = self._message(part, _VALUE, f"an {what}")
            element = 0
            for kind in _parts(value, "type"):
                for tensor in _parts(self._message(kind, _TYPE, "the type of a value"), "tensor_type"):
                    element = _number(self._message(tensor, _TENSOR_TYPE, "the type of a value"), "elem_type")
            dtype = _OF_ONNX.get(element)
            found.append((_text(value, "name"), f"type {element}" if dtype is None else dtype.name))
        if found != [(value.name, value.dtype) for value in expected]:
            named = ", ".join(f"{shown(name)} ({dtype})" for name, dtype in found[:20]) or "none"
            wanted = ", ".join(f"{value.name} ({value.dtype})" for value in expected) or "none"
            raise Refused(f"has the {what}s {named}; the manifest names {wanted}")

    def _is_weight(self, tensor: _Found) -> bool:
        """Whether an initializer of the main graph is one of the weights; refused if it is not exactly that."""
        location = _number(tensor, "data_location")
        if location == 0 and not tensor["external_data"]:
            self._inline(tensor)
            return False
        name = _text(tensor, "name")
        if location != _EXTERNAL or any(tensor[field] for field in ("raw_data", "segment", "string_data")):
            raise Refused(f"initializer {shown(name)} has its numbers both inside and outside, or in parts")
        facts = {}
        for part in _parts(tensor, "external_data"):
            pair = self._message(part, _PAIR, "the place of external data")
            key = _text(pair, "key")
            if key in facts or key not in ("location", "offset", "length"):
                raise Refused(f"initializer {shown(name)} has an unknown or second {shown(key)} of external data")
            facts[key] = _text(pair, "value")
        file = WEIGHTS.rpartition("/")[2]
        if facts.get("location") != file:
            raise Refused(
                f"initializer {shown(name)} lies in {shown(facts.get('location', ''))}; external data lies in {file}"
            )
        extent = self._weights.get(name)
        if extent is None:
            raise Refused(f"needs the weight {shown(name)}, which {WEIGHTS} does not hold")
        if facts != {"location": file, "offset": str(extent.start), "length": str(extent.length)}:
            raise Refused(
                f"initializer {shown(name)} lies at offset {shown(facts.get('offset', '0'))} with length "
                f"{shown(facts.get('length', 'unknown'))}, but the weight at {extent.start} with {extent.length}"
            )
        dtype, shape = _OF_ONNX.get(_number(tensor, "data_type")), self._dims(tensor)
        if dtype != extent.dtype or shape != extent.shape:
            raise Refused(
                f"initializer {shown(name)} is {dtype} {list(shape)[:8]}, but the weight {extent.dtype} "
                f"{list(extent.shape)}"
            )
        return True

    def _inline(self, tensor: _Found) -> None:
        """A tensor with its numbers in the graph itself."""
        name = shown(_text(tensor, "name"))
        if tensor["external_data"] or _number(tensor, "data_location") != 0:
            raise Refused(f"tensor {name} has external data, which only initializers of the main graph may have")
        if tensor["segment"]:
            raise Refused(f"tensor {name} is a part of another")
        elements = math.prod(self._dims(tensor))
        dtype = _OF_ONNX.get(_number(tensor, "data_type"))
        raw = _parts(tensor, "raw_data")
        if raw and dtype is not None and len(raw[0]) != elements * dtype.itemsize:
            raise Refused(f"tensor {name} has {len(raw[0])} bytes for {elements} elements of {dtype}")

    def _dims(self, tensor: _Found) -> tuple[int, ...]:
        dims = tuple(number for number in tensor["dims"] if isinstance(number, int))
        if len(dims) > 32 or math.prod(max(1, axis) for axis in dims) > _ELEMENTS_LIMIT:
            raise Refused(f"tensor {shown(_text(tensor, 'name'))} has a shape that no memory can hold")
        return dims

    def _message(self, data: memoryview, fields: Mapping[int, _Field], what: str) -> _Found:
        """Fields by name. Repeated numbers come out one by one, packed or not."""
        found: _Found = {field.name: [] for field in fields.values()}
        at, end = 0, len(data)
        while at < end:
            self._count_part()
            tag, at = _varint(data, at, 5)
            field = fields.get(tag >> 3)
            if field is None or tag >= 1 << 32:
                raise Refused(f"has a part {tag >> 3} of {what} that IR version {IR_VERSIONS[-1]} does not know")
            kind = _KINDS.get(tag & 7)
            values = found[field.name]
            if values and not field.many:
                raise Refused(f"has the {field.name} of {what} twice: it is damaged or forged")
            if kind == _VARINT:
                value, at = _varint(data, at, 10)
            elif kind == _BYTES:
                size, at = _varint(data, at, 5)
                value, at = data[at : at + size], at + size
            elif kind is not None:
                size = 8 if kind == _FIXED_64 else 4
                value, at = int.from_bytes(data[at : at + size], "little"), at + size
            else:
                raise Refused(f"has the {field.name} of {what} in an encoding that is not used: it is damaged")
            if at > end:
                raise Refused(f"ends inside {what}: it is cut off or damaged")
            if kind == field.kind:
                values.append(value)
            elif kind == _BYTES and field.many and isinstance(value, memoryview):
                self._unpack(value, field, values)
            else:
                raise Refused(f"has the {field.name} of {what} in the wrong encoding: it is damaged or forged")
        return found

    def _unpack(self, data: memoryview, field: _Field, values: list[int | memoryview]) -> None:
        if field.kind != _VARINT:
            if len(data) % (8 if field.kind == _FIXED_64 else 4):
                raise Refused(f"has a {field.name} that is cut off: it is damaged")
            return  # Only whole numbers are ever looked at.
        at = 0
        while at < len(data):
            self._count_part()
            value, at = _varint(data, at, 10)
            values.append(value)

    def _count_part(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Refused(f"has more than {FIELDS_LIMIT} parts: large arrays belong into {WEIGHTS}")


def _varint(data: memoryview, at: int, limit: int) -> tuple[int, int]:
    value = 0
    for index in range(limit):
        if at + index >= len(data):
            raise Refused("ends inside a number: it is cut off or damaged")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= 1 << 64:
                raise Refused("has a number of more than 64 bits: it is damaged")
            return value, at + index + 1
    raise Refused("has a number that does not end: it is damaged")


def _parts(message: _Found, name: str) -> list[memoryview]:
    return [part for part in message[name] if isinstance(part, memoryview)]


def _number(message: _Found, name: str) -> int:
    values = message[name]
    return values[0] if values and isinstance(values[0], int) else 0


def _text(message: _Found, name: str) -> str:
    parts = _parts(message, name)
    try:
        return bytes(parts[0]).decode() if parts else ""
    except UnicodeDecodeError:
        raise Refused(f"has a {name} that is no UTF-8 text: it is damaged") from None
