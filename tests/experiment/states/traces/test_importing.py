"""Measured data of every form become a trace, or an error that says where they do not fit."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.traces import import_trace

ROWS = 12
MAPPINGS = Path(__file__).parents[4] / "examples" / "measured_devices" / "mappings"
DEVICE = {"vendor": "lab", "model": "film", "simulated": False}
TIME = 0.5 * np.arange(ROWS)
U = generator(1, "import").uniform(-1, 1, ROWS).round(4)
X = generator(2, "import").standard_normal((ROWS, 3)).round(4)
TABLE = np.column_stack([TIME, U, X])
NAMES = ["t[s]", "u_V[V]", "1_V[V]", "2_V[V]", "3_V[V]"]
BY_NAME: dict[str, Any] = {"inputs": {"columns": ["u_V[V]"]}, "states": {"columns": ["*_V[V]"], "without": ["u_V[V]"]}}
BY_NUMBER: dict[str, Any] = {"inputs": {"columns": [1]}, "states": {"columns": ["2:"]}}
BY_ARRAY: dict[str, Any] = {"inputs": {"array": "u"}, "states": {"array": "x"}}


def text(delimiter: str, *, names: bool = True, decimal: str = ".", comment: str = "") -> bytes:
    lines = [comment + delimiter.join(NAMES)] if names else []
    lines += [delimiter.join(f"{v:.4f}".replace(".", decimal) for v in row) for row in TABLE]
    return "\n".join(lines).encode()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def mapping(tmp_path: Path, **over: Any) -> Path:
    path = tmp_path / "mapping.yaml"
    with path.open("w") as file:
        YAML().dump({"device": DEVICE, **over}, file)
    return path


def imported(tmp_path: Path, *files: Path, name: str = "trace", **over: Any) -> StateStore:
    return import_trace(mapping(tmp_path, **over), tmp_path / name, files)


def check(store: StateStore, u: np.ndarray = U[:, None], x: np.ndarray = X) -> None:
    dataset = store.dataset("000")
    np.testing.assert_allclose(dataset.inputs[0], u, rtol=1e-6)
    np.testing.assert_allclose(dataset.states[0], x, rtol=1e-6)
    assert store.complete


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (text(","), BY_NAME),
        (text(" "), BY_NAME),
        (text(" ", comment="# "), BY_NAME),
        (text("\t"), BY_NAME),
        (text(";", decimal=","), BY_NAME),
        (text("\t", decimal=","), BY_NAME),
        (text(",", names=False), BY_NUMBER),
        (b"made by a bench, long ago\n\n" + text(";"), BY_NAME),
        (b"\xef\xbb\xbf" + text(",").replace(b"\n", b"\r\n"), BY_NAME),
        (text(",").replace(b"[V]", b"[\xb5V]").replace(b"u_V[\xb5V]", b"u_V[V]"), BY_NUMBER),
    ],
)
def test_text(tmp_path: Path, content: bytes, columns: dict[str, Any]) -> None:
    check(imported(tmp_path, written(tmp_path / "bench.dat", content), **columns))


@pytest.mark.parametrize("delimiter", [",", ", ", ";", "\t", "  "])
def test_quoted_names_may_hold_what_stands_between_columns(tmp_path: Path, delimiter: str) -> None:
    names = ["t", "u, in", "a; [V]", "b c", "5"]
    header = delimiter.join(f'"{name}"' for name in names)
    body = text(delimiter.strip(" ") or " ", names=False).decode()
    file = written(tmp_path / "a.csv", f"{header}\n{body}".encode())
    over: dict[str, Any] = {"inputs": {"columns": ["u, in"]}, "states": {"columns": ["a; [V]", "b c", "5"]}}
    with pytest.raises(ConfigurationError, match=r"line 1: these cells may be names, .* `read: \{header: true\}`"):
        imported(tmp_path, file, **over)
    store = imported(tmp_path, file, **over, read={"header": True})
    check(store)
    assert store.facts["spec"]["node_names"] == ["a; [V]", "b c", "5"]


def test_how_a_text_is_written_can_be_said(tmp_path: Path) -> None:
    file = written(tmp_path / "bench.txt", b"1 2\n" + text("|", decimal=","))
    check(imported(tmp_path, file, read={"delimiter": "|", "decimal": ",", "skip_lines": 1}, **BY_NAME))


@pytest.mark.parametrize(
    "pack", [gzip.compress, lzma.compress, bz2.compress, lambda raw: gzip.compress(gzip.compress(raw))]
)
def test_packed(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    check(imported(tmp_path, written(tmp_path / "bench", pack(text(","))), **BY_NAME))
    np.save(tmp_path / "a.npy", TABLE)
    packed = written(tmp_path / "b", pack((tmp_path / "a.npy").read_bytes()))
    check(imported(tmp_path, packed, name="2", **BY_NUMBER))


def test_a_zip_of_one_file(tmp_path: Path) -> None:
    for members in (["a.csv"], ["a.csv", "b.csv"]):
        with zipfile.ZipFile(tmp_path / f"{len(members)}.zip", "w") as archive:
            for member in members:
                archive.writestr(member, text(","))
    check(imported(tmp_path, tmp_path / "1.zip", **BY_NAME))
    with pytest.raises(ConfigurationError, match=r"holds 2 files; unpack it: a\.csv, b\.csv"):
        imported(tmp_path, tmp_path / "2.zip", name="2", **BY_NAME)


def test_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", TABLE.astype(np.float32))
    check(imported(tmp_path, tmp_path / "a.npy", **BY_NUMBER))
    check(imported(tmp_path, npz(tmp_path / "b.npz", u=U, x=X), name="2", **BY_ARRAY))
    np.savez_compressed(tmp_path / "c.npz", u=U, x=X.T, f=[1.5, 2.0, 1e9], s=np.array(["a", "b", "c"]))
    over = {
        "inputs": {"array": "u", "names": ["drive"]},
        "states": {"array": "x", "layout": "nodes_first", "names": "f"},
    }
    store = imported(tmp_path, tmp_path / "c.npz", name="3", **over)
    check(store)
    assert store.facts["spec"]["node_names"] == ["1.5", "2", "1e+09"]
    assert store.facts["spec"]["input_names"] == ["drive"]
    over["states"] = {**over["states"], "names": "s", "columns": ["c", "a"]}
    check(imported(tmp_path, tmp_path / "c.npz", name="4", **over), x=X[:, [2, 0]])


@pytest.mark.parametrize("pack", [None, gzip.compress])
def test_hdf5(tmp_path: Path, pack: Callable[[bytes], bytes] | None) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "bench.h5"
    with h5py.File(path, "w") as file:
        file["scan/u"] = U
        file.create_dataset("scan/x", data=X.T, chunks=(3, 5), compression="gzip")
        file["scan/names"] = ["a", "b", "c"]
    if pack is not None:
        path = written(tmp_path / "bench.h5.gz", pack(path.read_bytes()))
    over = {
        "inputs": {"array": "scan/u"},
        "states": {"array": "scan/x", "layout": "nodes_first", "names": "scan/names", "without": ["b"]},
    }
    store = imported(tmp_path, path, **over)
    check(store, x=X[:, [0, 2]])
    assert store.facts["spec"]["node_names"] == ["a", "c"]


def test_several_sequences_share_their_inputs_or_have_their_own(tmp_path: Path) -> None:
    repeats = np.stack([X, X + 1, X + 2])
    file = npz(tmp_path / "a.npz", u=U, x=repeats)
    store = imported(tmp_path, file, **BY_ARRAY)
    dataset = store.dataset("000")
    np.testing.assert_allclose(dataset.states[:], repeats, rtol=1e-6)
    np.testing.assert_allclose(dataset.inputs[:], np.repeat(U[None, :, None], 3, axis=0), rtol=1e-6)
    with open_reservoir({"kind": "replay", "trace": store.path}) as reservoir:
        for sequence in range(3):
            reservoir.reset(1)
            np.testing.assert_array_equal(reservoir.run(dataset.inputs[:1])[0], dataset.states[sequence])
    with pytest.raises(ConfigurationError, match=r"2 sequences, states .* 3"):
        imported(tmp_path, npz(tmp_path / "b.npz", u=np.ones((2, ROWS, 1)), x=repeats), name="2", **BY_ARRAY)


def test_several_files_are_several_data_sets(tmp_path: Path) -> None:
    files = [npz(tmp_path / f"{i}.npz", u=U + i, x=X * (i + 1)) for i in range(3)]
    over = {"inputs": {"array": "u", "scale": {}}, "states": {"array": "x"}}
    store = imported(tmp_path, *files, **over)
    assert list(store.datasets) == ["000", "001", "002"]
    np.testing.assert_allclose(store.dataset("002").states[0], X * 3, rtol=1e-6)
    assert min(d.inputs[:].min() for d in store.datasets.values()) == -1
    assert max(d.inputs[:].max() for d in store.datasets.values()) == 1
    assert [file["file"] for file in store.facts["provenance"]["files"]] == ["0.npz", "1.npz", "2.npz"]
    with pytest.raises(ConfigurationError, match=r"3\.npz has other columns"):
        imported(tmp_path, files[0], npz(tmp_path / "3.npz", u=U, x=X[:, :2]), name="2", **over)


def test_inputs_may_lie_in_another_file(tmp_path: Path) -> None:
    np.save(tmp_path / "u.npy", U)
    np.save(tmp_path / "x.npy", X)
    check(imported(tmp_path, file="x.npy", inputs={"file": "u.npy"}, states={}))


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        (["3_V[V]", "1_V[V]"], [4, 2]),
        (["?_V[V]"], [1, 2, 3, 4]),
        ([-1, "2:4"], [4, 2, 3]),
        (["2:4", "2_V[V]", "t*"], [2, 3, 0]),
    ],
)
def test_columns(tmp_path: Path, columns: list[Any], taken: list[int]) -> None:
    file = written(tmp_path / "a.csv", text(","))
    check(imported(tmp_path, file, inputs={"columns": ["u_V[V]"]}, states={"columns": columns}), x=TABLE[:, taken])


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"states": {"columns": ["4_V[V]"]}}, r"states\.columns: .* no column '4_V\[V\]'; near it: .*3_V\[V\], 2_V"),
        ({"states": {"columns": [5]}}, r"no column 5, it has 5 \(0 to 4\)"),
        ({"states": {"columns": ["t*"], "without": ["t[s]"]}}, "nothing remains of the 5 columns"),
        ({"states": {"columns": ["zz*"]}}, r"no column 'zz\*'; it has t\[s\], u_V"),
        ({"states": {"without": ["temperature"]}}, "states.without"),
        ({"states": {"array": "X"}}, r"no array 'X'; \(there are: table \(12, 5\)\)"),
        ({"states": {"names": ["a"]}}, "1 names for 5 columns"),
        ({"rows": [3, 30]}, "has 12 rows"),
        ({"rows": [3, 5], "latency_steps": 2}, "latency_steps 2"),
        ({"time": {"column": "u_V[V]"}}, "the time does not increase there"),
        ({"time": {}, "step_period_s": 1}, "either `time` or `step_period_s`"),
        ({"inputs": {"columns": ["u_V[V]"], "scale": {"range": [1, 1]}}}, "must differ"),
        ({"input": {}}, r"mapping\.yaml:\d+: unknown key 'input'; did you mean 'inputs'"),
        ({"device": {"vendor": "lab", "model": "film"}}, "device.simulated is missing"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, over: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        imported(tmp_path, written(tmp_path / "a.csv", text(",")), **{**BY_NAME, **over})
    assert not (tmp_path / "trace").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def refused(content: bytes, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            imported(tmp_path, written(tmp_path / "file", content), **BY_NAME)

    refused(gzip.compress(text(","))[:-20], "cannot be unpacked")
    refused(lzma.compress(text(","))[:-20], "cannot be unpacked")
    refused(text(",") + b"\n1,2,3,4,oh", "line 14, column '3_V\\[V\\]': 'oh' is not a number")
    refused(text(",") + b"\n1,2,3,4", "line 14: 4 cells, there are names for 5")
    refused(text(",").replace(b"\n", b"\n\n", 4), "line 2 is empty")
    refused(b"", "there is no table in it")
    refused(b"\x00\x01\x02\x03", "neither npy, npz, HDF5, NetCDF, MATLAB, parquet nor text")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        refused(text(",").decode().encode(encoding), "looks like text in UTF-16: save it as UTF-8")
    for start in (b"MATLAB 5.0 MAT-file", b"PAR1", b"CDF\x01", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"):
        refused(start + bytes(range(256)), "cannot be (read|unpacked)")
    refused(b"\x93NUMPY\x01\x00", "cannot be read")
    with pytest.raises(ConfigurationError, match="No such file"):
        imported(tmp_path, tmp_path / "nothing", **BY_NAME)
    with pytest.raises(ConfigurationError, match=r"several arrays, say which with `array:`: a \(12,\), b \(12, 3\)"):
        imported(tmp_path, npz(tmp_path / "c.npz", a=U, b=X), inputs={}, states={})
    with pytest.raises(ConfigurationError, match=r"inputs .* have 12 rows, states .* 3; is one of them"):
        imported(tmp_path, npz(tmp_path / "d.npz", u=U, x=X.T), **BY_ARRAY)
    with pytest.raises(ConfigurationError, match="real and imaginary parts"):
        imported(tmp_path, npz(tmp_path / "e.npz", u=U, x=X * 1j), **BY_ARRAY)


@pytest.mark.parametrize("missing", ["", "9.9e37", "-9.91E+37"])
def test_nan_is_an_error_or_dropped_and_said(tmp_path: Path, missing: str) -> None:
    table = np.column_stack([TABLE, np.full(ROWS, 2.0)])
    content = "\n".join(",".join(f"{v:g}" for v in row) for row in table).split("\n")
    content[7] = content[7].rpartition(",")[0].rpartition(",")[0] + f",{missing},2"
    file = written(tmp_path / "a.csv", "\n".join([",".join([*NAMES, "level"]), *content]).encode())
    states = {"columns": ["?_V[V]", "level"], "without": ["u_V[V]"]}
    with pytest.raises(ConfigurationError, match=r"line 9, column '3_V\[V\]': not a finite number .*\(1 of 4 columns"):
        imported(tmp_path, file, inputs=BY_NAME["inputs"], states=states)
    states["drop"] = ["nan", "constant"]
    facts = imported(tmp_path, file, name="t", inputs=BY_NAME["inputs"], states=states).facts
    assert facts["provenance"]["notes_on_import"] == [
        "dropped 1 of 4 columns (not a number somewhere): 3_V[V]",
        "dropped 1 of 4 columns (constant): level",
    ]
    assert facts["spec"]["node_names"] == ["1_V[V]", "2_V[V]"]
    with pytest.raises(ConfigurationError, match=r"inputs: .*line 9"):
        imported(tmp_path, file, inputs={"columns": ["3_V[V]"]}, states={"columns": [2]})


def test_scale_rows_latency_and_time(tmp_path: Path) -> None:
    over = {
        "inputs": {"columns": ["u_V[V]"], "unit": "V", "scale": {"range": [-1, 3], "onto": [0, 1]}},
        "states": {"columns": ["2:"], "unit": "mA"},
        "rows": [2, 11],
        "latency_steps": 1,
        "time": {"column": "t[s]", "unit_s": 1e-3},
        "dtype": "float64",
        "sample": "film 7",
    }
    store = imported(tmp_path, written(tmp_path / "a.csv", text(",")), **over)
    check(store, (U[2:10, None] + 1) / 4, X[3:11])
    spec = store.facts["spec"]
    assert (spec["input_unit"], spec["state_unit"], spec["dtype"]) == ("4 V, 0 at -1 V", "mA", "float64")
    assert spec["step_period_s"] == pytest.approx(0.5e-3)
    assert spec["latency_steps"] == 1
    assert spec["identity"]["simulated"] is False
    assert store.facts["provenance"]["sample"] == "film 7"


def test_columns_of_text_stay_where_they_are_and_time_stamps_tell_the_period(tmp_path: Path) -> None:
    lines = [
        f"{name},{cells}" for name, cells in zip(["note", *"abcdefghijkl"], text(",").decode().split("\n"), strict=True)
    ]
    lines = [f"{line},{'when' if not row else f'2024-01-01T12:00:{4 * row:02}Z'}" for row, line in enumerate(lines)]
    store = imported(
        tmp_path, written(tmp_path / "a.csv", "\n".join(lines).encode()), **BY_NAME, time={"column": "when"}
    )
    check(store)
    assert store.facts["spec"]["step_period_s"] == 4


def test_uneven_steps_and_inputs_among_the_states_are_remarked_on(tmp_path: Path) -> None:
    times = TIME.copy()
    times[6:] += 0.1
    file = npz(tmp_path / "a.npz", x=np.column_stack([U, X]), t=times)
    over = {"inputs": {"array": "x", "columns": [0]}, "states": {"array": "x"}, "time": {"array": "t"}}
    notes = imported(tmp_path, file, name="t", **over).facts["provenance"]["notes_on_import"]
    assert notes == ["the steps are uneven: 0.5 to 0.6 s, 0.5091 s on average", "the states include the inputs 0"]
    over["time"] = {"array": "x"}
    with pytest.raises(ConfigurationError, match="time does not increase"):
        imported(tmp_path, file, name="2", **over)


def test_the_fingerprint_is_of_the_data_and_of_how_they_are_read(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", text(","))
    other = written(tmp_path / "b.csv", text(",").replace(b"0.5000", b"0.5001"))

    def fingerprint(name: str, source: Path = file, **over: Any) -> str:
        return imported(tmp_path, source, name=name, **{**BY_NAME, **over}).facts["spec"]["identity"]["fingerprint"]

    first = fingerprint("0")
    assert fingerprint("1", notes="another note") == first
    assert fingerprint("2", other) != first
    assert fingerprint("3", states={"columns": ["2:4"]}) != first


def test_where_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    written(folder / "a.csv", text(","))
    monkeypatch.delenv("RESERVOIR_HW_DATA", raising=False)
    with pytest.raises(ConfigurationError, match="RESERVOIR_HW_DATA names, which is not set"):
        imported(tmp_path, file="data:a.csv", **BY_NAME)
    monkeypatch.setenv("RESERVOIR_HW_DATA", str(folder))
    check(imported(tmp_path, file="data:a.csv", **BY_NAME))
    check(imported(tmp_path, file="data/a.csv", name="2", **BY_NAME))
    with pytest.raises(ConfigurationError, match=r"another content than the mapping expects: sha256 [0-9a-f]{64}"):
        imported(tmp_path, file="data:a.csv", sha256="0" * 64, name="3", **BY_NAME)
    check(imported(tmp_path, folder / "a.csv", file="data:b.csv", sha256="0" * 64, name="4", **BY_NAME))
    with pytest.raises(ConfigurationError, match="names no `file`"):
        imported(tmp_path, name="5", **BY_NAME)
    with pytest.raises(ConfigurationError, match="exists already"):
        imported(tmp_path, file="data:a.csv", **BY_NAME)


def test_long_data_are_written_in_several_chunks(tmp_path: Path) -> None:
    x = generator(3, "long").standard_normal((3000, 1000)).astype(np.float32)
    np.savez(tmp_path / "a.npz", u=np.arange(3000.0), x=x)
    dataset = imported(tmp_path, tmp_path / "a.npz", **BY_ARRAY).dataset("000")
    assert dataset.chunk_steps == 1048
    np.testing.assert_array_equal(dataset.states[0], x)
    np.testing.assert_array_equal(dataset.inputs[0, :, 0], np.arange(3000))


@pytest.mark.parametrize("path", sorted(MAPPINGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_mappings_of_the_examples(tmp_path: Path, path: Path) -> None:
    if "RESERVOIR_HW_DATA" not in os.environ:
        pytest.skip("RESERVOIR_HW_DATA does not name the folder of the measured data")
    store = import_trace(path, tmp_path / "trace")
    dataset = store.dataset("000")
    shapes = {"nanowire": (15, {3000, 1500}), "skyrmion": (1601, {500, 100}), "conical": (1601, {500, 501})}
    nodes, steps = shapes.get(path.stem.partition("_")[0], (500, {1000}))
    assert dataset.states.shape[2] == nodes
    assert dataset.steps in steps
    assert np.abs(dataset.inputs[:]).max() <= 1.01
    assert not store.facts["spec"]["identity"]["simulated"]
