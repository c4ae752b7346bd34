"""What is in a trace, how far two are apart, and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from recorded_store import recorded

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.store import Region, StateStore
from reservoir_hw.experiment.states.traces import compare, describe, plot
from reservoir_hw.experiment.states.traces.information import facts, table

NODES = 4
Batch = tuple[np.ndarray, np.ndarray]


def drive(seed: int, sequences: int = 2, steps: int = 40, nodes: int = NODES) -> Batch:
    random = generator(seed, "views")
    return random.uniform(-1, 1, (sequences, steps, 1)), random.standard_normal((sequences, steps, nodes))


def test_info(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", [drive(1), drive(2)], written=2, node_names=("a", "b", "c", "d"))
    about = describe(trace)
    assert about["hardware"] is True
    assert (about["complete"], about["committed_chunks"]) == (False, 5)
    assert list(about["datasets"]) == ["000", "001"]
    first, second = about["datasets"].values()
    assert (first["sequences"], first["steps"], first["written_steps"], first["chunk"]) == (2, 40, 40, [2, 16])
    assert (first["duration_s"], first["driven_s"], second["written_steps"]) == (20.0, 6.0, 32)
    shown = dict(facts(about))
    assert shown["device"] == "hardware: lab film"
    assert shown["nodes"] == "4 (a, b, c, d)"
    assert shown["state"] == "unfinished, 5 chunks are valid"
    assert shown["seams"] == "driven again (place 1, split train)"
    assert shown["operator"] == "ada"
    assert table(about).rows[1][3] == "32"


def test_damaged_times_are_told_and_hide_nothing_else(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", [drive(1), drive(2)], written=2)
    (tmp_path / "t" / "001" / "timing" / "c" / "0" / "0" / "0").write_bytes(b"damaged")
    about = describe(StateStore.open(tmp_path / "t"))
    first, second = about["datasets"].values()
    assert (first["written_steps"], first["damaged"]) == (40, None)
    assert (second["written_steps"], second["driven_s"]) == (None, None)
    assert "times of 001 cannot be read" in dict(facts(about))["damaged"]
    assert table(about).rows[1][3] == "unknown"
    trace.close_segment([], complete=True)
    assert describe(StateStore.open(tmp_path / "t"))["datasets"]["001"]["written_steps"] == 40


def test_times_that_were_given_up_understate_nothing(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", [drive(1), drive(2)], written=2)
    (tmp_path / "t" / "001" / "timing" / "c" / "0" / "0" / "0").write_bytes(b"damaged")
    u, x = drive(2)
    trace.dataset("001").write(Region(slice(0, 2), 32, 40), u[:, 32:], x[:, 32:], timing=(1e9, 2.0))
    trace.commit(6)
    about = describe(StateStore.open(tmp_path / "t"))
    first, second = about["datasets"].values()
    assert (first["written_steps"], first["damaged"]) == (40, None)
    assert second["written_steps"] is None
    assert "times of 001 were damaged" in dict(facts(about))["damaged"]
    assert table(about).rows[1][3] == "unknown"
    assert table(about).rows[1][9] == ""


def test_lost_times_understate_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "t", [drive(1), drive(2)], written=2)
    (tmp_path / "t" / "001" / "timing" / "c" / "0" / "0" / "0").unlink()
    about = describe(StateStore.open(tmp_path / "t"))
    assert [found["written_steps"] for found in about["datasets"].values()] == [40, None]
    assert dict(facts(about))["damaged"].endswith("t: times of 2 chunks are lost")


def test_a_recording_that_grows_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = recorded(tmp_path / "t", [drive(1, steps=16)], written=1)
    u, x = drive(2, steps=16)
    replace, seen = Path.replace, list[tuple[int, float]]()

    def watched(self: Path, target: Path) -> Path:
        done = replace(self, target)
        about = describe(StateStore.open(tmp_path / "t"))["datasets"]["000"]
        seen.append((about["steps"], about["written_steps"]))
        return done

    dataset = trace.dataset("000")
    monkeypatch.setattr(Path, "replace", watched)
    dataset.write(Region(slice(0, 2), 16, 32), u, x, timing=(1e9, 2.0))
    monkeypatch.undo()
    assert seen[0] == (16, 16)
    assert seen[-1] == (32, 32)


def test_identical_traces(tmp_path: Path) -> None:
    batches = [drive(1), drive(2)]
    found = compare(recorded(tmp_path / "a", batches), recorded(tmp_path / "b", batches[::-1], group=1))
    assert found.identical
    assert found.within_tolerance
    assert found.divergence is None
    assert found.overall == 0
    np.testing.assert_allclose(found.consistency, 1)
    assert [(p.a, p.b) for p in found.pairs] == [
        (("000", 0), ("001", 0)), (("000", 1), ("001", 1)), (("001", 0), ("000", 0)), (("001", 1), ("000", 1)),
    ]  # fmt: skip


def test_differences_are_those_of_numpy(tmp_path: Path) -> None:
    (u, x), (v, y) = drive(1), drive(2, steps=25)
    other = x * 1.1 + 0.3 + 0.05 * drive(3)[1]
    other[:, :, 1] = x[:, :, 1]
    longer = np.concatenate([y, y], axis=1)
    a = recorded(tmp_path / "a", [(u, x), (v, y), drive(7)], dtype="float64")
    b = recorded(tmp_path / "b", [(np.concatenate([v, v], axis=1), longer), (u, other)], dtype="float64")
    ticks: list[tuple[str, int, int]] = []
    found = compare(a, b, tolerance=0.5, washout=5, progress=lambda *tick: ticks.append(tick))
    left = np.concatenate([x[:, 5:].reshape(-1, NODES), y[:, 5:].reshape(-1, NODES)])
    right = np.concatenate([other[:, 5:].reshape(-1, NODES), y[:, 5:].reshape(-1, NODES)])
    np.testing.assert_allclose(found.nrmse, np.sqrt(((right - left) ** 2).mean(axis=0)) / left.std(axis=0))
    expected = [np.corrcoef(left[:, i], right[:, i])[0, 1] for i in range(NODES)]
    np.testing.assert_allclose(found.consistency, expected)
    fits = [np.polyfit(right[:, i], left[:, i], 1) for i in range(NODES)]
    np.testing.assert_allclose(found.gain, [fit[0] for fit in fits])
    rest = [(left[:, i] - np.polyval(fit, right[:, i])).std() / left[:, i].std() for i, fit in enumerate(fits)]
    np.testing.assert_allclose(found.aligned, rest, atol=1e-7)
    assert found.aligned[1] == 0
    np.testing.assert_allclose(found.offset, (right - left).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.largest, np.abs(right - left).max(axis=0))
    assert found.overall == pytest.approx(np.sqrt(((right - left) ** 2).mean(axis=0).sum() / left.var(axis=0).sum()))
    assert found.nrmse[1] == 0
    assert found.worst(1) != [1]
    assert (found.alone_a, found.alone_b, found.steps) == (2, 0, 110)
    assert ticks[-1] == ("comparing", 220, 220)
    assert found.within_tolerance == bool((found.nrmse <= 0.5).all())
    first = found.divergence
    deviations = np.abs(other - x)[:, 5:] / left.std(axis=0)
    assert first is not None
    assert first.step == 5 + int((deviations > 0.5).any(axis=(0, 2)).argmax())
    assert first.deviations == pytest.approx(deviations[first.a[1], first.step - 5, first.node])
    assert found.as_dict()["divergence"]["step"] == first.step
    assert dict(found.facts())["first difference above 0.5"].startswith(f"step {first.step} of data set 000")
    assert len(found.table().rows) == NODES


@pytest.mark.slow
def test_repetitions_are_paired_in_their_order(tmp_path: Path) -> None:
    u = drive(1, sequences=1)[0]
    x = [drive(seed, sequences=1)[1] for seed in range(3)]
    found = compare(recorded(tmp_path / "a", [(u, y) for y in x]), recorded(tmp_path / "b", [(u, x[0]), (u, x[1])]))
    assert found.identical
    assert (len(found.pairs), found.alone_a) == (2, 1)


def test_lost_inputs_are_no_shorter_recording(tmp_path: Path) -> None:
    batch = drive(1)
    a, b = recorded(tmp_path / "a", [batch]), recorded(tmp_path / "b", [batch])
    (tmp_path / "b/000/inputs/c/0/2/0").unlink()
    for pair in ((a, b), (b, a)):
        with pytest.raises(ConfigurationError, match=r"b: inputs of 000, steps 32 to 39 of sequence 0: they were writ"):
            compare(*pair)


def test_a_recording_that_a_fault_ended_says_so(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", [drive(1)])
    assert dict(facts(describe(trace)))["state"] == "complete"
    trace.close_segment([{"status": "failed: DeviceFault: laser off", "seam": None}], complete=True)
    about = describe(StateStore.open(tmp_path / "t"))
    assert about["ended_early"] == "DeviceFault: laser off"
    assert dict(facts(about))["state"] == "ended early, by DeviceFault: laser off"


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["a", "b", "both"])
def test_nodes_that_are_not_finite_are_named(tmp_path: Path, value: float, where: str) -> None:
    u, x = drive(1)
    x[:, :, 3] = 0.1
    broken = x.copy()
    broken[1, 7, 2] = value
    a = recorded(tmp_path / "a", [(u, x if where == "b" else broken)])
    found = compare(a, recorded(tmp_path / "b", [(u, x if where == "a" else broken)]), tolerance=0.1)
    assert found.not_finite == [2]
    assert not found.identical
    assert not found.within_tolerance
    assert (found.nrmse[[0, 1, 3]] == 0).all()
    assert (found.overall, found.worst(1)) == (0, [2])
    shown = dict(found.facts())
    assert shown["not finite"] == "node 2"
    assert shown["first difference above 0.1"] == "step 7 of data set 000, sequence 1: node 2, not finite"
    assert "1 nodes are constant" in shown["consistency"]
    assert (found.table().rows[0][0], found.table().rows[0][2]) == ("2", "not finite")
    text = json.dumps(found.as_dict(), allow_nan=False)
    assert json.loads(text)["not_finite"] == ["2"]


def test_constant_nodes(tmp_path: Path) -> None:
    u, x = drive(1)
    x[:, :, 2] = 0.1
    other = x.copy()
    other[:, :, 2] += 0.2
    found = compare(recorded(tmp_path / "a", [(u, x)]), recorded(tmp_path / "b", [(u, other)]))
    assert np.isnan(found.consistency[2])
    together = np.sqrt(np.mean([x[:, :, i].var() if i != 2 else 0 for i in range(NODES)]))
    assert found.nrmse[2] == pytest.approx(0.2 / together, rel=1e-5)
    assert "1 nodes are constant" in dict(found.facts())["consistency"]
    assert found.as_dict()["nodes"][2]["consistency"] is None
    dead = np.zeros_like(x)
    found = compare(recorded(tmp_path / "c", [(u, dead)]), recorded(tmp_path / "d", [(u, dead + 1)]))
    np.testing.assert_allclose(found.nrmse, 1)
    assert dict(found.facts())["consistency"] == "no node moves in both"


def test_unfinished_traces_and_measured_inputs(tmp_path: Path) -> None:
    u, x = drive(1)
    a = recorded(tmp_path / "a", [(u, x)])
    found = compare(a, recorded(tmp_path / "b", [(u, x)], written=2))
    assert found.identical
    assert found.steps == 64
    measured = recorded(tmp_path / "c", [(u + 1e-3, x)])
    with pytest.raises(ConfigurationError, match="--input-tolerance"):
        compare(a, measured)
    assert compare(a, measured, input_tolerance=2e-3).identical
    with pytest.raises(ConfigurationError, match=r"has 4 nodes, .* has 3"):
        compare(a, recorded(tmp_path / "d", [drive(1, nodes=3)]))
    with pytest.raises(ConfigurationError, match="washout 40"):
        compare(a, a, washout=40)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "inputs"), [(1, 1), (300, 6)])
def test_the_picture(tmp_path: Path, nodes: int, inputs: int) -> None:
    u, x = drive(1, nodes=nodes)
    x[:, :, -1] = 1.0
    trace = recorded(tmp_path / "t", [(np.repeat(u, inputs, axis=2), x)])
    figure = plot(trace, sequence=1, start=3, steps=20)
    assert figure.get_suptitle().startswith("lab film (hardware)")  # pyright: ignore[reportAttributeAccessIssue]
    figure.savefig(tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 10_000
    with pytest.raises(ConfigurationError, match="sequences 0 to 1 of 40 steps"):
        plot(trace, sequence=2)
    with pytest.raises(ConfigurationError, match="no data set 'x'"):
        plot(trace, dataset="x")


def test_the_picture_shows_which_delay_a_node_holds(tmp_path: Path) -> None:
    u = drive(1, sequences=1, steps=200)[0]
    x = np.stack([np.roll(u[..., 0], k, axis=1) for k in range(NODES)], axis=-1)
    figure = plot(recorded(tmp_path / "t", [(u, x)]))
    memory = next(
        axes.images[0] for axes in figure.axes if axes.get_title() == "What each node has of u(t - k)"
    ).get_array()
    assert np.asarray(memory)[:, :NODES].argmax(axis=1).tolist() == list(range(NODES))
