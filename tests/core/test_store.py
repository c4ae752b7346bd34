"""The format on disk, read by others and larger than memory."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.store import Region, StateStore, is_damage
from reservoir_hw.core.store.durable import DurableStore

RNG = np.random.default_rng(0)


def block(sequences: int, steps: int, width: int) -> np.ndarray:
    return RNG.standard_normal((sequences, steps, width)).astype(np.float32)


KEPT: list[tuple[Path, np.ndarray, np.ndarray]] = []


def filled(path: Path) -> tuple[StateStore, np.ndarray, np.ndarray]:
    """As `made`; all but the first are copies of it."""
    if not KEPT:
        folder = Path(tempfile.mkdtemp(prefix="reservoir_hw_tests_"))
        atexit.register(shutil.rmtree, folder)
        KEPT.append((folder / "store", *made(folder / "store")[1:]))
    store, inputs, states = KEPT[0]
    shutil.copytree(store, path)
    return StateStore.open(path, writable=True), inputs, states


def made(path: str | Path) -> tuple[StateStore, np.ndarray, np.ndarray]:
    """Three sequences in groups of two, 50 steps in chunks of 20."""
    store = StateStore.create(path, {"made_by": "tests"})
    dataset = store.add("train", sequences=3, inputs=1, nodes=4, chunk_steps=20, group=2, steps=50)
    inputs, states = block(3, 50, 1), block(3, 50, 4)
    for number, place in enumerate(dataset.regions()):
        at = (place.rows, slice(place.start, place.stop))
        dataset.write(place, inputs[at], states[at], timing=(time.time(), 0.5))
        store.commit(number + 1, snapshot={"x": states[place.rows, place.stop - 1]})
    return store, inputs, states


def test_what_was_written_is_read_again_by_us_and_by_plain_zarr(tmp_path: Path) -> None:
    _, inputs, states = filled(tmp_path / "store")
    store = StateStore.open(tmp_path / "store")
    dataset = store.dataset("train")
    assert (dataset.sequences, dataset.steps, dataset.group, dataset.chunk_steps) == (3, 50, 2, 20)
    assert len(list(dataset.regions())) == 6
    read = np.empty_like(states)
    for place in dataset.regions():
        read[place.rows, place.start : place.stop] = dataset.read(place)[1]
    np.testing.assert_array_equal(read, states)
    plain: Any = zarr.open_group(tmp_path / "store", mode="r")
    np.testing.assert_array_equal(plain["train/inputs"][:], inputs)
    assert plain["train/states"].metadata.dimension_names == ("sequence", "step", "node")
    assert dataset.timing.shape == (2, 3, 2)
    np.testing.assert_array_equal(dataset.timing[..., 1], 0.5)


def test_every_file_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: set[int] = set()
    named: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        settled.add(os.fstat(descriptor).st_ino)

    def noted_replace(self: Path, target: Path) -> Path:
        assert self.stat().st_ino in settled, f"{target} could be empty after a power failure"
        settled.discard(target.parent.stat().st_ino)
        named.append(target.relative_to(tmp_path).as_posix())
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    made(tmp_path / "store")
    assert {"store/journal/zarr.json", "store/train/timing/c/1/0/0", "store/train/states/c/1/2/0"} <= set(named)
    here = [tmp_path / name for name in named if (tmp_path / name).parent.is_dir()]
    assert len(here) > 30
    for file in here:
        for folder in (file.parent, *file.parent.parents):
            if folder == tmp_path:
                break
            assert folder.stat().st_ino in settled, f"{folder} may have lost its entries"


@pytest.mark.parametrize("damage", [b"", b"x" * 40])
def test_a_damaged_chunk_that_does_not_count_is_written_over(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "store"
    store, inputs, states = filled(path)
    dataset = store.dataset("train")
    for place in dataset.regions():
        for array in ("inputs", "states"):
            file = path / "train" / array / "c" / str(place.rows.start // 2) / str(place.start // 20) / "0"
            file.write_bytes(damage)
        assert dataset.is_written(place)
        dataset.erase(place)
        assert not dataset.is_written(place)
        with pytest.raises(ConfigurationError, match="never harvested"):
            dataset.read_states(place)
        for array in ("inputs", "states"):
            file = path / "train" / array / "c" / str(place.rows.start // 2) / str(place.start // 20) / "0"
            file.write_bytes(damage)
        at = (place.rows, slice(place.start, place.stop))
        dataset.write(place, inputs[at], states[at], timing=(0.0, 0.5))
        np.testing.assert_array_equal(dataset.read(place)[1], states[at])


@pytest.mark.parametrize("file", ["c/0/0/0", "zarr.json"])
def test_damaged_times_at_an_address_are_given_up(file: str) -> None:
    import fsspec

    store, inputs, states = made(f"memory://tests/times/{file}")
    fsspec.filesystem("memory").pipe(f"/tests/times/{file}/train/timing/{file}", b"damaged")
    dataset = StateStore.open(store.path, writable=True).dataset("train")
    place = Region(slice(0, 2), 20, 40)
    dataset.write(place, inputs[0:2, 20:40], states[0:2, 20:40], timing=(7.0, 0.25))
    dataset = StateStore.open(store.path).dataset("train")
    assert dataset.times_given_up is not None
    np.testing.assert_array_equal(dataset.timing[0], [[np.nan] * 2, [7.0, 0.25], [np.nan] * 2])
    np.testing.assert_array_equal(dataset.states[:], states)


def test_who_may_not_write_is_told_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, inputs, states = filled(tmp_path / "s")
    dataset, place = store.dataset("train"), Region(slice(0, 2), 0, 20)

    def forbidden(self: DurableStore, key: str, value: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self.root / key))

    monkeypatch.setattr(DurableStore, "set_sync", forbidden)
    for change in (
        lambda: dataset.write(place, inputs[0:2, :20], states[0:2, :20], timing=(0.0, 0.0)),
        lambda: store.commit(1),
        lambda: store.close_segment([], complete=True),
        lambda: store.add("more", sequences=1, inputs=1, nodes=1, chunk_steps=1),
    ):
        with pytest.raises(PermissionError) as error:
            change()
        said = str(error.value.strerror)
        assert said.startswith(f"{tmp_path / 's'} cannot be written: Permission denied ({tmp_path / 's'}")
        assert said.endswith("; ask its owner to let you read and write it")
    with pytest.raises(ConfigurationError, match="t cannot be written: Permission denied; name another place"):
        StateStore.create(tmp_path / "t", {}, {"x": {"sequences": 1, "inputs": 1, "nodes": 1, "chunk_steps": 1}})


def test_an_old_snapshot_is_not_taken_for_the_last(tmp_path: Path) -> None:
    store, _, _ = filled(tmp_path / "store")
    path = tmp_path / "store" / "snapshots"
    slot = store._journal.attrs["snapshot"]
    store.commit(7, snapshot={"x": np.ones(3)})
    shutil.copytree(path / slot, tmp_path / "old")
    store.commit(8, snapshot={"x": np.ones(3)})
    last = store.snapshot()
    assert last is not None
    assert last["x"].tolist() == [1.0] * 3
    shutil.rmtree(path / slot)
    shutil.copytree(tmp_path / "old", path / slot)
    with pytest.raises(ConfigurationError, match=r"damaged.*place \d, not 8"):
        StateStore.open(tmp_path / "store").snapshot()


def test_a_data_set_that_was_not_finished_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _, states = filled(tmp_path / "store")

    def dying(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        store.add("more", sequences=1, inputs=1, nodes=1, chunk_steps=5)
    monkeypatch.undo()
    again = StateStore.open(tmp_path / "store", writable=True)
    assert list(again.datasets) == ["train"]
    again.add("more", sequences=1, inputs=1, nodes=1, chunk_steps=5)
    assert list(again.datasets) == ["more", "train"]
    again.remove_leftovers()
    assert not list((tmp_path / "store").glob("*.partial"))
    np.testing.assert_array_equal(again.dataset("train").states[:], states)


def test_the_sequence_that_was_not_harvested_is_named(tmp_path: Path) -> None:
    store, inputs, states = filled(tmp_path / "store")
    dataset, place = store.dataset("train"), Region(slice(0, 2), 20, 40)
    cut = states[0:2, 20:40].copy()
    cut[1, 13:] = np.nan
    dataset.write(place, inputs[0:2, 20:40], cut, timing=(0.0, 0.5))
    with pytest.raises(ConfigurationError, match="steps 33 to 39 of sequence 1 were never harvested"):
        dataset.read(place)
    np.testing.assert_array_equal(dataset.read_states(Region(slice(0, 1), 20, 40)), states[0:1, 20:40])
    with pytest.raises(ShapeError, match="not one group of 2"):
        dataset.write(Region(slice(0, 1), 20, 40), inputs[0:1, 20:40], states[0:1, 20:40], timing=(0.0, 0.5))


def lose(path: Path, array: str, group: int, chunk: int) -> None:
    (path / "train" / array / "c" / str(group) / str(chunk) / "0").unlink()


def test_lost_inputs_are_damage_and_those_never_written_are_not(tmp_path: Path) -> None:
    path = tmp_path / "store"
    _, inputs, _ = filled(path)
    lose(path, "inputs", 0, 1)
    dataset = StateStore.open(path).dataset("train")
    np.testing.assert_array_equal(dataset.read_inputs(slice(2, 3), 0, 50), inputs[2:])
    np.testing.assert_array_equal(dataset.read_inputs(slice(0, 3), 40, 50), inputs[:, 40:])
    with pytest.raises(ConfigurationError, match="inputs of train, steps 25 to 39 of sequence 1: they were written"):
        dataset.read_inputs(slice(1, 3), 25, 50)
    lose(path, "states", 0, 1)
    assert np.isnan(dataset.read_inputs(slice(0, 2), 0, 50)[:, 20:40]).all()
    StateStore.open(path, writable=True).close_segment([], complete=True)
    with pytest.raises(ConfigurationError, match="steps 20 to 39 of sequence 0"):
        StateStore.open(path).dataset("train").read_inputs(slice(0, 3), 0, 50)


def test_each_commit_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several would leave, after a crash between them, the count of one commit with the snapshot of another."""
    store, _, _ = filled(tmp_path / "store")
    journal = tmp_path / "store" / "journal" / "zarr.json"
    seen: list[str] = []
    replace = Path.replace

    def watching(self: Path, target: Path) -> Path:
        if Path(target) == journal:
            seen.append(self.read_text())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watching)
    store.commit(7, snapshot={"x": np.zeros(1)}, segments=[{"status": "running"}])
    assert len(seen) == 1


