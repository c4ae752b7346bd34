"""Bundles that were damaged, or made to do harm: each is refused in one sentence, and nothing is touched."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from edge_bundles import DRIVE, GRAPHS, OUTPUTS, STATES, TOKENS, Case, case, external, graph, information, sealed
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.edge._graph_check import check_graph, parse_header
from reservoir_hw.readout.edge.bundle import Bundle, write_bundle
from reservoir_hw.readout.edge.manifest import WEIGHTS, Refused, Segment, parse_manifest
from reservoir_hw.readout.edge.sessions import make_session

GOLDEN = "golden.safetensors"


def _tree(root: Path) -> dict[str, Any]:
    """All there is below a folder: kinds, sizes, contents."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 20 else path.lstat().st_size,
        )
        for path in sorted(root.rglob("*"))
    }


def _refused(path: Path, why: str, root: Path) -> None:
    """Opening raises one sentence, in a second, and leaves everything as it was."""
    before, began = _tree(root), time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        Bundle.open(path)
    # Far above what any of them takes; a bomb would be seen.
    assert time.process_time() - began < 5
    message = str(caught.value)
    assert message.startswith(f"bundle {path}: ")
    assert re.search(why, message), message
    assert message.isprintable()
    assert len(message) - len(str(path)) < 500
    assert _tree(root) == before


def _one_sentence(error: Exception) -> None:
    assert str(error).isprintable()


def _good_zip(folder: Path) -> Path:
    made = case()
    write_bundle(folder / "good.rhw", made.facts, made.files)
    return folder / "good.rhw"


# Names: what is inside a zip, and where it claims to lie.


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.tensors", "/etc/evil.tensorss", "graphs/../../evil1", "C:\\evil.tensors12", "C:/evil.tensors123",
        "a\\..\\..\\evil.tens", "graphs//evil.tenso", "./golden.tensors12", "evil\x00.safetensors",
        "evil\x1b[2Jtensorss",
        ".hidden.safetensor", "golden.safetensor.", "golden.safetensor ", "golden/safetensor/", "a/b/c/d/evil.tenso",
        "golden\nsafetensor1", "g\xf6lden.safetensors"[:18], "~/golden.safetens1",
    ],
)  # fmt: skip
def test_names_in_a_zip(tmp_path: Path, name: str) -> None:
    name = f"{name:x<18}"[: len(GOLDEN)]
    data = _good_zip(tmp_path).read_bytes().replace(GOLDEN.encode(), name.encode("latin-1"))
    (tmp_path / "bad.rhw").write_bytes(data)
    _refused(tmp_path / "bad.rhw", "holds a file called .*; a name is a relative path", tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a\\b", "C:x", "", "graphs/", "a\n", "graphs/.x"])
def test_names_in_a_manifest(tmp_path: Path, name: str) -> None:
    made = case()
    manifest = made.manifest()
    manifest["files"][name] = {"bytes": 0, "sha256": "0" * 64}
    made.forge(tmp_path / "bad", json.dumps(sealed(manifest)).encode())
    _refused(tmp_path / "bad", "manifest.json: holds a file called", tmp_path)


# Zip files.


def _central(data: bytearray, name: str) -> int:
    return data.rindex(name.encode()) - 46


def _local(data: bytearray, name: str) -> int:
    return data.index(name.encode()) - 30


def _patch(data: bytearray, at: int, kind: str, value: int) -> None:
    struct.pack_into(f"<{kind}", data, at, value)


def _both(data: bytearray, name: str, local: int, central: int, kind: str, value: int) -> None:
    _patch(data, _local(data, name) + local, kind, value)
    _patch(data, _central(data, name) + central, kind, value)


def _other_size(data: bytearray) -> None:
    _patch(data, _central(data, GOLDEN) + 20, "I", 10)
    _patch(data, _central(data, GOLDEN) + 24, "I", 10)


def _larger_than_the_file(data: bytearray) -> None:
    for local, central in ((18, 20), (22, 24)):
        _both(data, "tokenizer.json", local, central, "I", 1 << 30)


def _overlap(data: bytearray) -> None:
    """The entry of the second graph points to the first one's data, as overlapping bombs do."""
    start = struct.unpack_from("<I", data, _central(data, GRAPHS[0]) + 42)[0]
    _patch(data, _central(data, GRAPHS[1]) + 42, "I", start)


def _in_front(data: bytearray) -> None:
    data[:0] = b"PK\x03\x04" + b"#!/bin/sh\n" * 10


def _gap(data: bytearray) -> None:
    at = struct.unpack_from("<I", data, len(data) - 6)[0]
    data[at:at] = b"hidden" * 10
    _patch(data, len(data) - 6, "I", at + 60)


def _comment(data: bytearray) -> None:
    _patch(data, len(data) - 2, "H", 7)
    data += b"comment"


def _zip64_end(data: bytearray, **lies: int) -> None:
    """Add the end of a large zip file, whose numbers count for `zipfile`."""
    count, size, start = struct.unpack_from("<HII", data, len(data) - 12)
    facts = {"count": count, "size": size, "start": start, **lies}
    numbers = (facts["count"], facts["count"], facts["size"], facts["start"])
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, *numbers)
    at = len(data) - 22
    data[at:at] = record + struct.pack("<4sIQI", b"PK\x06\x07", 0, at, 1)


