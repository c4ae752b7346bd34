"""Files of every format hold the same numbers, texts and times."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.tables.columns import choose
from reservoir_hw.core.tables.configuration import ColumnsConfig, ReadConfig
from reservoir_hw.core.tables.sources import Source, opened

X = generator(1, "tables").standard_normal((40, 3)) * 10.0 ** np.arange(-20, 20)[:, None]
NAMES = ["a", "b", "c"]
LABELS = ["cat", "NA", "01", "dog"] * 10
FIRST = 1_704_067_200.0
TIMES = [f"2024-01-01 00:00:{second:02}" for second in range(len(X))]


def numbers(source: Source, **config: Any) -> np.ndarray:
    columns = choose(source, ColumnsConfig(**config), "inputs")
    parts = [columns.read(start, start + 7) for start in range(0, columns.steps, 7)]
    return np.concatenate(parts, axis=1)[0] if parts else columns.read(0, 0)[0]


def csv(path: Path) -> dict[str, Any]:
    rows = [",".join(map(repr, row)) for row in X.tolist()]
    path.write_text("\n".join([",".join(NAMES), *rows]))
    return {}


def npy(path: Path) -> dict[str, Any]:
    with path.open("wb") as file:
        np.save(file, X)
    return {}


def npz(path: Path) -> dict[str, Any]:
    with path.open("wb") as file:
        np.savez(file, x=X, other=X[0], names=NAMES)
    return {"array": "x", "names": "names"}


def hdf5(path: Path) -> dict[str, Any]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["scan/x"], file["names"] = X, NAMES
    return {"array": "scan/x", "names": "names"}


def matlab(path: Path) -> dict[str, Any]:
    pytest.importorskip("scipy.io").savemat(path, {"x": X, "names": np.array(NAMES, dtype=object)}, appendmat=False)
    return {"array": "x", "names": "names"}


def netcdf(path: Path, **how: Any) -> dict[str, Any]:
    xarray = pytest.importorskip("xarray")
    xarray.Dataset({"x": (("time", "node"), X), "names": (("node",), NAMES)}).to_netcdf(path, **how)
    return {"array": f"{how.get('group', '')}/x".lstrip("/"), "names": f"{how.get('group', '')}/names".lstrip("/")}


def netcdf_3(path: Path) -> dict[str, Any]:
    xarray = pytest.importorskip("xarray")
    xarray.Dataset({"x": (("time", "node"), X)}).to_netcdf(path, engine="scipy")
    return {"array": "x"}


def parquet(path: Path) -> dict[str, Any]:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(dict(zip(NAMES, X.T, strict=True))), path)
    return {}


@pytest.mark.parametrize(
    "write",
    [
        csv,
        npy,
        npz,
        hdf5,
        matlab,
        parquet,
        netcdf_3,
        lambda path: netcdf(path, engine="h5netcdf"),
        lambda path: netcdf(path, engine="h5netcdf", group="scan"),
    ],
)
def test_every_format_gives_the_same_numbers_to_the_bit(tmp_path: Path, write: Callable[[Path], Any]) -> None:
    path = tmp_path / "recording"
    config = write(path)
    with opened(path, ReadConfig()) as source:
        assert numbers(source, **config).tobytes() == X.tobytes()
        named = "names" in config or bool(source.header)
        turned = numbers(source, **config, columns=["c", "a"] if named else [2, 0])
        assert turned.tobytes() == np.ascontiguousarray(X[:, [2, 0]]).tobytes()


def test_packed_netcdf_is_unpacked_and_its_calendar_understood(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    stamps = np.datetime64("2024-01-01", "ns") + np.arange(3) * np.timedelta64(36, "h")
    data = xarray.Dataset({"u": (("time",), [1.25, np.nan, 2.5]), "time": (("time",), stamps)})
    packed = {"u": {"dtype": "int16", "scale_factor": 0.25, "_FillValue": -9}}
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding=packed)
    with opened(tmp_path / "a.nc", ReadConfig()) as source:
        np.testing.assert_array_equal(numbers(source, array="u")[:, 0], [1.25, np.nan, 2.5])
        np.testing.assert_array_equal(source.times("time", "time"), FIRST + 129_600 * np.arange(3))


MIXED = {"x": X[:, 0].tolist(), "label": LABELS, "t": TIMES, "count": [None, *range(1, len(X))]}


def mixed_csv(path: Path) -> None:
    rows = zip(*MIXED.values(), strict=True)
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    path.write_text("\n".join([",".join(MIXED), *lines]) + "\n\n")


def mixed_parquet(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    stamps = pa.array(TIMES).cast(pa.timestamp("ms"))
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({**MIXED, "t": stamps}), path, row_group_size=16)


@pytest.mark.parametrize("write", [mixed_csv, mixed_parquet])
def test_texts_and_times_do_no_harm_to_the_numbers_beside_them(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "recording"
    write(path)
    with opened(path, ReadConfig()) as source:
        check_mixed(source)


def check_mixed(source: Source) -> None:
    assert list(source.header) == list(MIXED)
    np.testing.assert_array_equal(numbers(source, columns=["x"])[:, 0], X[:, 0])
    np.testing.assert_array_equal(numbers(source, columns=["count"])[:, 0], [math.nan, *range(1, len(X))])
    assert source.texts("label", "labels") == LABELS
    assert source.texts(3, "labels")[:3] == ["", "1", "2"]
    np.testing.assert_array_equal(source.times("t", "time"), FIRST + np.arange(len(X)))
    with pytest.raises(ConfigurationError, match=r"column 'label': .*no"):
        numbers(source, columns=["label"])
    with pytest.raises(
        ConfigurationError, match=r"(line 2|row 0 .*), column 'label': 'cat' is no number and no time stamp"
    ):
        source.times("label", "time")
    with pytest.raises(ConfigurationError, match=r"(line 2|row 0 .*), column 'count': .*"):
        source.times("count", "time")
    with pytest.raises(ConfigurationError, match=r"labels: .*recording has no column 'labels'; near it: label"):
        source.texts("labels", "labels")
    with pytest.raises(ConfigurationError, match=r"time: .*'\*' means 4 columns, one is needed"):
        source.times("*", "time")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("2024-13-01", "line 3, column 't': '2024-13-01' is no number and no time stamp of ISO 8601"),
        ("2024-01-01T00:00:01Z", "is a time with a time zone, the first one is a time without a time zone"),
        ("7.5", "line 3, column 't': '7.5' is a number, the first one is a time without"),
        ("", "line 3, column 't': .*no"),
    ],
)
def test_time_stamps_are_of_one_kind(tmp_path: Path, second: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(f"t,u\n2024-01-01,1\n{second},2\n")
    with opened(tmp_path / "a.csv", ReadConfig()) as source, pytest.raises(ConfigurationError, match=message):
        source.times("t", "time")


def test_the_axes_of_matlab_7_3_are_said(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = X.T
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    with opened(path, ReadConfig()) as source:
        assert numbers(source, array="x", layout="nodes_first").tobytes() == X.tobytes()
        with pytest.raises(ConfigurationError, match=r"MATLAB 7.3, .* here \(3, 40\): say `layout: nodes_first` if"):
            numbers(source, array="x")


def test_objects_of_python_are_refused(tmp_path: Path) -> None:
    objects = np.array([{}, 1], dtype=object)
    np.save(tmp_path / "a.npy", objects)
    np.savez(tmp_path / "a.npz", x=objects)
    for path in (tmp_path / "a.npy", tmp_path / "a.npz"):
        with pytest.raises(ConfigurationError, match="it holds Python objects"), opened(path, ReadConfig()) as source:
            numbers(source)


# Not of MATLAB: changed bytes can end the process in scipy's reader.
@pytest.mark.parametrize("write", [npy, npz, hdf5, netcdf_3, parquet, lambda p: netcdf(p, engine="h5netcdf")])
def test_a_damaged_file_is_refused_in_a_sentence_or_read(tmp_path: Path, write: Callable[[Path], Any]) -> None:
    config = write(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    random = generator(3, "damage")
    refused = 0
    for cut in range(60):
        content = bytearray(whole)
        for place in random.integers(0, len(whole), 4):
            content[place] = random.integers(256)
        (tmp_path / "a").write_bytes(content[: len(whole) if cut % 4 else random.integers(len(whole))])
        try:
            with opened(tmp_path / "a", ReadConfig()) as source:
                assert numbers(source, **config).dtype == np.float64
        except ConfigurationError:
            refused += 1
    assert refused >= 10


PEAK = """
import resource, sys
from pathlib import Path
import numpy as np, pyarrow.parquet
from reservoir_hw.core.tables.columns import choose
from reservoir_hw.core.tables.configuration import ColumnsConfig, ReadConfig
from reservoir_hw.core.tables.sources import opened
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
with opened(Path(sys.argv[1]), ReadConfig()) as source:
    columns = choose(source, ColumnsConfig(), "inputs")
    total = sum(columns.read(start, start + 50_000).sum() for start in range(0, columns.steps, 50_000))
