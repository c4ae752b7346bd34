"""Harvests that are killed, cut and resumed, in processes of their own and with toys."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chemical_cell
import numpy as np
import pytest
from command_line import started
from harvests import committed
from shared import narma
from toys import Toy
from zarr.storage import LocalStore

from reservoir_hw import Experiment
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, MissingExtra
from reservoir_hw.core.store import Dataset, Region, StateStore
from reservoir_hw.core.store.durable import DurableStore
from reservoir_hw.experiment.configuration.experiment import TrainingConfig
from reservoir_hw.experiment.run.learning import trained
from reservoir_hw.experiment.states.drive import driven
from reservoir_hw.experiment.states.harvest import (
    about_changes,
    harvest,
    harvest_lock,
    layout,
    store_path,
    stored,
)
from reservoir_hw.experiment.states.plan import Burst, plan
from reservoir_hw.experiment.states.resuming import about_interruptions
from reservoir_hw.tasks.task import Evaluation, OutputScale, Split, Task

STEPS, TEST_STEPS, CHUNK = 3000, 1000, 100

EXPERIMENT = f"""\
task: {{kind: narma, train_steps: {STEPS}, test_steps: {TEST_STEPS}}}
reservoir: {{kind: esn, nodes: 40, nonidealities: {{loop: {{noise: 0.01}}, readout: {{noise: 0.01}}}}}}
readout: {{kind: ridge, washout: 100}}
training: {{priming_passes: 1}}
run: {{chunk_steps: {CHUNK}, states: states, folder: runs}}
"""


def judged(result: Any) -> list[Any]:
    """What was found, without what it took."""
    return [(row.label, dict(row.point), row.evaluation.metrics) for row in result.rows]


def quiet(_: int) -> None:
    pass


def states_of(folder: Path) -> dict[str, str]:
    """Every chunk of states and inputs with its digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in ("states", "inputs")
        for path in sorted(folder.glob(f"*/{name}/c/**/*"))
        if path.is_file()
    }


def start(folder: Path, *, limit: int | None = None) -> subprocess.Popen[str]:
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return started("harvest", "experiment.yaml", "--json", cwd=folder, preexec_fn=limited)


def prepared(folder: Path, steps: int = STEPS) -> Path:
    folder.mkdir()
    text = EXPERIMENT.replace(f"train_steps: {STEPS}", f"train_steps: {steps}")
    (folder / "experiment.yaml").write_text(text.replace(f"test_steps: {TEST_STEPS}", f"test_steps: {steps // 3}"))
    return folder


def undisturbed(folder: Path) -> dict[str, str]:
    with contextlib.chdir(folder):
        Experiment.from_file("experiment.yaml").harvest()
    return states_of(next((folder / "states").iterdir()))