ZIPS: dict[str, tuple[Callable[[bytearray], object], str]] = {
    "encrypted": (lambda data: _both(data, GOLDEN, 6, 8, "H", 1), "'golden.safetensors' is encrypted"),
    "data descriptor": (lambda data: _both(data, GOLDEN, 6, 8, "H", 8), "sizes behind its data"),
    "compressed": (
        lambda data: _both(data, GOLDEN, 8, 10, "H", 8), r"is compressed: zip it without compression \(zip -0 ",
    ),
    "other size": (_other_size, "bytes that belong to no entry"),
    "larger than the file": (_larger_than_the_file, "overlaps with another entry"),
    "two sizes": (lambda data: _both(data, "tokenizer.json", 22, 24, "I", 1 << 30), "is compressed"),
    "name in one": (
        lambda data: data.__setitem__(slice(_local(data, GOLDEN) + 30, _local(data, GOLDEN) + 36), b"silver"),
        "'golden.safetensors' has another name where its bytes begin",
    ),
    "crc": (lambda data: _both(data, GOLDEN, 14, 16, "I", 1), "golden.safetensors: does not have the CRC"),
    "overlap": (_overlap, "'graphs/segment_1.onnx' overlaps"),
    "link": (
        lambda data: _patch(data, _central(data, GOLDEN) + 38, "I", (stat.S_IFLNK | 0o777) << 16),
        "'golden.safetensors' is a link, a folder or a device",
    ),
    "in front": (_in_front, "bytes that belong to no entry lie before it"),
    "gap": (_gap, "bytes that belong to no entry"),
    "behind": (lambda data: data.extend(b"behind"), "more behind its end"),
    "comment": (_comment, "has a comment"),
    "directory elsewhere": (lambda data: _zip64_end(data, start=1 << 63), "overlaps|damaged"),
    "directory of any size": (lambda data: _zip64_end(data, size=1 << 62), "zip file is damaged"),
    "cut off": (lambda data: data.__delitem__(slice(len(data) - 1, None)), "or is cut off"),
    "empty": (lambda data: data.clear(), "is no zip file"),
}  # fmt: skip


@pytest.mark.parametrize("name", ZIPS)
def test_zip_files(tmp_path: Path, name: str) -> None:
    forge, why = ZIPS[name]
    data = bytearray(_good_zip(tmp_path).read_bytes())
    forge(data)
    (tmp_path / "bad.rhw").write_bytes(data)
    _refused(tmp_path / "bad.rhw", why, tmp_path)


def test_what_is_strange_and_fine(tmp_path: Path) -> None:
    """The end of a large zip; a hard link, as copies and file systems make them; graphs within standard operators."""
    data = bytearray(_good_zip(tmp_path).read_bytes())
    _zip64_end(data)
    (tmp_path / "fine.rhw").write_bytes(data)
    good = case()
    good.files[GRAPHS[0]] = _bytes(_nodes(_if(_scan(helper.make_node("Relu", ["in"], ["out"])))))
    folder = good.forge(tmp_path / "good")
    os.link(folder / WEIGHTS, tmp_path / "another name")
    for path in (tmp_path / "fine.rhw", folder):
        Bundle.open(path).close()


def test_a_directory_as_long_as_the_disk_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "bad.rhw", "wb") as file:
        file.seek((1 << 32) - 2)
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, (1 << 32) - 2, 0, 0))
    _refused(tmp_path / "bad.rhw", "its directory says that it has 4294967294 bytes", tmp_path)


