"""`kind: replay`: a trace answers as its device did, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_store import FILM, recorded

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported
from reservoir_hw.core.registry import find
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.store import StateStore

NODES = 3


def made(path: Path, batches: Sequence[tuple[np.ndarray, np.ndarray]], **spec: Any) -> Path:
    """A store of a device that goes on if it is not fed."""
    return Path(recorded(path, batches, chunk=8, group=spec.get("max_batch"), continuity="free_running", **spec).path)


def drive(seed: int, sequences: int = 1, steps: int = 20, inputs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = generator(seed, "replay")
    u = random.uniform(-1, 1, (sequences, steps, inputs)).astype(np.float32)
    return u, random.standard_normal((sequences, steps, NODES)).astype(np.float32)


def replay(path: Path, **over: Any) -> Reservoir:
    return open_reservoir({"kind": "replay", "trace": str(path), **over})


def test_it_is_the_recorded_device_without_what_a_recording_cannot_do(tmp_path: Path) -> None:
    path = made(tmp_path / "t", [drive(1)], settable=True, max_batch=1, step_period_s=0.2, input_unit="V")
    with replay(path) as reservoir:
        spec = reservoir.spec
        assert spec.identity.model == "film (replayed)"
        assert spec.identity.fingerprint == FILM.fingerprint
        assert not spec.identity.simulated
        assert (spec.continuity, spec.snapshot, spec.deterministic, spec.max_batch) == ("held", True, True, None)
        assert (spec.step_period_s, spec.input_unit) == (0.2, "V")
        with pytest.raises(NotSupported, match="only the states that its device went through"):
            reservoir.transition(np.zeros((1, 1)), np.zeros((1, NODES)))
        assert reservoir.provenance()["replayed"] == {
            "trace": str(path),
            "made_by": "record",
            "provenance": {"operator": "ada"},
        }


def test_sequences_are_found_wherever_they_were_recorded(tmp_path: Path) -> None:
    first, second = drive(1, sequences=3), drive(2, sequences=2)
    with replay(made(tmp_path / "t", [first, second], max_batch=2)) as reservoir:
        reservoir.reset(3)
        order = np.concatenate([second[0][1:], first[0][2:], first[0][:1]])
        states = reservoir.run(order[:, :15])
        np.testing.assert_array_equal(states, np.concatenate([second[1][1:], first[1][2:], first[1][:1]])[:, :15])


def test_repeated_drives_replay_the_repetitions_in_their_order(tmp_path: Path) -> None:
    u, first = drive(1)
    others = [drive(seed)[1] for seed in (2, 3)]
    path = made(tmp_path / "t", [(u, first), *[(u, x) for x in others]])
    with replay(path) as reservoir:
        for expected in (first, *others, first, others[0]):
            reservoir.reset(1)
            np.testing.assert_array_equal(reservoir.run(u), expected)
    with replay(path) as reservoir:
        reservoir.reset(3)
        np.testing.assert_array_equal(reservoir.run(np.repeat(u, 3, axis=0)), np.concatenate([first, *others]))


def test_a_sequence_that_began_like_another_goes_on_as_itself(tmp_path: Path) -> None:
    u, x = drive(1)
    other = u.copy()
    other[:, 12:] += 0.5
    answer = drive(2)[1]
    with replay(made(tmp_path / "t", [(u, x), (other, answer)])) as reservoir:
        np.testing.assert_array_equal(reservoir.run(other[:, :10]), x[:, :10])
        np.testing.assert_array_equal(reservoir.run(other[:, 10:]), answer[:, 10:])
        # The first recording was not played to its end, so it comes first again.
        reservoir.reset(1)
        np.testing.assert_array_equal(reservoir.run(u[:, :5]), x[:, :5])


def test_snapshot_and_restore(tmp_path: Path) -> None:
    u, first = drive(1, sequences=2)
    path = made(tmp_path / "t", [(u, first), (u, drive(2, sequences=2)[1])])
    with replay(path) as reservoir:
        reservoir.reset(2)
        reservoir.run(u[:, :9])
        state = reservoir.snapshot()
        rest = reservoir.run(u[:, 9:])
        np.testing.assert_array_equal(rest, first[:, 9:])
        reservoir.restore(state)
        np.testing.assert_array_equal(reservoir.run(u[:, 9:]), rest)
        reservoir.reset(2)
        at_rest = reservoir.snapshot()
        second = reservoir.run(u)
        assert not np.array_equal(second, first)
        reservoir.restore(at_rest)
        np.testing.assert_array_equal(reservoir.run(u), second)
    with replay(path) as elsewhere:
        elsewhere.restore(state)
        np.testing.assert_array_equal(elsewhere.run(u[:, 9:]), rest)


def test_what_was_not_recorded_is_refused_with_the_first_step_that_differs(tmp_path: Path) -> None:
    u, x = drive(1, sequences=2, inputs=2)
    with replay(made(tmp_path / "t", [(u, x)])) as reservoir:
        wrong = u[1:].copy()
        wrong[0, 13, 1] = 0.5
        with pytest.raises(
            InputRangeError, match=r"step 13 .*data set 000, sequence 1.* channel 1 is 0.5, recorded was"
        ):
            reservoir.run(wrong)
        reservoir.reset(1)
        reservoir.run(wrong[:, :13])
        with pytest.raises(InputRangeError, match="step 13 differs"):
            reservoir.run(wrong[:, 13:])
        reservoir.reset(1)
        with pytest.raises(InputRangeError, match=r"step 0 differs from .*sequence 0.*recorded was"):
            reservoir.run(u[:1] + np.float32(1e-3))
        reservoir.reset(1)
        reservoir.run(u[:1])
        with pytest.raises(InputRangeError, match="ends after 20 steps"):
            reservoir.run(u[:1, :1])
        reservoir.reset(1)
        np.testing.assert_array_equal(reservoir.run(u[1:]), x[1:])


def test_an_unfinished_recording_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    u, x = drive(1)
    with replay(made(tmp_path / "t", [(u, x)], written=2)) as reservoir:
        np.testing.assert_array_equal(reservoir.run(u[:, :16]), x[:, :16])
        with pytest.raises(InputRangeError, match=r"step 16 was never recorded: .* ends after 16 steps"):
            reservoir.run(u[:, 16:17])
    StateStore.create(tmp_path / "empty", {"made_by": "record", "spec": {}, "provenance": {}})
    with pytest.raises(ConfigurationError, match="holds no states yet"):
        replay(tmp_path / "empty")


def test_inputs_outside_the_declared_range_were_recorded_before_clipping(tmp_path: Path) -> None:
    u, x = drive(1)
    with replay(made(tmp_path / "t", [(u, x)], input_range=(-0.1, 0.1))) as reservoir:
        np.testing.assert_array_equal(reservoir.run(u), x)


def test_float64_is_matched_and_returned_exactly(tmp_path: Path) -> None:
    random = generator(1, "exact")
    u, x = random.uniform(-1, 1, (1, 9, 1)), random.standard_normal((1, 9, NODES))
    with replay(made(tmp_path / "t", [(u, x)], dtype="float64")) as reservoir:
        np.testing.assert_array_equal(reservoir.run(u), x)
        reservoir.reset(1)
        with pytest.raises(InputRangeError, match="step 0 differs"):
            reservoir.run(u.astype(np.float32))


def test_the_width_must_be_that_of_the_trace(tmp_path: Path) -> None:
    path = made(tmp_path / "t", [drive(1, inputs=2)])
    config = find("backends", "replay").load()(kind="replay", trace=str(path))  # pyright: ignore[reportCallIssue]
    assert config.name == "REPLAY(t)"  # pyright: ignore[reportAttributeAccessIssue]
    assert config.nodes == NODES  # pyright: ignore[reportAttributeAccessIssue]
    build_reservoir(config.for_inputs(2)).open().close()  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    with pytest.raises(
        ConfigurationError, match=r"3 input channels, .* no other inputs than its own: .* was recorded with 2"
    ):
        config.for_inputs(3)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigurationError, match="is not a store of states"):
        replay(tmp_path / "nothing")


def test_a_mask_comes_before_the_matching(tmp_path: Path) -> None:
    from reservoir_hw.core.signal import MaskConfig

    mask = MaskConfig.model_validate({"kind": "binary", "seed": 1})
    v = drive(3, inputs=1)[0]
    u = mask.build(4, 1, seed=0).apply(v)
    x = drive(1)[1]
    path = made(tmp_path / "t", [(u, x)])
    with open_reservoir(
        {"kind": "replay", "trace": str(path), "inputs": 4, "input_mask": {"kind": "binary", "seed": 1}}, inputs=1
    ) as reservoir:
        np.testing.assert_array_equal(reservoir.run(v), x)