@pytest.mark.parametrize("harm", ["none", "damaged", "lost"])
def test_the_time_axis_grows_with_its_coordinate(tmp_path: Path, harm: str) -> None:
    spec = {"step_period_s": 0.5, "node_names": ["x", "µ", "[V]"], "state_unit": "V"}
    store = StateStore.create(tmp_path / "store", {"spec": spec})
    dataset = store.add("000", sequences=2, inputs=1, nodes=3, chunk_steps=10)
    states = block(2, 25, 3)
    for start in (0, 10, 20):
        stop = min(start + 10, 25)
        place = Region(slice(0, 2), start, stop)
        dataset.write(place, block(2, stop - start, 1), states[:, start:stop], timing=(0.0, 0.0))
        axis = tmp_path / "store" / "000" / "step"
        if start == 10 and harm == "damaged":
            (axis / "c" / "0").write_bytes(b"garbage")
        elif start == 10 and harm != "none":
            shutil.rmtree(axis)
            dataset = StateStore.open(tmp_path / "store", writable=True).dataset("000")
    dataset = StateStore.open(tmp_path / "store").dataset("000")
    np.testing.assert_array_equal(dataset.states[:], states)
    plain: Any = zarr.open_group(tmp_path / "store", mode="r")["000"]
    np.testing.assert_array_equal(plain["step"][:], 0.5 * np.arange(25))
    assert plain["step"].attrs["units"] == "s"
    assert plain["node"][:].tolist() == spec["node_names"]
    assert plain["channel"][:].tolist() == [0]
    assert plain["sequence"][:].tolist() == [0, 1]
    assert (plain["inputs"].attrs["units"], plain["states"].attrs["units"]) == ("1", "V")
    for name, coordinate in dataset.coordinates.items():
        assert plain[name].metadata.dimension_names == (name,)
        assert plain[name][:].tolist() == coordinate.values.tolist()
    dataset = StateStore.open(tmp_path / "store", writable=True).dataset("000")
    with pytest.raises(ShapeError, match="not one chunk of 10 steps"):
        dataset.write(Region(slice(0, 2), 25, 30), block(2, 5, 1), block(2, 5, 3), timing=(0.0, 0.0))