def kill_and_resume(folder: Path, kills: int, seed: int) -> int:
    """Kill a harvest `kills` times at random, each time after it got on, and let it finish; returns the segments."""
    chance = random.Random(seed)
    for left in range(kills, 0, -1):
        before = committed(folder)
        room = (STEPS + TEST_STEPS) // CHUNK - 1 - max(before, 0)
        wanted = max(before, 0) + chance.randint(0, max(1, room // left))
        process = start(folder)
        while committed(folder) < wanted:
            if process.poll() is not None:
                break
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(folder)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return len(json.loads(output)["stores"][0]["segments"])


@pytest.mark.slow
def test_a_harvest_that_is_killed_twenty_times_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = undisturbed(prepared(tmp_path / "whole"))
    folder = prepared(tmp_path / "killed")
    assert kill_and_resume(folder, kills=20, seed=2) >= 10
    assert states_of(next((folder / "states").iterdir())) == whole


@pytest.mark.slow
def test_a_full_disk_keeps_what_was_harvested(tmp_path: Path) -> None:
    whole = undisturbed(prepared(tmp_path / "whole", 600))
    folder = prepared(tmp_path / "full", 600)
    # No file may grow beyond this: the chunks of states do.
    process = start(folder, limit=10_000)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "File too large" in errors
    assert "Traceback" not in errors
    assert undisturbed(folder) == whole


def experiment(folder: Path, **sections: Any) -> Experiment:
    given = {"task": {"train_steps": 500, "test_steps": 300}, "reservoir": {"nonidealities": {"loop": {"noise": 0.01}}}}
    return narma(folder, **{**sections, **{name: {**keys, **sections.get(name, {})} for name, keys in given.items()}})


@pytest.fixture(scope="module")
def _harvested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harvested")
    experiment(folder).harvest()
    return folder / "states"


@pytest.fixture
def harvested(_harvested: Path) -> Callable[[Path], Path]:
    """Puts the store of `experiment` into a folder, as a harvest there would; returns its path."""

    def put(folder: Path) -> Path:
        (store,) = shutil.copytree(_harvested, folder / "states").iterdir()
        return store

    return put


def test_a_run_takes_the_states_of_a_harvest_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driven = experiment(tmp_path).run(report=False)
    assert not driven.notes
    stores = experiment(tmp_path).harvest()
    assert [store.complete for store in stores] == [True]
    # The device is not touched again: not by the runs, nor by a second harvest.
    monkeypatch.setattr(Esn, "_run", None)
    harvested = experiment(tmp_path).run(report=False)
    assert judged(harvested) == judged(driven)
    assert "states were read from" in harvested.notes[0]
    assert harvested.provenance["rows"][0]["reservoir"]["states"] == stores[0].path
    assert harvested.provenance["rows"][0]["reservoir"]["identity"]["model"]
    # Another readout is another experiment on the same states.
    other = experiment(tmp_path, readout={"alpha": 1e-2}).run(report=False)
    assert other.metrics["rows"] != driven.metrics["rows"]
    assert experiment(tmp_path).harvest()[0].path == stores[0].path


def test_a_run_without_a_harvest_does_without_zarr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    assert experiment(tmp_path).run(report=False).status == "complete"
    with pytest.raises(MissingExtra, match=r"reservoir-hw\[store\]"):
        experiment(tmp_path).harvest()


def test_points_that_share_their_states_share_a_store(tmp_path: Path) -> None:
    both = experiment(tmp_path, reservoir={"vary": {"nodes": [20, 30]}}, vary={"readout.alpha": [1e-6, 1e-2]})
    assert len(both.harvest()) == 2
    assert both.estimate(harvest=True).runs == 2
    assert "kept on disk" in str(both.estimate(harvest=True))
    assert len(both.run(report=False).notes) == 2


def test_the_name_of_a_harvest_says_what_decides_about_its_states(tmp_path: Path) -> None:
    def name(**changes: Any) -> str:
        document = {
            "task": {"kind": "memory_recall", "delays": [1], "train_steps": 20, "test_steps": 10},
            "reservoir": {"kind": "zmq", "address": "tcp://bench:5555", "inputs": 1},
            "readout": {"kind": "ridge"},
            "run": {"states": str(tmp_path)},
        }
        given = Document.from_mapping(document, "a test")
        for key, value in changes.items():
            given.set(key, value, key)
        (point,) = Experiment(given).points
        return store_path(point, point.config.task.build())

    base = name()
    for key, value in {"timeout_s": 60.0, "credits": 2, "chunk_steps": 7, "check_states": True}.items():
        assert name(**{f"reservoir.{key}": value}) == base, "how the device is talked to decides nothing"
    assert name(**{"training.test_warmup_steps": 200}) == base, "a default that is written down decides nothing"
    others = {"reservoir.address": "tcp://bench:6666", "task.train_steps": 21, "training.priming_passes": 1}
    assert len({base, *(name(**{key: value}) for key, value in others.items())}) == 4


def test_an_unfinished_harvest_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    run = Esn._run

    def failing(self: Esn, u: Any, out: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise DeviceFault("cable pulled", steps_done=0)
        return run(self, u, out)

    monkeypatch.setattr(Esn, "_run", failing)
    with pytest.raises(DeviceFault, match="cable pulled"):
        experiment(tmp_path).harvest()
    store = StateStore.open(next((tmp_path / "states").iterdir()))
    assert (store.committed, store.complete) == (3, False)
    assert store.segments[0]["status"] == "failed: DeviceFault: cable pulled"
    assert store.segments[0]["reservoir"]["counters"]["faults"] == 1
    result = experiment(tmp_path).run(report=False)
    assert "unfinished harvest" in result.notes[0]
    experiment(tmp_path).harvest()
    assert judged(experiment(tmp_path).run(report=False)) == judged(result)


def test_a_store_of_another_device_or_of_other_data_is_refused(
    tmp_path: Path, harvested: Callable[[Path], Path]
) -> None:
    path = harvested(tmp_path)
    journal = journal_of(path)
    journal["segments"][0]["identity"]["fingerprint"] = "0" * 64
    cut(path, 2, segments=journal["segments"], snapshot=journal["snapshot"])
    with pytest.raises(ConfigurationError, match=r"harvested on another device.*fingerprint was '00000"):
        experiment(tmp_path).harvest()
    changed(path / "train" / "zarr.json", inputs_sha256="0" * 64)
    with pytest.raises(ConfigurationError, match="other train inputs"):
        experiment(tmp_path).run(report=False)


def test_a_damaged_chunk_is_an_error_and_not_a_state(tmp_path: Path, harvested: Callable[[Path], Path]) -> None:
    path = harvested(tmp_path)
    chunk = path / "train" / "states" / "c" / "0" / "2" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    # It is complete: all of it is read by who needs it.
    store = experiment(tmp_path).harvest()[0]
    assert (store.complete, len(store.segments)) == (True, 1)
    with pytest.raises(
        ConfigurationError,
        match="states of train, steps 200 to 299 of sequence 0: cannot be read.*restore .*/train/states/c/0/2/0 from a "
        f"copy, or remove [^;]*{path.name} and harvest again",
    ):
        experiment(tmp_path).run(report=False)
    chunk.unlink()
    with pytest.raises(ConfigurationError, match="never harvested"):
        experiment(tmp_path).run(report=False)


def changed(file: Path, **attributes: Any) -> None:
    document = json.loads(file.read_text())
    document["attributes"] |= attributes
    file.write_text(json.dumps(document))


def cut(path: Path, places: int, **attributes: Any) -> None:
    """As a process that was killed after so many chunks leaves a store."""
    changed(path / "journal" / "zarr.json", **{"complete": False, "places": places, "snapshot": None, **attributes})


def journal_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "journal" / "zarr.json").read_text())["attributes"]


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("places", "array", "damage"),
    [
        (4, "states", b"flipped"),
        (4, "inputs", None),
        (8, "states", b""),
        (8, "inputs", b"garbage"),
        *(
            pytest.param(places, array, damage, marks=pytest.mark.slow)
            for places in (4, 7, 8)
            for array in ("states", "inputs")
            for damage in (b"", b"garbage", b"flipped", None)
        ),
    ],
)
def test_on_a_damaged_chunk_that_counts_nothing_is_built(
    tmp_path: Path,
    harvested: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
    places: int,
    array: str,
    damage: bytes | None,
) -> None:
    path = harvested(tmp_path)
    right = states_of(path)
    cut(path, places)
    name, chunk = ("train", 2) if places == 4 else ("test", 1)
    file = path / name / array / "c" / "0" / str(chunk) / "0"
    whole = file.read_bytes()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(bytes([*whole[:-1], whole[-1] ^ 1]) if damage == b"flipped" else damage)
    (path / "train" / "x.partial").write_text("of a process that died")
    before = contents_of(path)

    def never(*_: Any) -> None:
        raise AssertionError("the device was opened")

    monkeypatch.setattr(Esn, "__init__", never)
    steps = f"steps {100 * chunk} to {100 * chunk + 99} of sequence 0"
    advice = f"nothing was changed: restore {file} from a copy, or remove {path} and harvest again"
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=rf"{array} of {name}, {steps}.*{advice}") as error:
            experiment(tmp_path).harvest()
        assert "\n" not in str(error.value)
        assert "never harvested" not in str(error.value)
        assert contents_of(path) == before
    # With the file from a copy it goes on.
    monkeypatch.undo()
    file.write_bytes(whole)
    assert experiment(tmp_path).harvest()[0].complete
    assert states_of(path) == right


