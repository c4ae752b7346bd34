"""Data sets from a folder and from a web server."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest

from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.tasks import datasets
from reservoir_hw.tasks.datasets import DATA_SETS, DataSet, contents, dataset

CONTENTS = b"1.5 2.5\n" * 1000


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder / project)
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    return folder / "reservoir_hw"


def know(monkeypatch: pytest.MonkeyPatch, url: str, of: bytes = CONTENTS) -> None:
    wanted = DataSet("things/numbers.txt", f"{url}/numbers.txt", hashlib.sha256(of).hexdigest())
    monkeypatch.setitem(DATA_SETS, "numbers", wanted)


def test_download(served: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, url = served
    (folder / "numbers.txt").write_bytes(CONTENTS)
    know(monkeypatch, url)
    path = dataset("numbers")
    assert path.parent == cache
    assert path.read_bytes() == contents("numbers") == CONTENTS
    # From then on it is there, whatever becomes of the server.
    (folder / "numbers.txt").unlink()
    assert dataset("numbers") == path


def test_a_server_with_another_file(served: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, url = served
    (folder / "numbers.txt").write_bytes(CONTENTS[:-1])
    know(monkeypatch, url)
    with pytest.raises(ConfigurationError, match=r"numbers.txt serves is not the expected file .*SHA256") as caught:
        dataset("numbers")
    assert "RESERVOIR_HW_DATA" in str(caught.value)
    assert not list(cache.iterdir())


def test_no_server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler) as server:
        port = server.server_port
    know(monkeypatch, f"http://127.0.0.1:{port}")
    with pytest.raises(ConfigurationError, match=f"cannot be downloaded from http://127.0.0.1:{port}") as caught:
        dataset("numbers")
    assert "put the file at things/numbers.txt in a folder, and set RESERVOIR_HW_DATA" in str(caught.value)


def test_without_pooch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"needs pooch: pip install 'reservoir-hw\[data\]'"):
        dataset("numbers")


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_offline(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    path = tmp_path / "things" / f"numbers.txt{suffix}"
    path.parent.mkdir()
    packed = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](CONTENTS)
    path.write_bytes(packed)
    assert dataset("numbers") == path
    assert contents("numbers") == CONTENTS
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigurationError, match="is damaged" if suffix else "is not the data set numbers"):
        dataset("numbers")


def test_what_the_folder_lacks_is_downloaded(
    served: tuple[Path, str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = served
    (folder / "numbers.txt").write_bytes(CONTENTS)
    know(monkeypatch, url)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path / "empty"))
    assert dataset("numbers").parent == cache


@pytest.mark.parametrize("name", sorted(DATA_SETS))
def test_the_known_data_sets(shared_data: None, name: str) -> None:
    assert hashlib.sha256(contents(name)).hexdigest() == DATA_SETS[name].sha256