def test_data_sets_come_in_the_order_in_which_they_were_numbered(tmp_path: Path) -> None:
    store = StateStore.create(tmp_path / "store", {})
    names = ["test", "train", "train.2", "train.10", "999", "1000"]
    for name in names[::-1]:
        store.add(name, sequences=1, inputs=1, nodes=1, chunk_steps=1)
    assert list(StateStore.open(tmp_path / "store").datasets) == names


def test_creating_a_store_touches_nothing_beside_it(tmp_path: Path) -> None:
    filled(tmp_path / "monday.new")
    (tmp_path / ".monday.making").mkdir()
    left = tmp_path / f".monday.{32 * 'a'}.making"
    (left / "journal").mkdir(parents=True)
    os.symlink(tmp_path / "monday.new", tmp_path / f".monday.{32 * 'b'}.making")
    made(tmp_path / "monday")
    assert StateStore.open(tmp_path / "monday.new").committed == 6
    # Only what a process that died has left is removed.
    assert not left.exists()
    assert (tmp_path / ".monday.making").is_dir()


def test_two_processes_do_not_make_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def meanwhile(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        with pytest.raises(ConfigurationError, match="is being made by another process"):
            StateStore.create(tmp_path / "s", {})
        rename(source, target)

    monkeypatch.setattr(os, "rename", meanwhile)
    StateStore.create(tmp_path / "s", {"made_by": "the first"})
    assert StateStore.open(tmp_path / "s").facts["made_by"] == "the first"


@pytest.mark.parametrize("files", range(8))
def test_a_data_set_whose_growth_was_cut_is_read_and_grown(
    tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore.create(tmp_path / "s", {})
    dataset = store.add("000", sequences=1, inputs=1, nodes=2, chunk_steps=10)
    inputs, states = block(1, 20, 1), block(1, 20, 2)
    dataset.write(Region(slice(0, 1), 0, 10), inputs[:, :10], states[:, :10], timing=(1.0, 0.5))
    left, replace = files, Path.replace

    def dying(self: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("cut")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(OSError, match="cut"):
        dataset.write(Region(slice(0, 1), 10, 20), inputs[:, 10:], states[:, 10:], timing=(2.0, 0.5))
    monkeypatch.undo()
    again = StateStore.open(tmp_path / "s", writable=True).dataset("000")
    assert again.timing.shape == (1, again.steps // 10, 2)
    assert again.inputs.shape[1] >= again.steps
    again.read(Region(slice(0, 1), 0, 10))
    again.write(Region(slice(0, 1), 10, 20), inputs[:, 10:], states[:, 10:], timing=(2.0, 0.5))
    np.testing.assert_array_equal(again.states[:], states)
    assert again.timing[0, :, 0].tolist() == [1.0, 2.0]
    plain: Any = zarr.open_group(tmp_path / "s", mode="r")
    assert plain["000/step"][:].tolist() == list(range(20))


def test_damaged_times_are_an_error_and_not_times(tmp_path: Path) -> None:
    _, inputs, states = filled(tmp_path / "s")
    path = tmp_path / "s" / "train" / "timing"
    chunk = path / "c" / "0" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(ConfigurationError, match="s is damaged: times of train cannot be read"):
        _ = StateStore.open(tmp_path / "s").dataset("train").timing
    # Even their description is made anew by who writes.
    (path / "zarr.json").write_text("garbage")
    dataset = StateStore.open(tmp_path / "s", writable=True).dataset("train")
    np.testing.assert_array_equal(dataset.states[:], states)
    dataset.write(Region(slice(0, 2), 20, 40), inputs[:2, 20:40], states[:2, 20:40], timing=(7.0, 0.5))
    assert np.nansum(StateStore.open(tmp_path / "s").dataset("train").timing) == 7.5


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("train/states/zarr.json", '"clevel"', '"clevek"'),
        ("train/inputs/zarr.json", '"NaN"', '"NeN"'),
        ("train/zarr.json", '"attributes"', '"attribuves"'),
        ("zarr.json", '"attributes"', '"attribuves"'),
        ("journal/zarr.json", '"attributes"', '"attribuves"'),
        ("journal/zarr.json", '"places": 6', '"places": "x"'),
        ("journal/zarr.json", '"places": 6', '"places": -6'),
        ("journal/zarr.json", '"complete": false', '"complete": 6'),
        ("journal/zarr.json", '"snapshot": "b"', '"snapshot": "j"'),
        ("journal/zarr.json", '"segments": []', '"segments": [3]'),
    ],
)
def test_a_flipped_bit_is_damage(tmp_path: Path, file: str, old: str, new: str) -> None:
    filled(tmp_path / "s")
    text = (tmp_path / "s" / file).read_text()
    assert old in text
    (tmp_path / "s" / file).write_text(text.replace(old, new))
    with pytest.raises(ConfigurationError, match=r"is damaged|or is damaged"):
        _ = StateStore.open(tmp_path / "s").datasets


@pytest.mark.parametrize("file", ["zarr.json", "journal/zarr.json", "train/zarr.json", "train/states/zarr.json"])
def test_what_may_not_be_read_is_no_damage(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "s")
    forbid(monkeypatch, tmp_path / "s" / file)
    with pytest.raises(ConfigurationError, match="ask its owner") as error:
        _ = StateStore.open(tmp_path / "s").datasets
    assert "damaged" not in str(error.value)
    assert str(tmp_path / "s") in str(error.value)
    assert not is_damage(error.value)


def forbid(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Tests may run as root, who may read everything."""
    get = LocalStore.get

    async def refusing(self: LocalStore, key: str, *arguments: Any, **more: Any) -> Any:
        if self.root / key == file:
            raise PermissionError(13, "Permission denied", str(file))
        return await get(self, key, *arguments, **more)

    monkeypatch.setattr(LocalStore, "get", refusing)


def test_who_only_reads_is_told_so(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    (tmp_path / "s" / "x.partial").write_text("of a writer that lives")
    store = StateStore.open(tmp_path / "s")
    for change in (
        store.remove_leftovers,
        lambda: store.commit(1),
        lambda: store.commit(1, snapshot={"x": np.ones(1)}),
        lambda: store.close_segment([], complete=True),
        lambda: store.add("more", sequences=1, inputs=1, nodes=1, chunk_steps=1),
        lambda: store.dataset("train").write(
            Region(slice(0, 2), 60, 80), block(2, 20, 1), block(2, 20, 4), timing=(0.0, 0.0)
        ),
    ):
        with pytest.raises(ConfigurationError, match="opened to be read: open it with writable=True"):
            change()
    assert (tmp_path / "s" / "x.partial").exists()


LEARN = """
import sys
from pathlib import Path
import numpy as np
from reservoir_hw.readout import RidgeReadout
from reservoir_hw.core.store import StateStore

dataset = StateStore.open(sys.argv[1]).dataset("train")

def chunks():
    for place in dataset.regions():
        inputs, states = dataset.read(place)
        yield states, inputs, None, place.start == 0

readout = RidgeReadout(1e-6).fit(chunks())
print(readout.n_samples_, float(np.abs(readout.weights_).max()))
# Of this program alone: ru_maxrss begins with the memory of the process that started it.
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow
def test_a_readout_learns_from_eight_gigabytes_within_one(tmp_path: Path) -> None:
    """Every chunk is a link to the first one, so the states are sparse on the disk and whole for who reads them."""
    nodes, chunk, chunks = 100, 1 << 16, 306
    store = StateStore.create(tmp_path / "store", {})
    dataset = store.add("train", sequences=1, inputs=1, nodes=nodes, chunk_steps=chunk, steps=chunk * chunks)
    states = block(1, chunk, nodes)
    targets = states @ np.linspace(-1, 1, nodes, dtype=np.float32)[:, None]
    dataset.write(Region(slice(0, 1), 0, chunk), targets, states, timing=(0.0, 0.0))
    for name in ("inputs", "states"):
        first = tmp_path / "store" / "train" / name / "c" / "0" / "0" / "0"
        for number in range(1, chunks):
            link = first.parents[1] / str(number) / "0"
            link.parent.mkdir()
            os.link(first, link)
    store.commit(chunks)
    assert chunk * chunks * nodes * 4 > 8e9
    # Threads of small matrix products wait for each other on busy cores, up to a hundred times the product itself.
    done = subprocess.run(
        [sys.executable, "-c", LEARN, tmp_path / "store"],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    learned, memory_kb = done.stdout.splitlines()
    rows, largest = learned.split()
    assert int(rows) == chunk * chunks
    assert float(largest) == pytest.approx(1.0, abs=1e-3)
    assert int(memory_kb) < 1e6