def test_damaged_times_are_no_reason_not_to_go_on(tmp_path: Path, harvested: Callable[[Path], Path]) -> None:
    path = harvested(tmp_path)
    right = states_of(path)
    cut(path, 4)
    (path / "train" / "timing" / "c" / "0" / "0" / "0").write_bytes(b"damaged")
    assert experiment(tmp_path).harvest()[0].complete
    assert states_of(path) == right


def test_checking_tells_how_far_it_is(
    tmp_path: Path, harvested: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = harvested(tmp_path)
    cut(path, 6)
    read, now, said = Dataset.read_states, time.monotonic(), list[str]()

    def slow(self: Dataset, place: Region) -> np.ndarray:
        nonlocal now
        now += 0.5
        return read(self, place)

    monkeypatch.setattr(Dataset, "read_states", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    experiment(tmp_path).harvest(lambda what, *_: said.append(what))
    assert said[0].endswith("checking what is there")
    assert said[1:3] == [f"checking {path}: chunk {number} of 6" for number in (3, 5)]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied.*ask its owner"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_what_cannot_be_read_now_is_no_damage(
    tmp_path: Path, harvested: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch, trouble: Exception, told: str
) -> None:
    path = harvested(tmp_path)
    cut(path, 4)
    before = contents_of(path)

    def forbidden(file: Path) -> None:
        async def refusing(self: LocalStore, key: str, *arguments: Any, **more: Any) -> Any:
            if self.root / key == file:
                raise trouble
            return await get(self, key, *arguments, **more)

        monkeypatch.setattr(LocalStore, "get", refusing)

    get = LocalStore.get
    for name in ("train/states/c/0/1/0", "train/inputs/c/0/1/0", "journal/zarr.json", "train/states/zarr.json"):
        forbidden(path / name)
        with pytest.raises(ConfigurationError, match=told) as error:
            experiment(tmp_path).harvest()
        assert "remove" not in str(error.value)
        if "/c/" in name:
            assert str(path / name) in str(error.value)
        assert contents_of(path) == before


def test_who_may_not_write_is_told_so_and_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sync, right = DurableStore.set_sync, states_of(Path(experiment(tmp_path / "whole").harvest()[0].path))

    def forbidden(self: DurableStore, key: str, value: Any) -> None:
        nonlocal left
        left -= key.startswith("train/states/c")
        if left < 0:
            raise PermissionError(13, "Permission denied", str(self.root / key))
        set_sync(self, key, value)

    left = 3
    monkeypatch.setattr(DurableStore, "set_sync", forbidden)
    with pytest.raises(
        PermissionError, match=r"states/esn-.* cannot be written: Permission denied .*ask its owner"
    ) as e:
        experiment(tmp_path).harvest()
    path = next((tmp_path / "states").iterdir())
    assert e.value.__notes__ == [f"3 of 8 chunks are safe in {path}; the same command goes on from there"]
    assert StateStore.open(path).committed == 3
    monkeypatch.undo()
    assert experiment(tmp_path).harvest()[0].complete
    assert states_of(path) == right


def test_a_whole_store_that_lacks_a_data_set_is_not_whole(tmp_path: Path, harvested: Callable[[Path], Path]) -> None:
    path = harvested(tmp_path)
    shutil.move(path / "test" / "zarr.json", tmp_path)
    for command in (experiment(tmp_path).harvest, experiment(tmp_path).run):
        with pytest.raises(ConfigurationError, match=r"data set test cannot be read.*; restore .* or remove it"):
            command()
    shutil.rmtree(path / "test")
    for command in (experiment(tmp_path).harvest, experiment(tmp_path).run):
        with pytest.raises(ConfigurationError, match=r"no data set 'test'.*; restore .* or remove it"):
            command()


def test_a_store_that_contradicts_its_plan_is_damaged(tmp_path: Path, harvested: Callable[[Path], Path]) -> None:
    path = harvested(tmp_path)
    journal, array = path / "journal" / "zarr.json", path / "train" / "states" / "zarr.json"
    for places in (999, 3):
        changed(journal, places=places)
        with pytest.raises(ConfigurationError, match=f"its journal counts {places} chunks of 8.*or remove it"):
            experiment(tmp_path).run(report=False)
    changed(journal, places=8)
    text = array.read_text()
    array.write_text(text.replace("500", "700"))
    with pytest.raises(ConfigurationError, match=r"states of train are \(1, 700, 30\)"):
        experiment(tmp_path).run(report=False)
    array.write_text(text)
    changed(path / "zarr.json", chunk_steps="x")
    with pytest.raises(ConfigurationError, match=r"its zarr.json describes no harvest"):
        experiment(tmp_path).run(report=False)


def test_a_store_named_by_an_address_is_locked_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for states in (f"file://{tmp_path}/states", "memory://tests/locked"):
        one, path = (experiment(tmp_path, run={"states": name}) for name in (states, states.removeprefix("file://")))
        (point, task), (same, _) = one._checked_points()[0], path._checked_points()[0]
        with harvest_lock(point, task):
            monkeypatch.chdir(tmp_path / "elsewhere")
            for other in (point, same):
                with pytest.raises(ConfigurationError, match="is being filled"), harvest_lock(other, task):
                    pass
            monkeypatch.chdir(tmp_path)


class Sequences(Task):
    """Noise in, the same noise out: what is driven matters, not how well it is done."""

    def __init__(self, sequences: int, steps: int, tests: int = 1) -> None:
        rng = np.random.default_rng(0)
        self.train, self.test = (
            Split(u, u[..., :1].copy())
            for u in (rng.uniform(-1, 1, (n, steps, 2)).astype(np.float32) for n in (sequences, tests))
        )

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        del scale
        return Evaluation({"error": float(np.mean((outputs - self.test.targets) ** 2))})


class Failing(Toy):
    """Fails in the call or chunk of the given number."""

    def __init__(self, fails_in: int | None = None, **declared: Any) -> None:
        super().__init__(**declared)
        self.left = fails_in

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise DeviceFault("cut", steps_done=0)
        return super()._run(u, out)


class FreeRunning(Failing):
    """Goes on between two chunks if it is not fed: can only be streamed."""

    def __init__(self, fails_in: int | None = None, memory_steps: int = 0) -> None:
        super().__init__(fails_in, continuity="free_running", max_batch=1, memory_steps=memory_steps)

    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        for chunk in chunks:
            yield self._run(chunk, None)


def bursts_of(task: Task, max_batch: int | None = None, guard: int | None = None) -> list[Burst]:
    return plan(task, TrainingConfig(guard_steps=guard), chunk_steps=20, max_batch=max_batch)


def store_of(path: Path, task: Task, toy: Toy, bursts: list[Burst]) -> StateStore:
    facts = {"spec": toy.spec.model_dump(mode="json")}
    store = StateStore.create(path, facts, layout(bursts, toy.spec, task))
    harvest(toy, bursts, store, quiet)
    return store


def resumed(path: Path, task: Task, broken: Toy, whole: Toy, bursts: list[Burst]) -> StateStore:
    with broken, pytest.raises(DeviceFault):
        store_of(path, task, broken, bursts)
    store = StateStore.open(path, writable=True)
    with whole:
        harvest(whole, bursts, store, quiet)
    return store


@pytest.mark.slow
def test_a_free_running_device_starts_again_with_the_sequence_that_was_cut(tmp_path: Path) -> None:
    task = Sequences(3, 100)
    bursts = bursts_of(task, max_batch=1)
    with FreeRunning() as toy:
        undisturbed = store_of(tmp_path / "whole", task, toy, bursts)
    # Cut in the third chunk of the second sequence.
    store = resumed(tmp_path / "cut", task, FreeRunning(fails_in=7), FreeRunning(), bursts)
    first, second = store.segments
    assert (first["status"], first["places"], first["seam"]) == ("failed: DeviceFault: cut", 7, None)
    assert second["seam"] == {"kind": "started again", "steps": 0, "dataset": "train", "place": 5}
    assert (second["first_place"], second["places"]) == (5, 15)
    assert store.complete
    assert store.committed == 20
    assert states_of(tmp_path / "cut") == states_of(tmp_path / "whole")
    # What is read counts every step once.
    seen = [chunk.place for chunk, _ in stored(store, bursts, quiet) if chunk.split == "train"]
    assert len(seen) == 15
    assert sum(place.stop - place.start for place in seen if place) == 300
    assert undisturbed.segments[0]["places"] == 20


@pytest.mark.parametrize("kind", [Failing, FreeRunning])
def test_a_device_that_declares_its_memory_is_driven_with_it_again(
    tmp_path: Path, kind: type[Failing] | type[FreeRunning]
) -> None:
    task = Sequences(1, 200)
    bursts = bursts_of(task)
    with Toy() as toy:
        store_of(tmp_path / "whole", task, toy, bursts)
    store = resumed(tmp_path / "cut", task, kind(4, memory_steps=60), kind(memory_steps=60), bursts)
    assert store.segments[1]["seam"] == {"kind": "driven again", "steps": 60, "dataset": "train", "place": 4}
    whole = StateStore.open(tmp_path / "whole").dataset("train").states[:]
    np.testing.assert_allclose(store.dataset("train").states[:], whole, atol=1e-15)


def test_a_device_without_memory_or_snapshot_starts_the_sequence_again(tmp_path: Path) -> None:
    task = Sequences(1, 200)
    bursts = bursts_of(task)
    toy = Failing(4)
    spec = toy.open().spec
    with toy, pytest.raises(DeviceFault) as cut:
        store_of(tmp_path / "cut", task, toy, bursts)
    assert "0 of 20 chunks are safe" in cut.value.__notes__[0]
    assert "4 more are driven again, with the rest of their sequence" in cut.value.__notes__[0]
    assert "memory_steps in the reservoir file" in about_interruptions(spec, bursts)
    store = StateStore.open(tmp_path / "cut", writable=True)
    with Failing() as whole:
        harvest(whole, bursts, store, quiet)
    assert store.segments[1]["seam"]["kind"] == "started again"
    assert store.segments[1]["first_place"] == 0
    assert store.complete


class Reporting(Failing):
    """Reads back a bias and a temperature."""

    def __init__(self, fails_in: int | None = None, **settings: Any) -> None:
        super().__init__(fails_in, memory_steps=60)
        self.settings = settings

    def read_back(self) -> dict[str, Any]:
        return self.settings

    @property
    def tolerances(self) -> dict[str, float]:
        return {"temperature_c": 0.5}


def test_what_a_device_reports_otherwise_than_before_needs_a_reason(tmp_path: Path) -> None:
    task = Sequences(1, 200)
    bursts = bursts_of(task)
    with Reporting(4, bias_v=0.2, temperature_c=21.0) as toy, pytest.raises(DeviceFault) as cut:
        store_of(tmp_path / "cut", task, toy, bursts)
    assert cut.value.__notes__ == [f"4 of 20 chunks are safe in {tmp_path}/cut; the same command goes on from there"]
    store = StateStore.open(tmp_path / "cut", writable=True)
    with (
        Reporting(bias_v=1.0, temperature_c=21.4) as toy,
        pytest.raises(ConfigurationError, match=r"bias_v was 0\.2 and is 1\.0 now; .*--accept-change"),
    ):
        harvest(toy, bursts, store, quiet)
    assert len(store.segments) == 1
    with Reporting(2, bias_v=1.0, temperature_c=21.4) as toy, pytest.raises(DeviceFault):
        harvest(toy, bursts, store, quiet, accept_change="new supply")
    with Reporting(bias_v=1.0, temperature_c=21.9) as toy:
        harvest(toy, bursts, store, quiet)
    seams = [segment["seam"] for segment in store.segments]
    assert (seams[1]["kind"], seams[1]["changes"], seams[1]["reason"]) == (
        "driven again", {"bias_v": [0.2, 1.0]}, "new supply",
    )  # fmt: skip
    assert "changes" not in seams[2]
    assert about_changes(store) == [
        f"{store.path} holds states from before and after a change of the device: bias_v was 0.2 and is 1.0 now "
        "(accepted: new supply)"
    ]


@pytest.mark.slow
def test_repetitions_are_kept_and_their_mean_is_learned_from(tmp_path: Path) -> None:
    once = experiment(tmp_path).run(report=False)
    live = experiment(tmp_path, training={"repetitions": 4}).run(report=False)
    assert live.metrics["rows"][0]["metrics"]["nmse"] < 0.9 * once.metrics["rows"][0]["metrics"]["nmse"]
    store = experiment(tmp_path, training={"repetitions": 4}).harvest()[0]
    assert sorted(store.datasets) == sorted(f"{s}{n}" for s in ("test", "train") for n in ("", ".1", ".2", ".3"))
    assert not np.array_equal(store.dataset("train").states[:], store.dataset("train.1").states[:])
    harvested = experiment(tmp_path, training={"repetitions": 4}).run(report=False)
    assert harvested.notes
    assert judged(harvested) == judged(live)


def test_one_process_at_a_time_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Esn._run

    def nosy(self: Esn, u: Any, out: Any) -> Any:
        with pytest.raises(ConfigurationError, match="is being filled by another harvest"):
            experiment(tmp_path).harvest()
        return run(self, u, out)

    monkeypatch.setattr(Esn, "_run", nosy)
    assert experiment(tmp_path).harvest()[0].complete


def test_several_groups_that_are_tested_with_their_training_are_all_learned_from() -> None:
    task = Sequences(3, 200, tests=3)
    samples, errors = [], []
    for max_batch, guard in ((None, None), (1, None), (2, None), (None, 60)):
        training = TrainingConfig(continuous=True, guard_steps=guard)
        with Toy() as toy:
            bursts = plan(task, training, chunk_steps=30, max_batch=max_batch)
            points = narma(Path(), reservoir={"nodes": 2}, readout={"washout": 10}).points
            ((readout, outputs),) = trained(points, task, driven(toy, bursts, quiet))
            samples.append(readout.report_["samples"])
            errors.append(task.evaluate(outputs).metrics["error"])
    assert samples == [3 * 190] * 4
    assert errors == pytest.approx([errors[0]] * 4, rel=1e-6)


DYING = """
import contextlib
import os, sys
from pathlib import Path

left, replace = int(sys.argv[1]), Path.replace

def dying(self, target):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    return replace(self, target)

Path.replace = dying
from reservoir_hw import Experiment
Experiment.from_file("experiment.yaml").harvest()
"""


@pytest.mark.parametrize("files", [9, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 20, 22))])
def test_a_store_appears_whole_or_not_at_all(tmp_path: Path, files: int) -> None:
    """A process that dies at its n-th file, while it makes a store, leaves nothing that the next one stumbles over."""
    whole = undisturbed(prepared(tmp_path / "whole", 600))
    folder = prepared(tmp_path / "cut", 600)
    died = subprocess.run([sys.executable, "-c", DYING, str(files)], cwd=folder, check=False)
    assert died.returncode == 9
    assert undisturbed(folder) == whole


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_snapshot_is_never_gone_on_from(
    tmp_path: Path, harvested: Callable[[Path], Path], damage: str
) -> None:
    whole = Path(experiment(tmp_path / "whole").harvest()[0].path)
    path = harvested(tmp_path)
    snapshot = journal_of(path)["snapshot"]
    cut(path, 3, snapshot=snapshot)
    chunk = path / "snapshots" / snapshot / "c" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    if damage == "gone":
        chunk.unlink()
    store = experiment(tmp_path).harvest()[0]
    assert store.complete
    assert store.segments[-1]["seam"]["kind"] == "started again"
    assert states_of(path) == states_of(whole)