def _zipped(path: Path, *changes: tuple[zipfile.ZipInfo | str, bytes, int]) -> Path:
    made = case()
    with zipfile.ZipFile(path, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in {**made.files, "manifest.json": json.dumps(made.manifest()).encode()}.items():
            file.writestr(name, data)
        for name, data, method in changes:
            file.writestr(name, data, method)
    return path


def test_zip_files_by_other_tools(tmp_path: Path) -> None:
    bomb = _zipped(tmp_path / "bomb.rhw", ("extra.bin", bytes(50 << 20), zipfile.ZIP_DEFLATED))
    assert bomb.stat().st_size < 100_000
    _refused(bomb, "'extra.bin' is compressed", tmp_path)
    twice = _zipped(tmp_path / "twice.rhw", ("tokenizer.json", b"other", zipfile.ZIP_STORED))
    _refused(twice, "holds 'tokenizer.json' twice", tmp_path)
    case_ = _zipped(tmp_path / "case.rhw", ("Tokenizer.JSON", b"other", zipfile.ZIP_STORED))
    _refused(case_, "holds both tokenizer.json and Tokenizer.JSON", tmp_path)
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    _refused(_zipped(tmp_path / "link.rhw", (link, b"/etc/passwd", zipfile.ZIP_STORED)), "'link' is a link", tmp_path)
    climbing = _zipped(tmp_path / "climb.rhw", ("../../climbed", b"", zipfile.ZIP_STORED))
    _refused(climbing, "called '../../climbed'", tmp_path)
    folder = _zipped(tmp_path / "folder.rhw", ("folder/", b"", zipfile.ZIP_STORED))
    _refused(folder, "called 'folder/'", tmp_path)
    below = _zipped(tmp_path / "below.rhw", ("tokenizer.json/x", b"", zipfile.ZIP_STORED))
    _refused(below, "'tokenizer.json' as a file and as a folder", tmp_path)
    extra = _zipped(tmp_path / "extra.rhw", ("extra.py", b"import os", zipfile.ZIP_STORED))
    _refused(extra, "manifest.json: does not list extra.py", tmp_path)
    many = _zipped(tmp_path / "many.rhw", *((f"f{index}", b"", zipfile.ZIP_STORED) for index in range(1000)))
    _refused(many, "more than 1000 files", tmp_path)


# Folders.


def _move_out(bad: Path, name: str) -> Path:
    outside = bad.parent / "outside"
    (bad / name).rename(outside)
    return outside


def _link_file(bad: Path) -> None:
    (bad / GOLDEN).symlink_to(_move_out(bad, GOLDEN))


def _fifo(bad: Path) -> None:
    (bad / GOLDEN).unlink()
    os.mkfifo(bad / GOLDEN)


def _hard_link(bad: Path) -> None:
    (bad.parent / "secret").write_bytes(b"x" * (bad / "tokenizer.json").stat().st_size)
    (bad / "tokenizer.json").unlink()
    os.link(bad.parent / "secret", bad / "tokenizer.json")


def _many(bad: Path) -> None:
    for index in range(1001):
        (bad / f"f{index}").touch()


def _deep(bad: Path) -> None:
    (bad / "/".join("abcdefgh")).mkdir(parents=True)


def _sparse_manifest(bad: Path) -> None:
    with open(bad / "manifest.json", "wb") as file:
        file.truncate(1 << 40)


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link to a file": (_link_file, "'golden.safetensors' is a link"),
    "link as the manifest": (
        lambda bad: (bad / "manifest.json").symlink_to(_move_out(bad, "manifest.json")), "'manifest.json' is a link",
    ),
    "FIFO": (_fifo, "'golden.safetensors' is neither a file nor a folder"),
    "hard link to another file": (_hard_link, "tokenizer.json: does not have the SHA-256"),
    "extra file": (lambda bad: (bad / "graphs" / "x.so").touch(), "does not list graphs/x.so"),
    "empty folder": (lambda bad: (bad / "empty").mkdir(), "lists nothing in the folder 'empty'"),
    "deep folders": (_deep, "called 'a/b/c/d/e'"),
    "many files": (_many, "more than 1000 files"),
    "missing file": (lambda bad: (bad / "tokenizer.json").unlink(), "lists tokenizer.json, which the bundle does not"),
    "missing manifest": (lambda bad: (bad / "manifest.json").unlink(), "has no manifest.json"),
    "truncated file": (lambda bad: os.truncate(bad / WEIGHTS, 100), "weights.safetensors: has 100 bytes"),
    "longer file": (lambda bad: (bad / GOLDEN).write_bytes((bad / GOLDEN).read_bytes() + b"\0"), "manifest says"),
    "sparse manifest": (_sparse_manifest, "manifest.json: has 1099511627776 bytes, more than the 4194304"),
}  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="links, FIFOs and sparse files")
@pytest.mark.parametrize("name", FOLDERS)
def test_folders(tmp_path: Path, name: str) -> None:
    forge, why = FOLDERS[name]
    bad = case().forge(tmp_path / "bad")
    forge(bad)
    _refused(bad, why, tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="sockets in the file system")
