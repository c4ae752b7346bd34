"""Bundles written, opened, run and compared."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from edge_bundles import GRAPHS, NODES, VOCABULARY, Case, case, external, weights
from onnx import TensorProto, helper
from safetensors.numpy import save, save_file

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.edge.bundle import Bundle, diff, write_bundle
from reservoir_hw.readout.edge.manifest import WEIGHTS, Manifest
from reservoir_hw.readout.edge.sessions import make_session
from reservoir_hw.readout.edge.verification import verify

FORMS = ["model.rhw", "model"]


@pytest.fixture(params=FORMS)
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = case()
    write_bundle(tmp_path / request.param, made.facts, made.files)
    return tmp_path / request.param


def test_what_is_written_is_read(bundle: Path) -> None:
    made, arrays = case(), weights()
    assert bundle.is_dir() == (bundle.suffix == "")
    with Bundle.open(bundle) as opened:
        assert opened.manifest.model == "ReservoirLM"
        assert opened.manifest.slots[0].identity["model"] == "film"
        assert opened.weights.keys() == arrays.keys()
        for name, array in arrays.items():
            found = opened.weights[name]
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype
            assert not found.flags.writeable
            assert not found.flags.owndata
            with pytest.raises(ValueError, match="read-only"):
                found[0] = 0
        assert opened.graph(1) == made.files[GRAPHS[1]]
        assert set(opened.weights_of(1)) == {"readout", "bias"}
        for name, data in made.files.items():
            assert opened.read(name) == data
            assert opened.sizes[name] == len(data)
        golden = opened.tensors("golden.safetensors")
        assert golden["segment_0/tokens"].dtype == np.int64
        assert not golden["segment_0/tokens"].flags.writeable
        with pytest.raises(ConfigurationError, match=r"model.*: 'nothing': the manifest does not list it"):
            opened.read("nothing")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="reads /proc")
def test_weights_are_mapped_and_stay_after_close(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    array = opened.weights["readout"]
    opened.close()
    del opened
    gc.collect()
    file = bundle / WEIGHTS if bundle.is_dir() else bundle
    assert str(file.resolve()) in Path("/proc/self/maps").read_text()
    np.testing.assert_array_equal(array, weights()["readout"])
    del array
    gc.collect()
    assert str(file.resolve()) not in Path("/proc/self/maps").read_text()


def test_the_same_content_gives_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    made = case()
    write_bundle(tmp_path / "a.rhw", made.facts, made.files)
    write_bundle(tmp_path / "b.rhw", made.facts, dict(reversed(made.files.items())))
    assert (tmp_path / "a.rhw").read_bytes() == (tmp_path / "b.rhw").read_bytes()


def test_a_zip_is_one_for_other_tools_and_its_arrays_are_aligned(tmp_path: Path) -> None:
    made = case()
    write_bundle(tmp_path / "a.rhw", made.facts, made.files)
    with zipfile.ZipFile(tmp_path / "a.rhw") as file:
        assert file.testzip() is None
        for name, data in made.files.items():
            assert file.read(name) == data
            info = file.getinfo(name)
            assert info.compress_type == zipfile.ZIP_STORED
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert stat.S_IMODE(info.external_attr >> 16) == 0o644
        assert (tmp_path / "a.rhw").read_bytes().index(made.files[WEIGHTS]) % 64 == 0
        file.extractall(tmp_path / "folder")
    assert diff(tmp_path / "a.rhw", tmp_path / "folder").identical


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_a_zip_of_other_tools_may_begin_its_arrays_anywhere(tmp_path: Path, shift: int) -> None:
    made = case()
    write_bundle(tmp_path / "a.rhw", made.facts, made.files)
    with zipfile.ZipFile(tmp_path / "a.rhw") as file, zipfile.ZipFile(tmp_path / "b.rhw", "w") as other:
        other.writestr("manifest.json", file.read("manifest.json") + b" " * shift)
        for name in made.files:
            other.writestr(name, file.read(name))
    with Bundle.open(tmp_path / "a.rhw") as ours, Bundle.open(tmp_path / "b.rhw") as theirs:
        for name, array in ours.weights.items():
            np.testing.assert_array_equal(theirs.weights[name], array)
            assert theirs.weights[name].flags.aligned
            assert not theirs.weights[name].flags.writeable


def test_large_sizes_and_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for files above 4 GiB, in which sizes have 64 bits."""
    made = case()
    write_bundle(tmp_path / "small.rhw", made.facts, made.files)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 200)
    write_bundle(tmp_path / "large.rhw", made.facts, made.files)
    monkeypatch.undo()
    assert b"PK\x06\x06" in (tmp_path / "large.rhw").read_bytes()
    with zipfile.ZipFile(tmp_path / "large.rhw") as file:
        assert file.testzip() is None
        assert file.read(WEIGHTS) == made.files[WEIGHTS]
    assert diff(tmp_path / "small.rhw", tmp_path / "large.rhw").identical
    assert verify(tmp_path / "large.rhw").passed