# In the middle of a burst, and at the end of one.
@pytest.mark.slow
@pytest.mark.parametrize(("repetitions", "cuts", "found_earlier"), [(3, (21, 10), False), (2, (6, 10), True)])
def test_a_damaged_snapshot_repeats_no_noise(
    tmp_path: Path, repetitions: int, cuts: tuple[int, int], found_earlier: bool
) -> None:
    """The sequence that is driven again has its own noise, not that of the first one.

    If the process that found it ended before its first chunk, the next one finds no snapshot at all.
    """
    sections = {"training": {"repetitions": repetitions}}
    whole = Path(experiment(tmp_path / "whole", **sections).harvest()[0].path)
    path = Path(experiment(tmp_path, **sections).harvest()[0].path)
    for places in cuts:
        snapshot = journal_of(path)["snapshot"]
        cut(path, places, snapshot=None if found_earlier else snapshot)
        if not found_earlier:
            (path / "snapshots" / snapshot / "c" / "0").unlink()
        assert experiment(tmp_path, **sections).harvest()[0].complete
        assert states_of(path) == states_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drift", "replay"])
def test_without_a_snapshot_everything_before_is_as_it_was(tmp_path: Path, kind: str) -> None:
    """The drift of a simulation goes by its steps; which recording of a repetition a replay takes, by its drives."""
    repeated = {"training": {"repetitions": 2}}
    if kind == "drift":
        sections = {**repeated, "reservoir": {"nonidealities": {"loop": {"drift": 0.3, "drift_period_steps": 400}}}}
    else:
        recorded = {"run": {"record": str(tmp_path / "tape"), "folder": str(tmp_path / "runs")}}
        experiment(tmp_path / "recorded", **repeated, **recorded).run(report=False)
        sections = {**repeated, "reservoir": {"kind": "replay", "trace": str(tmp_path / "tape")}}
        for name in ("nodes", "nonidealities"):
            sections["reservoir"][name] = None
    whole = Path(experiment(tmp_path / "whole", **sections).harvest()[0].path)
    path = Path(experiment(tmp_path, **sections).harvest()[0].path)
    assert states_of(path) == states_of(whole)
    own = {name: digest for name, digest in states_of(path).items() if "/states/" in name}
    assert len(set(own.values())) == len(own), "repetitions that are alike would hide a mistake"
    count = journal_of(path)["places"]
    for places in (count // 2 - 1, count // 2):
        cut(path, places)
        assert experiment(tmp_path, **sections).harvest()[0].complete
        assert states_of(path) == states_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize("places", [1, 6])
def test_a_damaged_chunk_that_does_not_count_is_harvested_again(
    tmp_path: Path, harvested: Callable[[Path], Path], places: int
) -> None:
    """As a power failure may leave it."""
    whole = Path(experiment(tmp_path / "whole").harvest()[0].path)
    path = harvested(tmp_path)
    cut(path, places)
    chunks = [chunk for name in ("train", "test") for chunk in sorted((path / name).glob("states/c/0/*/0"))]
    for number, chunk in enumerate(chunks[places:]):
        chunk.write_bytes(b"" if number % 2 else b"garbage")
    assert experiment(tmp_path).harvest()[0].complete
    assert states_of(path) == states_of(whole)


@pytest.mark.parametrize("erased", [0, 1, 2])
def test_what_a_dying_process_did_not_erase_is_erased_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, erased: int
) -> None:
    task = Sequences(1, 200)
    bursts = bursts_of(task, max_batch=1)
    with FreeRunning(fails_in=8) as toy, pytest.raises(DeviceFault):
        store_of(tmp_path / "s", task, toy, bursts)

    class Died(Exception):
        pass

    true, left = Dataset.erase, erased

    def dying(dataset: Dataset, place: Region) -> None:
        nonlocal left
        if left == 0:
            raise Died
        left -= 1
        true(dataset, place)

    monkeypatch.setattr(Dataset, "erase", dying)
    with FreeRunning() as toy, pytest.raises(Died):
        harvest(toy, bursts, StateStore.open(tmp_path / "s", writable=True), quiet)
    monkeypatch.undo()
    with FreeRunning(fails_in=1) as toy, pytest.raises(DeviceFault):
        harvest(toy, bursts, StateStore.open(tmp_path / "s", writable=True), quiet)
    store = StateStore.open(tmp_path / "s")
    train = store.dataset("train")
    assert store.committed == 1
    assert [train.is_written(place) for place in train.regions()] == [True] + 9 * [False]