print(total, (peak() - before) // 1024)
"""


@pytest.mark.slow
def test_a_million_rows_of_parquet_take_twice_their_numbers_at_most(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    values = generator(2, "tables").standard_normal((8, 1_000_000))
    path = tmp_path / "long.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({f"n{i}": row for i, row in enumerate(values)}), path)
    found = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True).stdout
    total, mebibytes = found.split()
    assert float(total) == pytest.approx(values.sum())
    assert int(mebibytes) < 2 * values.nbytes / 2**20


def test_arrays_of_one_length_are_a_table(tmp_path: Path) -> None:
    """What a DataFrame becomes in NetCDF, and columns that were saved one by one."""
    import h5py
    import xarray

    when = np.datetime64("2026-01-01T00:00", "ns") + np.arange(5) * np.timedelta64(2, "s")
    u, y = np.arange(5.0), np.arange(5) * 10
    frame = xarray.Dataset({"u": ("time", u), "y": ("time", y)}, {"time": when})
    frame.to_netcdf(tmp_path / "a.nc")
    np.savez(tmp_path / "a.npz", time=2 * np.arange(5), u=u, y=y)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["time"], file["u"], file["y"] = 2 * np.arange(5), u, y
    for path in map(tmp_path.joinpath, ("a.nc", "a.npz", "a.h5")):
        with opened(path, ReadConfig()) as source:
            assert sorted(source.header) == ["time", "u", "y"]
            found = choose(source, ColumnsConfig(columns=["y", "u"]), "x").read(0, 5)
            np.testing.assert_array_equal(found[0], np.stack([y, u], axis=1))
            assert np.diff(source.times("time", "x")).tolist() == [2] * 4
            np.testing.assert_array_equal(choose(source, ColumnsConfig(array="u"), "x").read(0, 5)[0, :, 0], u)
    with opened(tmp_path / "a.nc", ReadConfig()) as source, pytest.raises(ConfigurationError, match="'time': it holds"):
        choose(source, ColumnsConfig(), "x").read(0, 5)