def test_contents_may_be_pieces(tmp_path: Path) -> None:
    made = case()
    graph = made.files[GRAPHS[0]]

    def pieces() -> Iterator[bytes | memoryview]:
        yield graph[:10]
        yield np.frombuffer(graph[10:], np.uint8).data

    files = {**made.files, GRAPHS[0]: pieces()}
    manifest = write_bundle(tmp_path / "a.rhw", made.facts, files)
    assert manifest.files[GRAPHS[0]].sha256 == hashlib.sha256(graph).hexdigest()
    assert verify(tmp_path / "a.rhw").passed


def test_permissions_follow_the_umask(bundle: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(bundle.stat().st_mode) == (0o777 if bundle.is_dir() else 0o666) & ~mask


def _manifest(path: Path) -> Manifest:
    with Bundle.open(path) as opened:
        return opened.manifest


def test_a_bundle_is_replaced_as_a_whole(bundle: Path) -> None:
    before = Bundle.open(bundle)
    made = case(seed=1)
    del made.files["tokenizer.json"]
    write_bundle(bundle, {**made.facts, "tokenizer": None}, made.files)
    with Bundle.open(bundle) as opened:
        assert opened.manifest.provenance == {"seed": 1}
        assert "tokenizer.json" not in opened.sizes
    np.testing.assert_array_equal(before.weights["bias"], weights()["bias"])
    before.close()
    assert os.listdir(bundle.parent) == [bundle.name]


def test_what_cannot_be_opened_is_not_written(bundle: Path) -> None:
    before = _manifest(bundle)
    made = case(seed=1)
    made.files[GRAPHS[1]] = made.files[GRAPHS[0]]
    with pytest.raises(ConfigurationError, match=r"model[^/]*: graphs/segment_1.onnx: has the inputs"):
        write_bundle(bundle, made.facts, made.files)
    with pytest.raises(ConfigurationError, match=r"not JSON|JSON"):
        write_bundle(bundle, {**case().facts, "provenance": {"x": float("nan")}}, case().files)
    with pytest.raises(ConfigurationError, match=r"a name is a relative path"):
        write_bundle(bundle, case().facts, {**case().files, "../outside": b""})
    with pytest.raises(ConfigurationError, match=r"precision"):
        write_bundle(bundle, {**case().facts, "precision": "fp16"}, case().files)
    with pytest.raises(FileNotFoundError):
        write_bundle(bundle, case().facts, {**case().files, WEIGHTS: (Path("nowhere").read_bytes() for _ in range(1))})
    assert _manifest(bundle) == before
    assert os.listdir(bundle.parent) == [bundle.name]


def test_nothing_foreign_is_replaced(tmp_path: Path) -> None:
    made = case()

    def refused(path: Path, why: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ConfigurationError, match=why):
            write_bundle(path, made.facts, made.files)
        assert sorted(tmp_path.rglob("*")) == before

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"cat")
    refused(tmp_path / "photos", r"photos: what is there already is no bundle and is not replaced")
    write_bundle(tmp_path / "model", made.facts, made.files)
    (tmp_path / "model" / "notes.txt").write_text("mine")
    refused(tmp_path / "model", r"holds 'notes.txt', which is not the bundle's, and is not replaced")
    (tmp_path / "thesis.zip").write_bytes(b"PK\x03\x04 and more of it, so that it could be one" * 3)
    refused(tmp_path / "thesis.zip", r"what is there already is no bundle \(")
    (tmp_path / "file").write_text("text")
    refused(tmp_path / "file", r"is there already as a file")
    (tmp_path / "folder.rhw").mkdir()
    refused(tmp_path / "folder.rhw", r"is there already as a folder")
    (tmp_path / "empty").mkdir()
    write_bundle(tmp_path / "empty", made.facts, made.files)
    Bundle.open(tmp_path / "empty").close()


