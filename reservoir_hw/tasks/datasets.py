"""Data sets that tasks are made of: from a folder that is at hand, or downloaded once."""

from __future__ import annotations

import gzip
import hashlib
import logging
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from reservoir_hw.core.errors import ConfigurationError, MissingExtra

log = logging.getLogger(__name__)

FOLDER_VARIABLE = "RESERVOIR_HW_DATA"
"""Environment variable that names a folder in which data sets are looked for first."""

TIMEOUT_S = 30.0

_OPENERS = {".gz": gzip.open, ".xz": lzma.open}


@dataclass(frozen=True)
class DataSet:
    """A file and what its bytes must be.

    `file` is its place in the folder of `RESERVOIR_HW_DATA`, where it may also be packed, with .gz or .xz behind its
    name. `sha256` is that of the unpacked file, which is also what `url` serves.
    """

    file: str
    url: str
    sha256: str


_GITHUB = "https://raw.githubusercontent.com"
_RESERVOIRPY = f"{_GITHUB}/reservoirpy/reservoirpy/1fc11351bfba7f4b9a35464a1b99d804a5d6ccea"
_CHARC = f"{_GITHUB}/MaterialMan/CHARC/0ff4eeea3890f443142436f07b49c4ca44ef6dd0"
_BRAINOWARE = f"{_GITHUB}/chuhuiyu/Biocomputing-with-Brainoware/919bd18ade01337ec8361fea7e19f81f3411c847"
_QUESTIONS = f"{_GITHUB}/harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data/raw"
_VOWELS = f"{_BRAINOWARE}/procedure_3/1_Japanese_Vowels_dataset"

DATA_SETS = {
    "japanese_vowels_test": DataSet(
        "benchmarks/ae.test",
        f"{_VOWELS}/ae.test",
        "c4c61d2fcd3fa6054978bb4e7a3ff38e96d7af41912101b75fde875a5b2432a6",
    ),
    "japanese_vowels_train": DataSet(
        "benchmarks/ae.train",
        f"{_VOWELS}/ae.train",
        "a5976f6ae14ffed6ae996b528ad5c0c1e1a7984585feb43ebcbd1b8a09d38ab2",
    ),
    "mackey_glass_t17": DataSet(
        "benchmarks/Mackey_Glass_t17.txt",
        f"{_CHARC}/Support%20files/other/Datasets/Mackey_Glass_t17.txt",
        "6fb19e239eebac25c7499fa9f3771d774d349da4d42743194494507fa89c7219",
    ),
    "santa_fe_laser": DataSet(
        "benchmarks/santafe_laser.npy",
        f"{_RESERVOIRPY}/reservoirpy/datasets/santafe_laser.npy",
        "8c07281200935596f8e28bc94e1bb25e9964ab7d7f63c5e27ac87b810ac3b33a",
    ),
    "trec_test": DataSet(
        "trec/TREC_10.label",
        f"{_QUESTIONS}/TREC.test",
        "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
    ),
    "trec_train": DataSet(
        "trec/train_5500.label",
        f"{_QUESTIONS}/TREC.train",
        "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
    ),
}
"""By name. `mackey_glass_t17` (tanh(x - 1), 10,000 steps) is what others publish errors on; no task needs it."""


def dataset(name: str) -> Path:
    """The file of a data set, which may be packed (`contents` unpacks it).

    It is looked for in the folder of `RESERVOIR_HW_DATA`, then among earlier downloads in the cache folder of the
    operating system, and downloaded if it is in neither. Its sha256 is checked in every case.

    Raises `ConfigurationError` for a name that is not known, a file with other bytes, and a download that fails;
    `MissingExtra` where a download is needed and pooch is not installed.
    """
    if name not in DATA_SETS:
        raise ConfigurationError(f"there is no data set {name!r}; known are {', '.join(DATA_SETS)}.")
    wanted = DATA_SETS[name]
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        for suffix in ("", *_OPENERS):
            path = Path(folder) / (wanted.file + suffix)
            if path.is_file():
                _check(path, wanted, name)
                return path
        log.info("%s is not in %s=%s", wanted.file, FOLDER_VARIABLE, folder)
    return _downloaded(name, wanted)


def found_file(path: str, key: str) -> Path:
    """A file as it stands, or in the folder of `RESERVOIR_HW_DATA`.

    Raises `ConfigurationError` that begins with `key`, the setting that names it, where it is in neither.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    for place in (Path(path), Path(folder) / path):
        if place.is_file():
            return place
    where = f"nor in {FOLDER_VARIABLE}={folder}" if folder else f"and {FOLDER_VARIABLE} names no folder to look in"
    raise ConfigurationError(f"{key}: there is no file {path} here ({Path.cwd()}), {where}")


def contents(name: str) -> bytes:
    """The bytes of a data set, unpacked; raises what `dataset` does."""
    return unpacked(dataset(name))


def _check(path: Path, wanted: DataSet, name: str) -> None:
    found = hashlib.sha256(unpacked(path)).hexdigest()
    if found != wanted.sha256:
        raise ConfigurationError(
            f"{path} is not the data set {name}: the sha256 of its contents is {found}, it must be {wanted.sha256}. "
            f"Replace it by the file from {wanted.url}, or remove it to have that downloaded."
        )


def unpacked(path: Path) -> bytes:
    """The bytes of a file, without the .gz or .xz that its name ends in."""
    with opened(path) as file:
        return file.read()


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file for reading, without the .gz or .xz that its name ends in."""
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield file
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ConfigurationError(f"{path} cannot be unpacked ({error}): it is damaged, copy it again.") from error


def _downloaded(name: str, wanted: DataSet) -> Path:
    by_hand = (
        f"Without a connection: put the file at {wanted.file} in a folder, and set {FOLDER_VARIABLE} to that folder."
    )
    try:
        import pooch
    except ImportError as error:
        raise MissingExtra(
            f"downloading the data set {name} needs pooch: pip install 'reservoir-hw[data]'. {by_hand}"
        ) from error
    try:
        downloader: Any = pooch.HTTPDownloader(timeout=TIMEOUT_S)
        kept = {"fname": Path(wanted.file).name, "path": pooch.os_cache("reservoir_hw"), "downloader": downloader}
        return Path(pooch.retrieve(wanted.url, known_hash=f"sha256:{wanted.sha256}", **kept))
    except ValueError as error:
        # pooch raises it for a wrong hash, and has removed the file.
        raise ConfigurationError(
            f"data set {name}: what {wanted.url} serves is not the expected file ({error}). Nothing was kept. {by_hand}"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"data set {name} cannot be downloaded from {wanted.url}: {error}. {by_hand}"
        ) from error
