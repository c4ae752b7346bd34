"""Recording what a device is driven with, and experiments on the recording."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from shared import narma
from toys import SnapshotToy, Toy

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, InputRangeError
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states import drive as record
from reservoir_hw.experiment.states.drive import Recorder
from reservoir_hw.experiment.states.traces import describe

RNG = np.random.default_rng(0)


def drive(batch: int, steps: int) -> np.ndarray:
    return RNG.uniform(-1, 1, (batch, steps, 2))


def test_every_reset_begins_a_data_set(tmp_path: Path) -> None:
    with Toy() as toy:
        with Recorder(toy, tmp_path / "trace", chunk_steps=10):
            first = [drive(1, 7), drive(1, 20)]
            given = [toy.run(u) for u in first]
            toy.reset(3)
            toy.reset(3)
            second = drive(3, 5)
            answer = toy.run(second)
            stepped = toy.step(second[:, 0])
        toy.run(drive(3, 4))
    store = StateStore.open(tmp_path / "trace")
    assert list(store.datasets) == ["000", "001"]
    np.testing.assert_array_equal(store.dataset("000").inputs[:], np.concatenate(first, axis=1))
    np.testing.assert_array_equal(store.dataset("000").states[:], np.concatenate(given, axis=1))
    np.testing.assert_array_equal(store.dataset("001").states[:, :5], answer)
    np.testing.assert_array_equal(store.dataset("001").states[:, 5], stepped)
    assert store.complete
    assert store.facts["spec"]["nodes"] == 2
    assert store.segments[0]["status"] == "complete"
    assert store.segments[0]["reservoir"]["counters"]["steps"] == 27 + 18
    assert np.isfinite(store.dataset("000").timing[0, :, 0]).all()


def test_streams_torch_and_masks_are_recorded_as_they_cross_the_contract(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    esn: dict[str, Any] = {"kind": "esn", "nodes": 8, "inputs": 2, "input_mask": {"kind": "uniform"}}
    u = RNG.uniform(-1, 1, (1, 30, 1)).astype(np.float32)
    with open_reservoir(esn, inputs=1) as reservoir, Recorder(reservoir, tmp_path / "trace", chunk_steps=8):
        chunks = [torch.from_numpy(u[:, :10].copy()), torch.from_numpy(u[:, 10:].copy())]
        states = torch.cat(list(reservoir.stream(iter(chunks))), dim=1)
    recorded = StateStore.open(tmp_path / "trace").dataset("000")
    np.testing.assert_array_equal(recorded.inputs[:], u)
    np.testing.assert_array_equal(recorded.states[:], states.numpy())


def test_buffers_may_be_used_again(tmp_path: Path) -> None:
    with Toy() as toy, Recorder(toy, tmp_path / "trace", chunk_steps=100):
        buffer, out = np.empty((1, 5, 2)), np.empty((1, 5, 2))
        kept = []
        for value in (1.0, 2.0, 3.0):
            buffer[:] = value
            kept.append(np.array(toy.run(buffer, out=out)))
    recorded = StateStore.open(tmp_path / "trace").dataset("000")
    np.testing.assert_array_equal(recorded.states[:], np.concatenate(kept, axis=1))
    np.testing.assert_array_equal(recorded.inputs[0, ::5, 0], [1.0, 2.0, 3.0])


def test_what_was_driven_before_a_fault_is_kept(tmp_path: Path) -> None:
    u = drive(1, 20)
    with pytest.raises(DeviceFault, match="toy fault"), Toy(fails_at=13) as toy, Recorder(toy, tmp_path / "trace"):
        toy.run(u)
    store = StateStore.open(tmp_path / "trace")
    np.testing.assert_array_equal(store.dataset("000").inputs[:], u[:, :13])
    assert store.segments[0]["status"] == "failed: DeviceFault: toy fault at step 13"
    assert describe(store)["ended_early"] == "DeviceFault: toy fault at step 13"


def test_why_a_device_died_is_told_though_it_says_nothing_more(tmp_path: Path) -> None:
    class Dead(Toy):
        def _settings(self) -> dict[str, Any]:
            if self.counters.faults:
                raise DeviceFault("no answer")
            return {}

    with pytest.raises(DeviceFault, match="toy fault"), Dead(fails_at=13) as toy, Recorder(toy, tmp_path / "trace"):
        toy.run(drive(1, 20))
    assert StateStore.open(tmp_path / "trace").segments[0]["status"] == "failed: DeviceFault: toy fault at step 13"


def test_what_a_device_driven_in_turn_gave_before_a_fault_is_kept(tmp_path: Path) -> None:
    class FailsInTheThird(Toy):
        calls = 0

        def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
            self.calls += 1
            self.fails_at = 5 if self.calls == 3 else None
            return super()._run(u, out)

    with FailsInTheThird(max_batch=1) as toy:
        toy.reset(3)
        with pytest.raises(DeviceFault), Recorder(toy, tmp_path / "trace"):
            toy.run(drive(3, 20))
    states = StateStore.open(tmp_path / "trace").dataset("000").states[:]
    assert np.isfinite(states[:2]).all()
    assert np.isfinite(states[2, :5]).all()
    assert np.isnan(states[2, 5:]).all()


@pytest.mark.parametrize("fails_at", [0, 13])
def test_chunks_that_a_fault_left_empty_hide_no_fault(tmp_path: Path, fails_at: int) -> None:
    """Driven in turn, what was not harvested is NaN: whole chunks of it, of which Zarr makes no file."""
    with SnapshotToy(max_batch=1, fails_at=fails_at) as toy:
        toy.reset(3)
        with pytest.raises(DeviceFault, match="toy fault"), Recorder(toy, tmp_path / "trace", chunk_steps=10):
            toy.run(drive(3, 40))
    store = StateStore.open(tmp_path / "trace")
    assert [segment["status"].partition(":")[0] for segment in store.segments] == ["failed"]


def test_what_does_not_begin_at_rest_says_so_and_is_not_replayed(tmp_path: Path) -> None:
    with SnapshotToy() as toy:
        toy.run(drive(1, 5))
        with Recorder(toy, tmp_path / "trace", chunk_steps=10):
            middle = drive(1, 20)
            toy.run(middle)
            snapshot = toy.snapshot()
            toy.reset(1)
            toy.run(whole := drive(1, 20))
            toy.restore(snapshot)
            toy.run(drive(1, 20))
    store = StateStore.open(tmp_path / "trace")
    assert [d.facts["from_rest"] for d in store.datasets.values()] == [False, True, False]
    with open_reservoir({"kind": "replay", "trace": str(tmp_path / "trace")}) as replay:
        replay.run(whole)
        replay.reset(1)
        with pytest.raises(InputRangeError, match="data set 000, 002 does not begin at rest"):
            replay.run(middle)


def test_several_recorders_see_the_same_drives(tmp_path: Path) -> None:
    with SnapshotToy() as toy, Recorder(toy, tmp_path / "first"):
        toy.run(drive(1, 5))
        with Recorder(toy, tmp_path / "second"):
            toy.run(later := drive(1, 6))
        toy.run(drive(1, 7))
    first, second = (StateStore.open(tmp_path / name).dataset("000") for name in ("first", "second"))
    assert first.steps == 18
    assert np.array_equal(second.inputs[:], later)
    assert np.array_equal(second.states[:], first.states[:, 5:11])
    assert [d.facts["from_rest"] for d in (first, second)] == [True, False]


def test_a_harvest_with_a_warm_up_is_no_recording_of_its_test(tmp_path: Path) -> None:
    store = experiment(tmp_path).harvest()[0]
    assert [d.facts["from_rest"] for d in store.datasets.values()] == [False, True]
    document = experiment(tmp_path, training={"test_warmup_steps": 0}).resolved()
    folders = set(tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match=r"reservoir: .*data set test does not begin at rest"):
        Experiment({**document, "reservoir": {"kind": "replay", "trace": store.path}}).run(report=False)
    # Known before there is a run.
    assert set(tmp_path.iterdir()) == folders


def test_recording_a_closed_loop_costs_little_for_each_step(tmp_path: Path) -> None:
    """Not quadratic in the length of a chunk: what waits is added up once."""
    with Toy() as toy, Recorder(toy, tmp_path / "trace", chunk_steps=4000) as recorder:
        for _ in range(4000):
            toy.step(np.zeros((1, 2)))
        assert recorder.store.committed == 1
    timing = recorder.store.dataset("000").timing
    assert timing.shape == (1, 1, 2)
    assert 0 < timing[0, 0, 1] < 60


@pytest.mark.slow
def test_chunks_are_bounded_in_bytes(tmp_path: Path) -> None:
    """The default of 4096 steps would make them of 2.3 GB, which no codec takes, however little was driven."""
    device: dict[str, Any] = {"kind": "esn", "nodes": 1000, "inputs": 1}
    u = RNG.uniform(-1, 1, (140, 130, 1)).astype(np.float32)
    with open_reservoir(device) as reservoir, Recorder(reservoir, tmp_path / "trace"):
        reservoir.reset(140)
        given = reservoir.run(u)
    recorded = StateStore.open(tmp_path / "trace").dataset("000")
    assert (recorded.group, recorded.chunk_steps) == (140, 119)
    np.testing.assert_array_equal(recorded.states[:], given)
    with open_reservoir({"kind": "replay", "trace": str(tmp_path / "trace")}) as replay:
        replay.reset(140)
        np.testing.assert_array_equal(replay.run(u), given)


def test_sequences_are_split_where_one_step_of_all_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_CHUNK_BYTES", 2 * 8 * (2 + 2))
    with Toy() as toy, Recorder(toy, tmp_path / "trace") as recorder:
        toy.reset(5)
        u = drive(5, 3)
        given = np.concatenate([toy.run(u[:, :2]), toy.run(u[:, 2:])], axis=1)
        assert recorder.store.committed == 9
    recorded = StateStore.open(tmp_path / "trace").dataset("000")
    assert (recorded.group, recorded.chunk_steps, recorded.timing.shape) == (2, 1, (3, 3, 2))
    assert np.isfinite(recorded.timing).all()
    np.testing.assert_array_equal(recorded.inputs[:], u)
    np.testing.assert_array_equal(recorded.states[:], given)
    with open_reservoir({"kind": "replay", "trace": str(tmp_path / "trace")}) as replay:
        replay.reset(5)
        np.testing.assert_array_equal(replay.run(u), given)


@pytest.mark.slow
def test_one_chunk_is_held_in_memory(tmp_path: Path) -> None:
    """Of 200 sequences of 1000 nodes one step has 800 kB; 400 steps would be 320 MB."""
    with Toy(inputs=1, nodes=1000, dtype="float32") as toy:
        recorder = Recorder(toy, tmp_path / "trace")
        u, x = np.zeros((200, 100, 1), np.float32), np.zeros((200, 100, 1000), np.float32)
        tracemalloc.start()
        with recorder:
            for _ in range(4):
                recorder.was_driven(u, x, 0.1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert recorder.store.dataset("000").steps == 400
    assert peak < 240e6


def experiment(folder: Path, **over: Any) -> Experiment:
    given = {"reservoir": {"nonidealities": {"loop": {"noise": 0.01}}}, "run": {"chunk_steps": 90}}
    return narma(folder, **{**over, **{name: {**keys, **over.get(name, {})} for name, keys in given.items()}})


def test_the_same_experiment_on_a_recording_gives_the_same_result(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace")
    simulated = experiment(tmp_path, run={"record": trace}).run(report=False)
    document = experiment(tmp_path).resolved()
    replayed = Experiment({**document, "reservoir": {"kind": "replay", "trace": trace}}).run(report=False)
    assert replayed.metrics["rows"][0]["metrics"] == simulated.metrics["rows"][0]["metrics"]
    ours, theirs = (load_file(r.folder / "readout" / "000.safetensors") for r in (simulated, replayed))
    assert ours["weights"].tobytes() == theirs["weights"].tobytes()
    ours, theirs = (r.provenance["rows"][0]["reservoir"]["identity"] for r in (simulated, replayed))
    assert ours["fingerprint"] == theirs["fingerprint"]
    assert "replayed" in theirs["model"]


def test_a_harvest_can_be_replayed_too(tmp_path: Path) -> None:
    """With settling passes it cannot: they were driven and not kept."""
    store = experiment(tmp_path, training={"test_warmup_steps": 0}).harvest()[0]
    document = experiment(tmp_path, training={"test_warmup_steps": 0}).resolved()
    replayed = Experiment({**document, "reservoir": {"kind": "replay", "trace": store.path}}).run(report=False)
    harvested = experiment(tmp_path, training={"test_warmup_steps": 0}).run(report=False)
    assert replayed.metrics["rows"][0]["metrics"] == harvested.metrics["rows"][0]["metrics"]


@pytest.mark.slow
def test_a_grid_records_a_trace_for_each_point_and_drives_the_device(tmp_path: Path) -> None:
    experiment(tmp_path).harvest()
    recorded = experiment(tmp_path, run={"record": str(tmp_path / "traces")}, reservoir={"vary": {"nodes": [20, 30]}})
    result = recorded.run(report=False)
    assert not result.notes
    assert [StateStore.open(tmp_path / "traces" / f"{n:03d}").facts["spec"]["nodes"] for n in (0, 1)] == [20, 30]


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    experiment(tmp_path, run={"record": str(tmp_path / "trace")}).run(report=False)
    with pytest.raises(ConfigurationError, match="exists already"):
        experiment(tmp_path, run={"record": str(tmp_path / "trace")}).run(report=False)
    folders = sorted((tmp_path / "runs").iterdir())
    assert json.loads((folders[-1] / "metrics.json").read_text())["status"] == "failed"