def test_what_is_no_bundle_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refused(tmp_path / "nowhere", "there is nothing at this path", tmp_path)
    os.mkfifo(tmp_path / "fifo")
    _refused(tmp_path / "fifo", "neither a folder nor a file", tmp_path)
    monkeypatch.chdir(tmp_path)  # The name of a socket is at most 108 bytes long.
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
        _refused(tmp_path / "socket", "neither a folder nor a file", tmp_path)
    (tmp_path / "empty").mkdir()
    _refused(tmp_path / "empty", "has no manifest.json", tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    _refused(tmp_path / "loop", "cannot be read: ", tmp_path)


# Manifests.


def _text(**changes: Any) -> bytes:
    return json.dumps(case().manifest(**changes)).encode()


def _without(key: str) -> bytes:
    manifest = case().manifest()
    del manifest[key]
    return json.dumps(manifest).encode()


def _lists_itself() -> bytes:
    manifest = case().manifest()
    manifest["files"]["manifest.json"] = {"bytes": 1, "sha256": "0" * 64}
    return json.dumps(sealed(manifest)).encode()


def _graph_elsewhere() -> bytes:
    return _resealed(_text().replace(b"graphs/segment_0.onnx", GOLDEN.encode(), 1))


def _resealed(text: bytes) -> bytes:
    return json.dumps(sealed(json.loads(text))).encode()


def _two_cases() -> bytes:
    manifest = case().manifest()
    manifest["files"]["Golden.safetensors"] = manifest["files"][GOLDEN]
    return json.dumps(sealed(manifest)).encode()


MANIFESTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "too large": (lambda: _text() + b" " * (4 << 20), "more than the 4194304 of a manifest"),
    "empty": (lambda: b"", "is no JSON"),
    "no JSON": (lambda: b"{'format': 1}", "is no JSON"),
    "nested lists": (lambda: b"[" * 1_000_000, "is nested too deeply"),
    "nested in the middle": (lambda: _text(provenance=0).replace(b'"provenance": 0', b'"provenance": {"a": '
                             + b"[" * 5000 + b"]" * 5000 + b"}"), "nested too deeply|recursion"),
    "NaN": (lambda: _text(provenance={"x": float("nan")}), "NaN is no JSON number"),
    "too large a number": (lambda: _text(provenance=0).replace(b'"provenance": 0', b'"provenance": {"a": 1e999}'),
                           "a number is too large"),
    "twice": (lambda: _text()[:-1] + b', "precision": "int8"}', "a name occurs twice"),
    "array": (lambda: b"[]", "is no JSON object"),
    "other format": (lambda: _text(format="reservoir_hw.ridge"), "has the format 'reservoir_hw.ridge'"),
    "newer": (lambda: _text(version=5), "made by a newer version of reservoir-hw, and this one reads version 4"),
    "older": (lambda: _text(version=3), "has version 3 of the format, and this reservoir-hw reads version 4"),
    "classes for another width": (lambda: _text(input=DRIVE, series={"inputs": [{"name": "u"}], "classes": ["a", "b"]}),
                                  "series does not name the channels of the input and the output"),
    "a column that a terminal obeys": (lambda: _text(series={"inputs": [{"name": "\x1b[2J"}], "classes": ["a", "b"]}),
                                       "series.inputs.0.name: Value error, holds characters"),
    "a gain of 0": (lambda: _text(series={"inputs": [{"name": "u", "gain": 0}], "classes": ["a", "b"]}),
                    "series.inputs.0.gain: Input should be greater than 0"),
    "version 0": (lambda: _text(version=0), "which is no version of the format"),
    "missing field": (lambda: _without("segments"), "segments: Field required"),
    "unknown field": (lambda: _text(execute="rm -rf /"), "execute: Extra inputs are not permitted"),
    "many unknown fields": (lambda: _text(**{f"a{i}": i for i in range(50)}), r"\(and 49 more\)"),
    "wrong type": (lambda: _text(model=5), "model: Input should be a valid string"),
    "value before it is there": (lambda: _text(crossings=[]), "reads states_0 before it is computed"),
    "strange name of a value": (lambda: _text().replace(b'"drive_0"', b'"../drive"'), "should match pattern"),
    "hash": (lambda: _text().replace(b'"sha256": "', b'"sha256": "x', 1), "sha256"),
    "huge size": (lambda: _resealed(re.sub(rb'"bytes": \d+', b'"bytes": 1' + b"0" * 30, _text(), count=1)),
                  "the manifest says 1"),
    "another number": (lambda: _text().replace(b'"spread": 1.0', b'"spread": 2.0', 1),
                       "manifest.json: does not have the SHA-256 that it names"),
    "without its hash": (lambda: _without("manifest_sha256"), "manifest.json: does not have the SHA-256"),
    "lists itself": (_lists_itself, "lists itself"),
    "two cases": (_two_cases, "holds both"),
    "graph elsewhere": (_graph_elsewhere, "does not lie beside graphs/weights.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(tmp_path: Path, name: str) -> None:
    forge, why = MANIFESTS[name]
    bad = case().forge(tmp_path / "bad", forge())
    _refused(bad, why, tmp_path)


# Weights.


def _header(described: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    text += b" " * (-len(text) % 8) if length is None else b""
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _array(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


EIGHT = bytes(8)
HEADERS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "too short"),
    "length": (_header({}, length=1 << 63), "has a header of 9223372036854775808 bytes"),
    "longer than the file": (_header({}, length=1000), "but only 10 bytes in all"),
    "no JSON": (_header(b"\x80\x04K\x01.   "), "no JSON"),
    "nested": (_header(b"[" * 100_000), "nested too deeply"),
    "array": (_header([]), "no JSON object"),
    "twice": (_header(b'{"a": %s, "a": %s}' % ((json.dumps(_array()).encode(),) * 2), EIGHT), "a name occurs twice"),
    "dtype": (_header({"a": _array("BF16", (4,))}, EIGHT), "has the dtype 'BF16'"),
    "negative axis": (_header({"a": _array(shape=(-2,))}, EIGHT), "no valid shape"),
    "axis 2.0": (_header({"a": _array(shape=(2.0,))}, EIGHT), "no valid shape"),
    "many axes": (_header({"a": _array(shape=(1,) * 63 + (2,))}, EIGHT), "no valid shape"),
    "overflow": (_header({"a": _array(shape=(1 << 32, 1 << 32, 2))}, EIGHT), "no valid shape"),
    "overflow to the right size": (_header({"a": _array("I8", ((1 << 61) + 1, 8))}, EIGHT), "no valid shape"),
    "empty but huge": (_header({"a": _array(shape=(0, 1 << 60), offsets=(0, 0))}), "no valid shape"),
    "too large": (_header({"a": _array(shape=(3,))}, EIGHT), "does not fit into its 8 bytes"),
    "negative offset": (_header({"a": _array(offsets=(-8, 0))}, EIGHT), "no valid data_offsets"),
    "backwards": (_header({"a": _array(offsets=(8, 0))}, EIGHT), "no valid data_offsets"),
    "beyond the file": (_header({"a": _array(offsets=(8, 16))}, EIGHT), "does not begin where"),
    "overlap": (_header({"a": _array(), "b": _array()}, EIGHT), "overlaps with another"),
    "gap": (_header({"a": _array(offsets=(8, 16))}, EIGHT * 2), "does not begin where"),
    "bytes behind": (_header({"a": _array()}, EIGHT * 2), "its arrays end at"),
    "unaligned": (_header({"a": _array("I8", (1,), (0, 1)), "b": _array("F32", (2,), (1, 9))}, bytes(9)),
                  "does not begin at a multiple of 4"),
    "unaligned header": (_header(b'{"a": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT, 55),
                         "does not begin at a multiple of 4"),
    "name": (_header({"a\x1b[2J": _array()}, EIGHT), "has an array called"),
}  # fmt: skip


@pytest.mark.parametrize("file", [WEIGHTS, GOLDEN])
@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_weights(tmp_path: Path, name: str, file: str) -> None:
    data, why = HEADERS[name]
    bad = case()
    bad.files[file] = data
    _refused(bad.forge(tmp_path / "bad"), f"{file}: .*{why}", tmp_path)


# Graphs.


def _first(**changes: Any) -> onnx.ModelProto:
    """The first segment; `changes` make the place of its weights lie."""
    tensor = external(case().files[WEIGHTS], "embedding", **changes)
    return graph([helper.make_node("Gather", [tensor.name, "tokens"], ["drive_0"])], TOKENS, DRIVE, [tensor])


def _nodes(*nodes: onnx.NodeProto, tensors: tuple[onnx.TensorProto, ...] = (), **options: Any) -> onnx.ModelProto:
    return graph(nodes, TOKENS, DRIVE, tensors, **options)


def _inner(node: onnx.NodeProto, *tensors: onnx.TensorProto) -> onnx.GraphProto:
    body = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("in", "out")]
    return helper.make_graph([node], "body", body[:1], body[1:], initializer=list(tensors))


EVIL = helper.make_node("Shell", ["in"], ["out"], domain="com.evil")
SCAN: dict[str, Any] = {"num_scan_inputs": 1}


def _scan(node: onnx.NodeProto, *tensors: onnx.TensorProto) -> onnx.NodeProto:
    return helper.make_node("Scan", ["tokens"], ["drive_0"], body=_inner(node, *tensors), **SCAN)


def _if(node: onnx.NodeProto) -> onnx.NodeProto:
    fine = _inner(helper.make_node("Identity", ["in"], ["out"]))
    return helper.make_node("If", ["tokens"], ["drive_0"], then_branch=fine, else_branch=_inner(node))


def _deeper(depth: int) -> onnx.NodeProto:
    node = helper.make_node("Identity", ["in"], ["out"])
    for _ in range(depth):
        node = helper.make_node("Scan", ["in"], ["out"], body=_inner(node), **SCAN)
    return node


def _constant(tensor: onnx.TensorProto) -> onnx.NodeProto:
    node = helper.make_node("Constant", [], ["drive_0"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    return node


def _changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = _first()
    change(model)
    return model


def _function(model: onnx.ModelProto) -> None:
    function = helper.make_function(
        "", "Gather", ["a", "b"], ["c"], [helper.make_node("Add", ["a", "b"], ["c"])], [helper.make_opsetid("", 17)]
    )
    model.functions.append(function)


def _raw_and_external() -> onnx.ModelProto:
    tensor = external(case().files[WEIGHTS], "embedding")
    tensor.raw_data = bytes(84)
    return _nodes(tensors=(tensor,))


def _sparse_initializer(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().values.name = "sparse"


def _quietly_external() -> onnx.ModelProto:
    """Says that it is inside, but names a file."""
    tensor = external(case().files[WEIGHTS], "embedding", location="/etc/passwd")
    tensor.data_location = TensorProto.DEFAULT
    return _nodes(tensors=(tensor,))


def _declared_as(model: onnx.ModelProto, value: dict[str, Any]) -> None:
    model.graph.output[0].CopyFrom(information(value))


def _bytes(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes in protobuf's wire format."""
    return bytes(_number(number << 3 | 2)) + bytes(_number(len(data))) + data


def _number(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value


def _node() -> bytes:
    return EVIL.SerializeToString()


def _nested_bytes(depth: int) -> bytes:
    """Graphs inside graphs, far deeper than any recursion."""
    data = b""
    for _ in range(depth):
        data = _field(1, _field(5, _field(6, data)))
    return _head() + _field(7, data)


def _head() -> bytes:
    model = _first()
    model.ClearField("graph")
    return _bytes(model)


def _huge_location() -> bytes:
    """The data location 2^32 + 1: one reader sees a large number, another, with 32 bits, external data."""
    tensor = _bytes_of_tensor() + bytes(_number(14 << 3)) + bytes(_number((1 << 32) + 1))
    inside = _first().graph
    inside.ClearField("initializer")
    return _head() + _field(7, inside.SerializeToString() + _field(5, tensor))


def _bytes_of_tensor() -> bytes:
    tensor = external(case().files[WEIGHTS], "embedding")
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")
    return tensor.SerializeToString()


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto | bytes], str]] = {
    "custom operator": (lambda: _nodes(EVIL), "operator 'Shell' of the domain 'com.evil'; "),
    "in a Scan": (lambda: _nodes(_scan(EVIL)), "operator 'Shell' of the domain 'com.evil' inside another"),
    "in a Scan in an If": (lambda: _nodes(_if(_scan(EVIL))), "'com.evil' inside another"),
    "other operator set": (lambda: _nodes(opsets=[("", 13)]), "operator sets 'ai.onnx' 13; .* use ONNX 17 only"),
    "second operator set": (lambda: _nodes(opsets=[("", 17), ("com.evil", 1)]), "'com.evil' 1"),
    "newer IR": (lambda: _nodes(ir_version=14), "IR version 14"),
    "local function": (lambda: _changed(_function), "has local functions"),
    "training": (lambda: _changed(lambda model: model.training_info.add()), "has training information"),
    "sparse": (lambda: _changed(_sparse_initializer), "has sparse initializers"),
    "climbing": (lambda: _first(location="../../../etc/passwd"), "lies in '../../../etc/passwd'; external data lies"),
    "control characters": (lambda: _first(location="\x1b[2J\n"), r"lies in '\\x1b\[2J\\n'"),
    "no location": (lambda: _first(location=None), "lies in ''"),
    "offset": (lambda: _first(offset=0), "lies at offset '0'"),
    "offset with a sign": (lambda: _first(offset="+296"), "lies at offset"),
    "length": (lambda: _first(length=1 << 40), "with length '1099511627776'"),
    "no length": (lambda: _first(length=None), "with length 'unknown'"),
    "checksum": (lambda: _first(checksum="x"), "unknown or second 'checksum'"),
    "name of another weight": (lambda: _first(name="readout"), "lies at offset"),
    "unknown weight": (lambda: _first(name="elsewhere"), "needs the weight 'elsewhere'"),
    "shape": (lambda: _first(dims=[3, 7]), r"is float32 \[3, 7\], but the weight float32 \[7, 3\]"),
    "huge shape": (lambda: _first(dims=[1 << 40, 1 << 40]), "no memory can hold"),
    "type": (lambda: _first(data_type=TensorProto.INT32), "is int32"),
    "inside and outside": (_raw_and_external, "both inside and outside"),
    "quietly outside": (_quietly_external, "both inside and outside|unknown|has its numbers|lies in '/etc/passwd'"),
    "outside in a Scan": (
        lambda: _nodes(_scan(helper.make_node("Add", ["in", "embedding"], ["out"]),
                             external(case().files[WEIGHTS], "embedding"))),
        "which only initializers of the main graph may have",
    ),
    "outside in a Constant": (
        lambda: _nodes(_constant(external(case().files[WEIGHTS], "embedding", location="/etc/passwd"))),
        "which only initializers of the main graph may have",
    ),
    "bytes of a Constant": (
        lambda: _nodes(_constant(TensorProto(data_type=1, dims=[1 << 20], raw_data=bytes(8)))),
        "has 8 bytes for 1048576 elements",
    ),
    "weight twice": (
        lambda: _changed(lambda model: model.graph.initializer.append(model.graph.initializer[0])), "of one name",
    ),
    "input with a value": (
        lambda: _changed(lambda model: model.graph.initializer.append(
            numpy_helper.from_array(np.zeros((1, 1), np.int64), "tokens"))), "as an initializer, too",
    ),
    "other output": (lambda: _changed(lambda model: _declared_as(model, OUTPUTS)), "has the outputs 'outputs'"),
    "other dtype": (
        lambda: _changed(lambda model: _declared_as(model, {**DRIVE, "dtype": "int8"})), r"'drive_0' \(int8\)",
    ),
    "more inputs": (
        lambda: _changed(lambda model: model.graph.input.append(information(STATES))), "has the inputs 'tokens'",
    ),
    "a loop": (lambda: _nodes(helper.make_node("Loop", ["", "", "tokens"], ["drive_0"])), "Loop, which may never end"),
    "deep": (lambda: _nodes(_deeper(9)), "more than 8 deep"),
    "very deep": (lambda: _nested_bytes(2000), "more than 8 deep"),
    "many parts": (lambda: _head() + _field(7, _field(1, b"") * 300_000), "more than 200000 parts"),
    "many numbers": (lambda: _head() + _field(7, _field(5, _field(1, b"\1" * 300_000))), "more than 200000 parts"),
    "no graph": (_head, "has no graph"),
    "two graphs": (lambda: _bytes(_first()) + _field(7, _field(1, _node())), "the graph of the model twice"),
    "two domains": (
        lambda: _head() + _field(7, _field(1, _field(7, b"") + _field(7, b"com.evil"))), "the domain of a node twice",
    ),
    "two locations": (_huge_location, "both inside and outside"),
    "empty": (lambda: b"", "IR version 0"),
    "text": (lambda: b"ir_version: 8 graph {}", "that IR version 8 does not know|cut off|encoding"),
    "newer part": (lambda: _bytes(_first()) + _field(26, b""), "a part 26 of the model"),
    "operator of a newer IR": (lambda: _head() + _field(7, _field(1, _field(8, b"overload"))), "a part 8 of a node"),
    "wrong encoding": (lambda: _head() + b"\x38\x05", "the graph of the model in the wrong encoding"),
    "group": (lambda: _head() + b"\x3b\x3c", "in an encoding that is not used"),
    "endless number": (lambda: _head() + b"\xff" * 30, "number that does not end"),
    "too large a number": (lambda: b"\x08" + b"\xff" * 9 + b"\x7f", "more than 64 bits"),
    "longer than the file": (lambda: _head() + b"\x3a\xff\xff\xff\xff\x0f", "ends inside the model"),
    "too large": (lambda: _bytes(_first()) + _field(6, bytes(16 << 20)), "more than the 16777216 of a graph"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_graphs(tmp_path: Path, name: str) -> None:
    forge, why = MODELS[name]
    bad = case()
    model = forge()
    bad.files[GRAPHS[0]] = model if isinstance(model, bytes) else _bytes(model)
    _refused(bad.forge(tmp_path / "bad"), f"graphs/segment_0.onnx: .*({why})", tmp_path)


def test_an_unknown_operator_of_the_standard_domain_is_refused_by_the_runtime(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = case()
    bad.files[GRAPHS[0]] = _bytes(_nodes(helper.make_node("Shell", ["tokens"], ["drive_0"])))
    with (
        Bundle.open(bad.forge(tmp_path / "bad")) as bundle,
        pytest.raises(ConfigurationError, match=r"onnxruntime .* cannot load segment 0 of .*Shell"),
    ):
        make_session(bundle, 0)
    assert capfd.readouterr() == ("", "")


# Any damage: an error, or the same content.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, Case]:
    folder = tmp_path_factory.mktemp("whole")
    return folder / "bad.rhw", _good_zip(folder).read_bytes(), case()


def _opens_as(path: Path, made: Case) -> None:
    try:
        bundle = Bundle.open(path)
    except ConfigurationError as error:
        _one_sentence(error)
        return
    with bundle:
        # Of a file that leaves defaults out, the manifest's own hash is another one.
        found, wanted = (
            one.model_copy(update={"manifest_sha256": None})
            for one in (bundle.manifest, parse_manifest(json.dumps(made.manifest()).encode()))
        )
        assert found == wanted
        for name, data in made.files.items():
            assert bundle.read(name) == data


@settings(deadline=None, max_examples=150)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), tail=st.booleans())
def test_a_flipped_bit_in_a_zip(whole: tuple[Path, bytes, Case], place: float, bit: int, tail: bool) -> None:
    path, data, made = whole
    damaged = bytearray(data)
    # Half of them in the directory, where most of the structure is.
    size = 800 if tail else len(data)
    damaged[len(data) - size + int(place * size)] ^= 1 << bit
    path.write_bytes(damaged)
    _opens_as(path, made)


def test_every_length_of_a_cut_zip(whole: tuple[Path, bytes, Case]) -> None:
    path, data, _ = whole
    for size in range(0, len(data), 23):
        path.write_bytes(data[:size])
        with pytest.raises(ConfigurationError):
            Bundle.open(path)


@pytest.mark.parametrize("name", [*GRAPHS, WEIGHTS, GOLDEN, "tokenizer.json"])
def test_any_flipped_byte_in_a_folder_is_noticed(tmp_path: Path, name: str) -> None:
    made = case()
    bad = made.forge(tmp_path / "bad")
    data = made.files[name]
    for place in range(0, len(data), 17):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        (bad / name).write_bytes(damaged)
        with pytest.raises(ConfigurationError, match=f"{name}: does not have the SHA-256"):
            Bundle.open(bad)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_manifest(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    made = case()
    folder = tmp_path_factory.getbasetemp() / "manifest"
    text = bytearray(_text())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        text[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    _opens_as(made.forge(folder, bytes(text)), made)


def _domains(nodes: Any) -> Iterator[str]:
    for node in nodes:
        yield node.domain
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _domains(inner.node)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_graph_means_the_same_to_the_onnx_package(data: st.DataObject) -> None:
    """What passes the check is what the official reader sees, too: standard operators, and only our weights."""
    made = case()
    places = _places(made.files[WEIGHTS])
    segment = Segment.model_validate(made.facts["segments"][0])
    graphs = [_first(), _nodes(_if(_scan(helper.make_node("Relu", ["in"], ["out"]))))]
    raw = bytearray(_bytes(data.draw(st.sampled_from(graphs))))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(raw)))
        patch = data.draw(st.one_of(st.binary(max_size=6), st.just(_field(7, b"com.evil")), st.just(b"\x70\x01")))
        raw[start : start + data.draw(st.integers(0, 6))] = patch
    try:
        needed = check_graph(bytes(raw), segment, places)
    except Refused as refused:
        _one_sentence(refused)
        return
    try:
        model = onnx.ModelProto.FromString(bytes(raw))
    except DecodeError:
        # Parts that nothing depends on, such as shapes, are not looked into: the runtime refuses them.
        return
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 17)]
    assert not any(_domains(model.graph.node))
    assert [value.name for value in model.graph.input] == ["tokens"]
    assert [value.name for value in model.graph.output] == ["drive_0"]
    outside = [tensor for tensor in model.graph.initializer if tensor.data_location or tensor.external_data]
    assert [tensor.name for tensor in outside] == list(needed)
    for tensor in outside:
        facts = {entry.key: entry.value for entry in tensor.external_data}
        place = places[tensor.name]
        assert facts == {"location": "weights.safetensors", "offset": str(place.start), "length": str(place.length)}


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_header_of_weights(data: st.DataObject) -> None:
    raw = bytearray(case().files[WEIGHTS])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, 300))
        raw[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        places = _places(bytes(raw))
    except Refused as refused:
        _one_sentence(refused)
        return
    ends = [(place.start, place.start + place.length) for place in places.values()]
    assert all(8 <= start <= end <= len(raw) for start, end in ends)


def _places(data: bytes) -> dict[str, Any]:
    return parse_header(lambda start, size: data[start : start + size], len(data))