def test_states_of_a_drive_that_is_done_again_cannot_be_read(tmp_path: Path) -> None:
    task = Sequences(1, 200)
    bursts = bursts_of(task, max_batch=1)
    with FreeRunning(fails_in=8) as toy, pytest.raises(DeviceFault):
        store_of(tmp_path / "s", task, toy, bursts)
    store = StateStore.open(tmp_path / "s", writable=True)
    assert store.committed == 8
    with FreeRunning(fails_in=3) as toy, pytest.raises(DeviceFault):
        harvest(toy, bursts, store, quiet)
    assert store.committed == 3
    train = StateStore.open(tmp_path / "s").dataset("train")
    for number, place in enumerate(train.regions()):
        if number < 3:
            train.read(place)
        else:
            with pytest.raises(ConfigurationError, match="never harvested"):
                train.read_states(place)
            assert np.isnan(train.read_inputs(place.rows, place.start, place.stop)).all()


BENCH = """\
import numpy as np

def step(u):
    with open("driven", "a") as log:
        log.write("x")
    return [u[0], u[0] ** 2]

def rest():
    pass
"""

BENCH_CONFIG = """\
task: {kind: narma, train_steps: 200, test_steps: 100}
reservoir:
  {kind: python, mode: step, call: "bench:step", reset_call: "bench:rest", nodes: 2, simulated: true, continuity: held}
readout: {kind: ridge}
run: {states: states, folder: runs}
"""