def test_the_path_itself_may_be_a_link(bundle: Path, tmp_path: Path) -> None:
    link = tmp_path / f"current{bundle.suffix}"
    link.symlink_to(bundle.name)
    Bundle.open(link).close()
    made = case(seed=1)
    write_bundle(link, made.facts, made.files)
    assert link.is_symlink()
    assert _manifest(bundle).provenance == {"seed": 1}


def test_a_file_that_is_changed_while_it_is_open(tmp_path: Path) -> None:
    made = case()
    write_bundle(tmp_path / "model", made.facts, made.files)
    with Bundle.open(tmp_path / "model") as opened:
        data = made.files["tokenizer.json"]
        (tmp_path / "model" / "tokenizer.json").write_bytes(data.replace(b"abc", b"cba"))
        with pytest.raises(ConfigurationError, match=r"tokenizer.json.*SHA-256"):
            opened.read("tokenizer.json")
        (tmp_path / "model" / "tokenizer.json").write_bytes(data + b" ")
        with pytest.raises(ConfigurationError, match=r"tokenizer.json.*was replaced"):
            opened.read("tokenizer.json")


def test_verify(bundle: Path) -> None:
    found = verify(bundle)
    assert found.passed
    assert [segment.graph for segment in found.segments] == list(GRAPHS)
    assert found.segments[0].worst.error == 0
    assert found.segments[1].worst.limit == pytest.approx(1e-4, rel=0.1)
    assert found.as_dict()["passed"] is True


def _with_golden(path: Path, made: Case, **changes: np.ndarray | None) -> Path:
    opened = case()
    opened.forge(path.parent / "forge")
    golden = Bundle.open(path.parent / "forge").tensors("golden.safetensors")
    kept = {name: array for name, array in {**golden, **changes}.items() if array is not None}
    made.files["golden.safetensors"] = save(kept)
    write_bundle(path, made.facts, made.files)
    return path


def test_verify_finds_what_is_wrong(tmp_path: Path) -> None:
    golden = Bundle.open(case().forge(tmp_path / "x")).tensors("golden.safetensors")
    off = golden["segment_1/outputs"].copy()
    off[1, 2, 3] += 1e-3 * golden["spread/outputs"][3]
    found = verify(_with_golden(tmp_path / "off.rhw", case(), **{"segment_1/outputs": off}))
    assert not found.passed
    assert found.segments[0].passed
    assert (found.segments[1].worst.value, found.segments[1].worst.channel) == ("outputs", 3)
    assert found.segments[1].worst.error == pytest.approx(1e-3, rel=1e-2)
    quantised = case()
    quantised.facts["precision"] = "int8"
    assert verify(_with_golden(tmp_path / "int8.rhw", quantised, **{"segment_1/outputs": off})).passed
    for nothing in (np.full_like(off, np.inf), off[:, :0].copy()):
        assert not verify(_with_golden(tmp_path / "inf.rhw", case(), **{"segment_1/outputs": nothing})).passed
    off[0, 0, 0] = np.nan
    assert not verify(_with_golden(tmp_path / "nan.rhw", case(), **{"segment_1/outputs": off})).passed
    short = verify(_with_golden(tmp_path / "short.rhw", case(), **{"segment_1/outputs": off[:, :2].copy()}))
    assert short.segments[1].worst.error == float("inf")
    for spread in (None, np.zeros(VOCABULARY), np.ones(2), np.full(VOCABULARY, np.nan)):
        with pytest.raises(ConfigurationError, match=r"golden.safetensors: has no spread of outputs: export it again"):
            verify(_with_golden(tmp_path / "no.rhw", case(), **{"spread/outputs": spread}))
    with pytest.raises(ConfigurationError, match=r"golden.safetensors: has no array segment_1/states_0 of float32"):
        verify(_with_golden(tmp_path / "no.rhw", case(), **{"segment_1/states_0": None}))
    with pytest.raises(ConfigurationError, match=r"graphs/segment_0.onnx: does not run on its golden inputs"):
        verify(_with_golden(tmp_path / "far.rhw", case(), **{"segment_0/tokens": np.full((2, 4), 99)}))
    none = case()
    del none.files["golden.safetensors"]
    write_bundle(tmp_path / "none.rhw", {**none.facts, "golden": None}, none.files)
    with pytest.raises(ConfigurationError, match="holds no golden values"):
        verify(tmp_path / "none.rhw")


