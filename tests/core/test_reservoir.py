"""The contract, seen through toys whose answers are known."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
import torch
from toys import TOY, SnapshotToy, Toy

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceFault,
    InputRangeError,
    NotSupported,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Identity, NoReset, ReservoirSpec, ResetByIdle, ResetByWashout, ResetByWaveform


def inputs(batch: int = 1, time: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (batch, time, 2))


def expected(u: np.ndarray) -> np.ndarray:
    states, x = np.empty_like(u), np.zeros_like(u[:, 0])
    for t in range(u.shape[1]):
        x = x / 2 + u[:, t]
        states[:, t] = x
    return states


# ---- life cycle ------------------------------------------------------------------------------------


def test_open_and_close_are_idempotent_and_open_ends_in_reset() -> None:
    toy = Toy()
    assert toy.open() is toy.open()
    assert toy.resets == [1]
    toy.close()
    toy.close()
    assert toy.closed == 1
    with toy:
        assert toy.run(inputs()).shape == (1, 20, 2)
    assert not toy.is_open


def test_device_is_closed_when_open_fails() -> None:
    class Broken(Toy):
        def _open(self) -> None:
            raise DeviceFault("no supply voltage")

    toy = Broken()
    with pytest.raises(DeviceFault, match="supply"):
        toy.open()
    assert toy.closed == 1
    assert not toy.is_open


# ---- run, step, stream -----------------------------------------------------------------------------


def test_out_is_filled_and_returned() -> None:
    u = inputs()
    with Toy() as toy:
        out = np.empty((1, 20, 2))
        assert toy.run(u, out=out) is out
        np.testing.assert_array_equal(out, expected(u))
        toy.reset(1)
        strided = np.empty((2, 1, 20)).transpose(1, 2, 0)
        assert toy.run(u, out=strided) is strided
        np.testing.assert_array_equal(strided, expected(u))
        with pytest.raises(ShapeError, match=r"out must be \(1, 20, 2\) of float64"):
            toy.run(u, out=np.empty((1, 20, 2), np.float32))


def test_an_empty_run_drives_nothing() -> None:
    with Toy(continuity="free_running") as toy:
        assert toy.run(inputs(time=0)).shape == (1, 0, 2)
        assert toy.driven == []
        assert toy.run(inputs()).shape == (1, 20, 2)


@pytest.mark.parametrize("native", ["numpy", "torch"])
def test_tensors_of_every_kind_are_converted_or_refused(native: str) -> None:
    class Native(Toy):
        def _run(self, u: Any, out: Any) -> Any:
            del out
            return torch.from_numpy(super()._run(u.numpy(), None)) if native == "torch" else super()._run(u, None)

    Native.native = cast(Any, native)
    u = torch.from_numpy(inputs()).bfloat16().double()
    with Native() as toy:
        for given in (u.bfloat16(), u.to_sparse()):
            toy.reset()
            np.testing.assert_array_equal(toy.run(given), expected(u.numpy()))
        with pytest.raises(ShapeError, match='"meta" holds no numbers'):
            toy.run(u.to("meta"))
        toy.reset()
        (states,) = toy.stream([u.to_sparse()])
        np.testing.assert_array_equal(states, expected(u.numpy()))


def test_a_gradient_is_refused_where_there_is_none() -> None:
    u = torch.zeros(1, 3, 2, requires_grad=True)
    with Toy() as toy:
        with pytest.raises(NotSupported, match="not differentiable"):
            toy.run(u)
        with torch.no_grad():
            assert toy.run(u).shape == (1, 3, 2)


def test_backends_get_contiguous_arrays_of_their_dtype() -> None:
    seen: list[np.ndarray] = []

    class Looking(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            seen.append(u)
            return super()._run(u, out)

    with Looking(dtype="float32") as toy:
        toy.run(np.asfortranarray(inputs(time=6)))
        toy.run(np.zeros((1, 6, 2), dtype=int))
        toy.run(inputs(time=6).tolist())
    assert all(u.dtype == np.float32 and u.flags.c_contiguous for u in seen)


def test_a_torch_backend_gets_tensors_and_numpy_callers_get_numpy() -> None:
    class Native(Reservoir):
        native = "torch"

        def _run(self, u: Any, out: Any) -> Any:
            assert isinstance(u, torch.Tensor)
            return u.cumsum(1)

    spec = ReservoirSpec(inputs=2, nodes=2, identity=TOY, differentiable=True, input_range=(-5, 5), max_batch=2)
    u = inputs(3)
    with Native(spec) as native:
        native.reset(3)
        states = native.run(u)
        assert isinstance(states, np.ndarray)
        np.testing.assert_allclose(states, u.cumsum(1), rtol=1e-5, atol=1e-6)
        out = np.empty((3, 20, 2), np.float32)
        native.reset(3)
        native.run(u, out=out)
        np.testing.assert_array_equal(out, states)
        native.reset(3)
        leaf = torch.from_numpy(u).requires_grad_()
        native.run(leaf).sum().backward()
        assert leaf.grad is not None
        np.testing.assert_allclose(leaf.grad[0, :, 0].numpy(), np.arange(20, 0, -1))
        native.reset(1)
        with pytest.raises(InputRangeError, match=r"\(0, 4, 1\) is 9"):
            native.run(torch.where(torch.arange(20).reshape(1, 10, 2) == 9, 9.0, 0.0))


# ---- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "dtype"), [(np.nan, float), (np.inf, float), (-np.inf, float), (np.ma.masked, float), (np.ma.masked, int)]
)
def test_inputs_must_be_finite(bad: Any, dtype: type) -> None:
    u = np.ma.masked_array(inputs().astype(dtype))
    u[0, 7, 1] = bad
    with Toy() as toy:
        with pytest.raises(InputRangeError, match=r"\(0, 7, 1\)"):
            toy.run(u if bad is np.ma.masked else u.data)
        assert toy.driven == []
        assert np.array_equal(toy.run(np.ma.masked_array(inputs())), expected(inputs()))


def test_out_of_range_is_refused_or_clipped_and_counted() -> None:
    u = np.zeros((1, 4, 2))
    u[0, 2, 1], u[0, 3, 0] = 1.5, -3.0
    with Toy(input_range=(-1, 1)) as toy:
        with pytest.raises(InputRangeError, match=r"\(0, 2, 1\) is 1.5, outside the range \[-1, 1\].*2 values"):
            toy.run(u)
        assert toy.driven == []
    with Toy(input_range=(-1, 1), out_of_range="clip") as toy:
        np.testing.assert_array_equal(toy.run(u), expected(u.clip(-1, 1)))
        assert toy.counters.clipped == 2
    assert u[0, 2, 1] == 1.5


def test_one_series_comes_alone_after_a_reset_for_one() -> None:
    with Toy() as toy:
        u, out = inputs(), np.empty((20, 2))
        np.testing.assert_array_equal(toy.run(u[0]), expected(u)[0])
        toy.reset(1)
        assert toy.run(u[0], out=out) is out
        np.testing.assert_array_equal(out, expected(u)[0])
        toy.reset(2)
        with pytest.raises(ShapeError, match=r"one series \(time, inputs\) is taken after reset\(1\)"):
            toy.run(u[0])


# ---- continuity ------------------------------------------------------------------------------------


class Streaming(Toy):
    """Streams with a look-ahead of one chunk, as a device with credits does."""

    def _stream(self, chunks: Any) -> Any:
        waiting: list[np.ndarray] = []
        for chunk in chunks:
            waiting.append(chunk)
            if len(waiting) == 2:
                yield self._run(waiting.pop(0), None)
        for chunk in waiting:
            yield self._run(chunk, None)


def test_an_abandoned_stream_loses_the_state() -> None:
    with Streaming() as toy:
        for _ in toy.stream([inputs(), inputs(), inputs()]):
            break
        with pytest.raises(StateLost, match="not read to its end"):
            toy.run(inputs())
        toy.reset(1)
        toy.run(inputs())


def test_replayed_replays_exactly_memory_steps() -> None:
    u = inputs(2)
    with Toy(continuity="replayed", memory_steps=5) as toy:
        toy.reset(2)
        first = toy.run(u[:, :3])
        second = toy.run(u[:, 3:12])
        third = toy.run(u[:, 12:])
        resets = len(toy.resets)
        assert [d.shape[1] for d in toy.driven] == [3, 3 + 9, 5 + 8]
        np.testing.assert_array_equal(toy.driven[2], u[:, 7:])
        assert toy.counters.steps == 2 * (3 + 12 + 13)
        assert resets == 1 + 1 + 2, "open, reset, and one before each later burst"
    truth = expected(u)
    np.testing.assert_array_equal(first, truth[:, :3])
    np.testing.assert_array_equal(second, truth[:, 3:12])
    np.testing.assert_allclose(third, truth[:, 12:], atol=2.0**-4)
    assert not np.array_equal(third, truth[:, 12:]), "an input from before the replay cannot have an effect"


# ---- more sequences than the device takes ---------------------------------------------------------


@pytest.mark.parametrize("max_batch", [1, 2, 5, 7])
@pytest.mark.parametrize("kind", [Toy, SnapshotToy])
def test_sequences_are_driven_in_turn(kind: type[Toy], max_batch: int) -> None:
    u = inputs(5)
    with kind(max_batch=max_batch) as toy:
        toy.reset(5)
        np.testing.assert_array_equal(toy.run(u), expected(u))
        assert max(len(d) for d in toy.driven) == min(max_batch, 5)
        assert sum(len(d) for d in toy.driven) == 5


# ---- snapshot, transition, upload -----------------------------------------------------------------


def test_transition_drives_no_more_sequences_at_once_than_the_device_takes() -> None:
    seen: list[int] = []

    class Narrow(SnapshotToy):
        def _transition(self, u: np.ndarray, states: np.ndarray) -> np.ndarray:
            seen.append(len(u))
            return super()._transition(u, states)

    with Narrow(max_batch=2) as toy:
        given = np.arange(10.0).reshape(5, 2)
        np.testing.assert_array_equal(toy.transition(np.ones((5, 2)), given), given / 2 + 1)
    assert seen == [2, 2, 1]


def test_upload_resets_and_changes_the_fingerprint() -> None:
    with SnapshotToy() as toy:
        before = toy.spec.identity.fingerprint
        toy.run(inputs())
        toy.upload({"gain": np.array(2.0)})
        assert toy.spec.identity.fingerprint != before
        assert toy.snapshot()["device.x"].tolist() == [[0.0, 0.0]]


# ---- faults ----------------------------------------------------------------------------------------


def test_a_fault_carries_what_was_harvested_and_ends_the_state() -> None:
    u = inputs(2)
    with Toy(fails_at=6) as toy:
        toy.reset(2)
        with pytest.raises(DeviceFault) as caught:
            toy.run(u)
        assert caught.value.steps_done == 6
        np.testing.assert_array_equal(caught.value.states, expected(u)[:, :6])
        assert toy.counters.faults == 1
        assert toy.counters.steps == 12
        toy.fails_at = None
        with pytest.raises(StateLost, match=r"the last run failed \(DeviceFault\)"):
            toy.run(u)
        toy.reset(2)
        np.testing.assert_array_equal(toy.run(u), expected(u))


def test_a_fault_in_turn_keeps_the_finished_sequences() -> None:
    u = inputs(3)

    class Second(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            self.fails_at = 6 if len(self.driven) == 1 else None
            return super()._run(u, out)

    with Second(max_batch=1) as toy:
        toy.reset(3)
        with pytest.raises(DeviceFault) as caught:
            toy.run(u)
    states = caught.value.states
    np.testing.assert_array_equal(states[0], expected(u)[0])
    np.testing.assert_array_equal(states[1, :6], expected(u)[1, :6])
    assert np.isnan(states[1, 6:]).all()
    assert np.isnan(states[2]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 9.9e37, -9.91e37, np.ma.masked])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [2, 4000])
def test_states_that_are_no_numbers_are_a_fault(value: Any, dtype: str, rows: int) -> None:
    class Diverging(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            states = np.ma.masked_array(super()._run(u, out).astype(dtype))
            states[1, 4, 1] = states[0, 9, 0] = value
            return states if value is np.ma.masked else states.data

    why = "not finite .*" if value is np.ma.masked or not np.isfinite(value) else r"9.9\d?e\+37 .*: .*over range"
    with Diverging(dtype=dtype, identity=TOY.model_copy(update={"simulated": False})) as toy:
        toy.reset(rows)
        with pytest.raises(DeviceFault, match=why.replace(".*", r"\(sequence 1, step 4, node 1\)", 1)) as caught:
            toy.run(inputs(rows))
    assert caught.value.states.shape == (rows, 4, 2)


def test_an_interrupt_ends_the_state() -> None:
    class Interrupted(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            raise KeyboardInterrupt

    with Interrupted() as toy:
        with pytest.raises(KeyboardInterrupt):
            toy.run(inputs())
        with pytest.raises(StateLost, match="interrupted"):
            toy.run(inputs())


def test_large_finite_states_are_no_fault() -> None:
    assert arrays.all_finite(np.full((1, 4, 2), -8.9e37), arrays.NO_NUMBER)
    assert arrays.all_finite(np.full((1, 4, 2), 3e38, np.float32))
    assert not arrays.all_finite(np.array([[np.inf, -np.inf]]))


# ---- reset policies --------------------------------------------------------------------------------


def test_washout_and_waveform_drive_the_device() -> None:
    with Toy(reset=ResetByWashout(kind="washout", steps=30, seed=3), input_range=(0, 0.5)) as toy:
        assert toy.driven[0].shape == (1, 30, 2)
        assert 0 <= toy.driven[0].min() < toy.driven[0].max() <= 0.5
        toy.reset(2)
        np.testing.assert_array_equal(toy.driven[1][0], toy.driven[0][0])
        assert toy.counters.steps == 90
    with Toy(reset=ResetByWaveform(kind="waveform", values=[[0.0, 1.0], [0.5, 0.0]])) as toy:
        np.testing.assert_array_equal(toy.driven[0], [[[0.0, 1.0], [0.5, 0.0]]])
    with pytest.raises(ConfigurationError, match="every row needs 2 numbers"):
        Toy(reset=ResetByWaveform(kind="waveform", values=[[0.0]])).open()


def test_reset_duration_and_residual_are_in_the_provenance() -> None:
    with Toy(reset=ResetByIdle(kind="idle", settle_s=0.02, probe_steps=10)) as toy:
        record = toy.provenance()["reset"]
        assert record["policy"] == {"kind": "idle", "settle_s": 0.02, "probe_steps": 10}
        assert record["duration_s"] >= 0.02
        assert record["residual"] == 0.0

    class Stubborn(Toy):
        def _reset(self, batch: int) -> None:
            kept = getattr(self, "x", None)
            super()._reset(batch)
            if kept is not None and len(kept) == batch:
                self.x = kept

    with Stubborn(reset=NoReset(kind="none", reason="fades on its own", probe_steps=10)) as toy:
        assert toy.provenance()["reset"]["residual"] > 0.01


# ---- identity, provenance, lock --------------------------------------------------------------------


def test_fingerprint_depends_on_what_the_device_is() -> None:
    base = {"vendor": "v", "model": "m", "serial": "1", "simulated": False}
    same = Identity(**base).fingerprint
    assert same == Identity(**base).fingerprint
    changes: list[dict[str, Any]] = [{"serial": "2"}, {"simulated": True}, {"content": "abc"}, {"firmware": "2"}]
    assert len({same, *(Identity(**{**base, **change}).fingerprint for change in changes)}) == 5
    reported = Identity(**base, fingerprint="f" * 64)
    assert reported.fingerprint == "f" * 64


def test_provenance_holds_counters_latency_and_identity() -> None:
    with Toy() as toy:
        toy.run(inputs())
        toy.run(inputs())
        record = toy.provenance()
    assert record["identity"]["simulated"] is True
    assert record["counters"]["steps"] == 40
    assert record["latency"]["calls"] == 2
    assert record["latency"]["p99_s"] >= record["latency"]["p50_s"] > 0


def test_one_process_owns_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RESERVOIR_HW_LOCKS", str(tmp_path))
    holder = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from toys import Toy\n"
        "with Toy(resource='GPIB0::7::INSTR'):\n"
        "    print('open', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "open"
    with pytest.raises(DeviceBusy, match=rf"'GPIB0::7::INSTR' is in use by process {process.pid}"):
        Toy(resource="GPIB0::7::INSTR").open()
    with Toy(resource="GPIB0::8::INSTR"):
        pass
    process.kill()
    process.communicate()
    with Toy(resource="GPIB0::7::INSTR") as toy:
        with pytest.raises(DeviceBusy):
            Toy(resource="GPIB0::7::INSTR").open()
        assert toy.is_open


def test_a_bench_locks_all_of_its_instruments_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RESERVOIR_HW_LOCKS", str(tmp_path))
    with Toy(resource="scope"):
        with pytest.raises(DeviceBusy, match="'scope' is in use"):
            Toy(resource=["scope", "generator", "generator"]).open()
        with Toy(resource="generator"):
            pass
    with Toy(resource=["scope", "generator", "scope"]) as bench:
        for one in ("generator", "scope"):
            with pytest.raises(DeviceBusy, match=f"'{one}' is in use"):
                Toy(resource=one).open()
        assert bench.is_open
    with Toy(resource="scope"), Toy(resource="generator"):
        pass


def test_everybody_who_looks_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen:
        def __init__(self, name: str) -> None:
            self.name = name

        def was_reset(self, *, from_rest: bool) -> None:
            told.append((self.name, from_rest))

        def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
            told.append((self.name, None if states is None else states.shape[1]))

    told: list[tuple[str, Any]] = []
    first, second = Seen("first"), Seen("second")
    with SnapshotToy() as toy:
        with toy.observed_by(first):
            toy.run(inputs(time=3))
            with toy.observed_by(second):
                toy.step(inputs()[:, 0])
            toy.reset()
        toy.run(inputs(time=2))
    assert told == [("first", 3), ("first", 1), ("second", 1), ("first", True)]


# ---- buffers belong to whom they belong to -----------------------------------------------------------


def test_a_reused_input_buffer_does_not_change_the_replay() -> None:
    first, second = inputs(seed=1), inputs(seed=2)
    results = []
    for reuse in (False, True):
        with Toy(continuity="replayed", memory_steps=6) as toy:
            buffer = first.copy()
            toy.run(buffer)
            if reuse:
                buffer[:] = second
                results.append(toy.run(buffer))
            else:
                results.append(toy.run(second))
    np.testing.assert_array_equal(results[0], results[1])


def test_restore_keeps_no_reference_to_the_snapshot() -> None:
    u = inputs(2)
    cases: list[dict[str, Any]] = [{"max_batch": 1}, {"continuity": "replayed", "memory_steps": 5}, {}]
    for declared in cases:
        with SnapshotToy(**declared) as toy:
            toy.reset(2)
            toy.run(u[:, :9])
            frozen = toy.snapshot()
            rest = toy.run(u[:, 9:])
            toy.restore(frozen)
            for array in frozen.values():
                array[...] = 0
            np.testing.assert_array_equal(toy.run(u[:, 9:]), rest)


def test_out_may_not_be_the_inputs_in_disguise() -> None:
    u = inputs()
    kept = u.copy()
    with Toy() as toy:
        np.testing.assert_array_equal(toy.run(u, out=u), expected(kept))
        fixed = np.empty((1, 20, 2))
        fixed.flags.writeable = False
        sent = len(toy.driven)
        with pytest.raises(ShapeError, match="cannot be written to"):
            toy.run(kept, out=fixed)
        assert len(toy.driven) == sent


# ---- limits, refusals, streams ----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.1, 0.3, 0.8, 1.0])
def test_an_input_at_the_limit_is_inside(limit: float) -> None:
    u = np.full((1, 3, 2), limit, np.float32)
    with Toy(dtype="float32", input_range=(-limit, limit)) as toy:
        toy.run(u)
        toy.run(-u)
        with pytest.raises(InputRangeError):
            toy.run(u * np.float32(1.001))


def test_a_stream_ends_with_the_drive_it_began_in() -> None:
    for kind in (Toy, Streaming):
        with kind() as toy:
            stream = toy.stream([inputs(), inputs(), inputs()])
            next(stream)
            toy.reset(1)
            with pytest.raises(StateLost, match="this stream has ended"):
                next(stream)


def test_a_fault_behind_a_replay_in_turn_is_still_the_fault() -> None:
    class NanAtEnd(Toy):
        bad = False

        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            states = super()._run(u, out)
            if self.bad:
                states[:, -1] = np.nan
            return states

    u = inputs(2)
    with NanAtEnd(continuity="replayed", memory_steps=5, max_batch=1) as toy:
        toy.reset(2)
        toy.run(u[:, :17])
        toy.bad = True
        with pytest.raises(DeviceFault) as caught:
            toy.run(u[:, 17:])
        assert toy.counters.faults == 1
        assert caught.value.states.shape == (2, 3, 2)
        assert np.isfinite(caught.value.states[0, :2]).all()


def test_the_first_error_is_the_one_that_is_told() -> None:
    class SticksOnClose(Toy):
        def _close(self) -> None:
            raise RuntimeError("the shutter is stuck")

    with pytest.raises(DeviceFault, match="toy fault") as caught, SticksOnClose(fails_at=0) as toy:
        toy.run(inputs())
    assert "the shutter is stuck" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="stuck"), SticksOnClose() as toy:
        toy.run(inputs())


def test_a_lock_folder_of_ones_own_keeps_its_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("RESERVOIR_HW_LOCKS", str(folder))
    with Toy(resource="x"):
        pass
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_fault_on_the_way_to_rest_is_no_harvest() -> None:
    class FailsInWashout(Toy):
        left = 10**6

        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            self.left -= 1
            self.fails_at = 7 if self.left == 0 else None
            return super()._run(u, out)

    u = inputs(3)
    with FailsInWashout(max_batch=1, reset=ResetByWashout(steps=50)) as toy:
        toy.reset(3)
        toy.left = 2
        with pytest.raises(DeviceFault, match="toy fault") as caught:
            toy.run(u)
        assert "being brought to rest" in caught.value.__notes__[0]
        assert np.isfinite(caught.value.states[0]).all()
        assert np.isnan(caught.value.states[1:]).all()


def test_half_an_upload_must_be_done_again() -> None:
    class Slow(SnapshotToy):
        fails = True

        def _upload(self, weights: Any) -> ReservoirSpec:
            spec = super()._upload(weights)
            if self.fails:
                raise DeviceFault("no answer")
            return spec

    with Slow() as toy:
        with pytest.raises(DeviceFault):
            toy.upload({"gain": np.array(9.0)})
        for call in (lambda: toy.run(inputs()), lambda: toy.reset(1)):
            with pytest.raises(StateLost, match="upload"):
                call()
        toy.fails = False
        toy.upload({"gain": np.array(9.0)})
        toy.run(inputs())


def test_a_reservoir_is_not_pickled() -> None:
    with Toy() as reservoir, pytest.raises(NotSupported, match="save the weights"):
        pickle.dumps({"net": [reservoir]})