@pytest.mark.slow
def test_a_module_of_the_current_folder_is_the_same_before_and_after_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "experiment.yaml").write_text(BENCH_CONFIG)
    # The installed command: unlike `python -m` it does not look in the current folder by itself.
    program = Path(sys.executable).with_name("reservoir-hw")
    driven = []
    for command in ("harvest", "run"):
        subprocess.run([program, command, "experiment.yaml"], cwd=tmp_path, check=True, capture_output=True)
        driven.append(len((tmp_path / "driven").read_text()))
    assert driven[0] >= 300
    assert driven == driven[:1] * 2
    (store,) = (tmp_path / "states").iterdir()
    assert len(StateStore.open(store).segments) == 1


@pytest.mark.slow
def test_a_file_that_changed_is_another_experiment(tmp_path: Path) -> None:
    from reservoir_hw.backends.simulated import EsnWeights

    def weights(seed: int) -> None:
        rng = np.random.default_rng(seed)
        drawn = EsnWeights.from_arrays(rng.normal(0, 0.1, (30, 30)), rng.normal(0, 1, (30, 1)))
        drawn.save(tmp_path / "w.safetensors")

    reservoir = {"kind": "esn", "weights": str(tmp_path / "w.safetensors")}
    document = {**experiment(tmp_path).resolved(), "reservoir": reservoir}
    weights(0)
    Experiment(document).harvest()
    assert Experiment(document).run(report=False).notes
    weights(1)
    assert not Experiment(document).run(report=False).notes