def test_a_count_may_round_to_either_side(tmp_path: Path) -> None:
    """How many values were clipped is no output of the model."""
    made = case()
    value = {"name": "clipped_0", "dtype": "int64", "scalar": True}
    model = onnx.ModelProto.FromString(made.files[GRAPHS[0]])
    model.graph.node.append(helper.make_node("Size", ["tokens"], ["clipped_0"]))
    model.graph.output.append(helper.make_tensor_value_info("clipped_0", TensorProto.INT64, []))
    made.files[GRAPHS[0]] = model.SerializeToString()
    made.facts["segments"][0]["gives"].append(value)
    write = _with_golden(tmp_path / "count.rhw", made, **{"segment_0/clipped_0": np.array(7)})
    assert verify(write).passed


def test_a_session_outlives_its_bundle(bundle: Path) -> None:
    """The embedding is read from the mapped file in every run: nothing may unmap it."""
    opened = Bundle.open(bundle)
    sessions = [make_session(opened, index) for index in range(2)]
    opened.close()
    del opened
    gc.collect()
    tokens = np.array([[1, 6, 0]])
    found = np.asarray(sessions[0].run(None, {"tokens": tokens})[0])
    np.testing.assert_array_equal(found, weights()["embedding"][tokens])
    assert sessions[1].get_providers() == ["CPUExecutionProvider"]
    options = sessions[1].get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)


def test_the_runtime_is_given_no_file_to_open(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same name in the working directory is not what the graph is computed with."""
    other = {name: np.zeros_like(array) for name, array in weights().items()}
    (tmp_path / "elsewhere").mkdir()
    save_file(other, tmp_path / "elsewhere" / "weights.safetensors")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with Bundle.open(bundle) as opened:
        outputs = make_session(opened, 1).run(None, {"states_0": np.zeros((1, 1, NODES), np.float32)})[0]
    np.testing.assert_array_equal(np.asarray(outputs)[0, 0], weights()["bias"])


def test_diff(tmp_path: Path) -> None:
    a, b = case(), case(fingerprint="1" * 64)
    arrays = weights()
    arrays["bias"][2] += 0.5
    b.files[WEIGHTS] = save(arrays)
    b.facts["provenance"] = {"seed": 3}
    for name, made in (("a.rhw", a), ("b", b)):
        write_bundle(tmp_path / name, made.facts, made.files)
    same = diff(tmp_path / "a.rhw", tmp_path / "a.rhw")
    assert same.identical
    assert same.same_weights == 3
    found = diff(tmp_path / "a.rhw", tmp_path / "b")
    assert not found.identical
    assert [(field.name, field.a, field.b) for field in found.fields] == [("provenance.seed", 0, 3)]
    assert [(field.name, field.a, field.b) for field in found.fingerprints] == [("slot 0", "0" * 64, "1" * 64)]
    assert [field.name for field in found.files] == [WEIGHTS]
    (weight,) = found.weights
    assert (weight.name, weight.a) == ("bias", "float32 7")
    assert weight.largest == pytest.approx(0.5, rel=1e-5)
    assert weight.relative == pytest.approx(0.5 / np.abs(weights()["bias"]).max(), rel=1e-5)
    assert found.same_weights == 2
    json.dumps(found.as_dict())


def test_diff_of_weights_that_cannot_be_subtracted(tmp_path: Path) -> None:
    a, b = case(), case()
    arrays: dict[str, np.ndarray] = {**weights(), "extra": np.arange(3, dtype=np.int8), "gone": np.ones(2)}
    a.files[WEIGHTS] = save(arrays)
    b.files[WEIGHTS] = save({**weights(), "extra": np.arange(3.0)})
    for made in (a, b):
        made.files |= {name: _moved(made.files[name], made.files[WEIGHTS]) for name in GRAPHS}
    write_bundle(tmp_path / "a", a.facts, a.files)
    write_bundle(tmp_path / "b", b.facts, b.files)
    found = {weight.name: weight for weight in diff(tmp_path / "a", tmp_path / "b").weights}
    assert (found["extra"].a, found["extra"].b, found["extra"].largest) == ("int8 3", "float64 3", None)
    assert (found["gone"].a, found["gone"].b) == ("float64 2", None)


def _moved(graph: bytes, data: bytes) -> bytes:
    """A graph whose weights lie in another file."""
    model = onnx.ModelProto.FromString(graph)
    tensors = [external(data, tensor.name) for tensor in model.graph.initializer]
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensors)
    return model.SerializeToString()