def test_provenance_may_hold_what_instruments_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Esn, "_settings", lambda _: {"gain": np.float32(0.5), "calibrated": Path("/lab"), "n": np.arange(2)}
    )
    store = experiment(tmp_path).harvest()[0]
    assert store.facts["provenance"]["reservoir"]["gain"] == 0.5
    assert store.segments[0]["reservoir"]["n"] == [0, 1]


def test_what_was_whole_is_not_driven_again(tmp_path: Path) -> None:
    """A process may die after its last chunk and before it notes the end."""
    task = Sequences(2, 40)
    bursts = bursts_of(task, max_batch=1)
    with FreeRunning() as toy:
        store = store_of(tmp_path / "store", task, toy, bursts)
    store.close_segment(store.segments, complete=False)
    with FreeRunning(fails_in=0) as untouchable:
        harvest(untouchable, bursts, StateStore.open(tmp_path / "store", writable=True), quiet)
    assert StateStore.open(tmp_path / "store").complete


@pytest.mark.slow
def test_a_store_is_readable_while_it_is_written(tmp_path: Path) -> None:
    task = Sequences(1, 100)
    bursts = bursts_of(task)
    seen: list[int] = []

    class Watched(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            reader = StateStore.open(tmp_path / "store")
            seen.append(reader.committed)
            for number, place in enumerate(reader.dataset("train").regions()):
                if number < reader.committed:
                    assert np.isfinite(reader.dataset("train").read(place)[1]).all()
            return super()._run(u, out)

    with Watched() as toy:
        store_of(tmp_path / "store", task, toy, bursts)
    assert seen == [0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 6, 7, 8, 9][: len(seen)]


def test_packed_and_separate_sequences_agree() -> None:
    """Sixty halvings of the state lie between two sequences of the burst."""
    task = Sequences(4, 50)

    def states(guard: int | None) -> tuple[np.ndarray, int]:
        found = np.full((4, 50, 2), np.nan)
        with Toy(max_batch=1) as toy:
            for chunk, answer in driven(toy, bursts_of(task, max_batch=1, guard=guard), quiet):
                if chunk.place is not None and chunk.split == "train":
                    found[chunk.place.rows, chunk.place.start : chunk.place.stop] = answer
            return found, len(toy.resets)

    separate, many_resets = states(None)
    packed, few_resets = states(60)
    np.testing.assert_allclose(packed, separate, atol=1e-15)
    assert np.isfinite(separate).all()
    # One burst for each split; the first reset is that of open().
    assert (many_resets, few_resets) == (1 + 4 + 1, 1 + 2)


def test_a_continuous_test_goes_on_where_the_training_ended(tmp_path: Path) -> None:
    task = Sequences(1, 100)
    training = TrainingConfig(continuous=True, priming_passes=1)
    chunks = [chunk for burst in plan(task, training, chunk_steps=30) for chunk in burst.chunks]
    assert len(plan(task, training, chunk_steps=30)) == 1
    joined = np.concatenate([chunk.inputs for chunk in chunks], axis=1)
    np.testing.assert_array_equal(
        joined, np.concatenate([task.train.inputs, task.train.inputs, task.test.inputs], axis=1)
    )
    with pytest.raises(ConfigurationError, match="3 sequences to train with and 1 to test"):
        plan(Sequences(3, 10), training, chunk_steps=30)
    result = experiment(tmp_path, training={"continuous": True}).run(report=False)
    separate = experiment(tmp_path).run(report=False)
    assert result.metrics["rows"][0]["metrics"] == pytest.approx(separate.metrics["rows"][0]["metrics"], rel=0.2)


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("continuity", ["held", "replayed"])
def test_a_seam_lies_wherever_hardware_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continuity: str, simulated: bool
) -> None:
    """Between two sequences and within one; the progress goes on to the same end."""
    monkeypatch.setattr(chemical_cell, "driven", 0)
    cell = {
        "kind": "python", "call": "chemical_cell:drive", "reset_call": "chemical_cell:to_rest", "nodes": 3,
        "inputs": 1, "continuity": continuity, "memory_steps": 20, "deterministic": True, "simulated": simulated,
    }  # fmt: skip
    made = experiment(tmp_path, reservoir={**cell, "nonidealities": None})
    whole = made.estimate(harvest=True).device_steps
    ends: list[tuple[int, int]] = []

    def until(places: int) -> None:
        def stop(what: str, done: int, total: int) -> None:
            ends.append((done, total))
            (store,) = made_stores(tmp_path) or [None]
            if store is not None and store.committed >= places and not store.complete:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            made.harvest(stop)

    # 500 training steps are five chunks, and 300 of the test three.
    for places in (2, 5, 9):
        until(places)
    (store,) = made_stores(tmp_path)
    assert store.complete
    kinds = [segment["seam"] and segment["seam"]["kind"] for segment in store.segments]
    assert kinds[:2] == [None, "driven again"]
    assert kinds[2:] == ([None] if simulated else ["closed in between"])
    assert ends[-1] == (whole, whole)


def made_stores(folder: Path) -> list[StateStore]:
    states = folder / "states"
    return [StateStore.open(path) for path in states.iterdir() if path.name[0] != "."] if states.is_dir() else []
