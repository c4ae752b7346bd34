"""Models at the edge: what is refused, what is counted, and what happens after a fault."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edge_bundles import sealed
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.core.channels import Inputs
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceFault,
    InputRangeError,
    NotOpen,
    NotSupported,
    OutputFault,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.series_format import ChannelFormat, SeriesFormat
from reservoir_hw.core.tokenizer import CharTokenizer
from reservoir_hw.experiment.deploy.infer import run_series
from reservoir_hw.experiment.states import drive as closed_loop
from reservoir_hw.readout import LinearReadout, ReservoirLayer, ReservoirLM, RidgeReadout, random_embedding
from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.runner import EdgeRunner
from reservoir_hw.readout.edge.sessions import Histogram
from reservoir_hw.readout.edge.verification import compare_probe, record_probe, spread_of
from reservoir_hw.readout.export.exporter import export_model
from reservoir_hw.readout.export.torch_module import export_module

DEVICE: dict[str, Any] = {"kind": "esn", "nodes": 30, "inputs": 2, "seed": 1}


@pytest.fixture
def device() -> Iterator[Reservoir]:
    with open_reservoir(DEVICE) as reservoir:
        yield reservoir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edge")


@pytest.fixture(scope="module")
def series(folder: Path) -> Path:
    u = drive(300)
    with open_reservoir(DEVICE) as device:
        export_model(RidgeReadout(1e-6).fit(device.run(u), u[..., :1]), folder / "series.rhw", reservoirs=device)
    return folder / "series.rhw"


@pytest.fixture(scope="module")
def words(folder: Path) -> Path:
    tokenizer = CharTokenizer.from_text("the cat sat on the mat, é")
    with open_reservoir({**DEVICE, "inputs": 4}) as reservoir:
        count = tokenizer.vocabulary
        model = ReservoirLM(random_embedding(count, 4, seed=0), ReservoirLayer(reservoir), LinearReadout(30, count))
        export_model(model, folder / "words.rhw", tokenizer=tokenizer)
    return folder / "words.rhw"


def drive(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (1, steps, 2)).astype(np.float32)


# ---- refusals


def test_another_device_is_refused(series: Path) -> None:
    other = {**DEVICE, "seed": 2}
    with pytest.raises(
        ConfigurationError, match=r"reservoir 0 is another device \(reservoir_hw esn, fingerprint .*\(--any-device\)"
    ):
        EdgeRunner(series, other)
    # The wrong cable is told as such, also where its device has another width.
    with pytest.raises(ConfigurationError, match="reservoir 0 is another device"):
        EdgeRunner(series, {**other, "nodes": 31})
    for given, keys, message in (
        ({**DEVICE, "nodes": 31}, {"any_device": True}, "has nodes 31, the model was trained on nodes 30"),
        (None, {}, "needs 1 reservoirs, one per slot, but 0 were given"),
        ([DEVICE, DEVICE], {}, "but 2 were given"),
        (DEVICE, {"repetitions": 3}, "means of 1 repetitions, and is to be run with 3"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            EdgeRunner(series, *([] if given is None else [given]), **keys)
    with EdgeRunner(series, other, any_device=True) as runner:
        assert runner.run(drive(3)).shape == (1, 3, 1)
        (found,) = runner.verify_probe()
        assert not found.same


class Doubling(Toy):
    """Answers in any precision; what it is driven with must lie within 0.1."""

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        del out
        return super()._run(u.astype(np.float64), None).astype(self.spec.dtype)


@pytest.mark.parametrize(("trained", "there"), [("float32", "float64"), ("float64", "float32")])
def test_a_device_of_another_precision(
    trained: Any, there: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit 0.1 itself passes: it is larger in float32 than in float64."""
    declared = {"input_range": (-0.1, 0.1), "continuity": "held"}
    u = (0.1 * np.random.default_rng(0).choice([-1.0, 0.3, 1.0], (1, 200, 2))).astype(trained)
    with Doubling(dtype=trained, **declared) as device:
        states = device.run(u)
        readout = RidgeReadout(1e-9).fit(states, np.stack([states[..., 0] ** 2, 1e4 * states[..., 1]], -1))
        export_model(readout, tmp_path / "m.rhw", reservoirs=device)
        with EdgeRunner(tmp_path / "m.rhw", device) as runner:
            expected = runner.run(u)
            assert runner.casts == ()
    assert not caplog.records
    with Doubling(dtype=there, **declared) as device, EdgeRunner(tmp_path / "m.rhw", device) as runner:
        (cast,) = runner.casts
        (told,) = caplog.records
        assert told.getMessage() == str(cast)
        assert f"gives states of {there}, and the model was trained on {trained}" in str(cast)
        assert cast.error is not None
        spread = spread_of(expected)
        allowed = 3 * np.maximum(cast.error * spread, 1e-7 * np.abs(expected).max((0, 1)))
        found = runner.run(u)
        assert (np.abs(found - expected) <= allowed).all()
        runner.reset()
        assert (np.abs(np.stack([runner.step(u[:, step]) for step in range(200)], 1) - found) <= allowed).all()
        # The readout itself, as it was trained.
        device.reset()
        assert (np.abs(readout.predict(device.run(u.astype(there).clip(-0.1, 0.1))) - expected) <= allowed).all()
    with (
        Doubling(dtype=there, **declared, nodes=3) as device,
        pytest.raises(ConfigurationError, match="nodes 3"),
    ):
        EdgeRunner(tmp_path / "m.rhw", device, any_device=True)


@pytest.mark.parametrize("stepwise", [False, True])
def test_outputs_that_are_not_finite(stepwise: bool, tmp_path: Path) -> None:
    """From the step on where states reach 8e37 nothing is answered; what came before is kept."""
    u = drive(40)
    with Toy(continuity="held") as device:
        export_model(RidgeReadout(1e-3).fit(device.run(u), 10 * u[..., :1]), tmp_path / "m.rhw", reservoirs=device)
        with EdgeRunner(tmp_path / "m.rhw", device) as runner:
            whole = runner.run(u)
            u = u.astype(np.float64)
            u[0, 30] = 8e37
            answered: list[np.ndarray] = []
            with pytest.raises(OutputFault, match=r"RidgeReadout gives -?inf \(sequence 0, step 30, output 0\)"):
                run_series(runner, u, lambda *_: None, stepwise=stepwise, answered=answered)
            np.testing.assert_allclose(np.concatenate(answered, 1), whole[:, :30], rtol=1e-5)
            with pytest.raises(StateLost, match="call reset"):
                runner.step(u[:, 31])
            runner.reset()
            runner.step(u[:, 31])


def test_answers_within_the_washout(device: Reservoir, tmp_path: Path) -> None:
    """They are numbers, and `warming` says what they are worth."""
    u = drive(300)
    readout = RidgeReadout(1e-6).fit(device.run(u), u[..., :1])
    export_model(readout, tmp_path / "m.rhw", reservoirs=device, washout=3)
    with EdgeRunner(tmp_path / "m.rhw", device) as runner:
        assert runner.washout == 3
        seen = []
        for piece in (None, 1, 2, 1, 1):
            assert piece is None or np.isfinite(runner.run(u[:, :piece])).all()
            seen.append(runner.warming)
        runner.reset()
        assert (seen, runner.warming) == ([True, True, True, False, False], True)


def test_inputs_that_do_not_fit(series: Path, words: Path) -> None:
    with EdgeRunner(series, DEVICE) as runner:
        with pytest.raises(ShapeError, match=r"takes inputs \(batch, time, 2\), not \(1, 3, 1\)"):
            runner.run(np.zeros((1, 3, 1)))
        with pytest.raises(ShapeError, match=r"step takes inputs \(batch, 2\)"):
            runner.step(np.zeros((1, 1, 2)))
        broken = drive(5)
        broken[0, 3, 1] = math.nan
        with pytest.raises(InputRangeError, match=r"^channel 1 of the input at step 3 is nan, no finite number$"):
            runner.run(broken)
        with pytest.raises(InputRangeError, match=r"^channel 0 of the input is 1e\+39, more than float32 can hold$"):
            runner.step(np.array([[1e39, 0.0]]))
        with pytest.raises(NotSupported, match="has no tokenizer"):
            next(runner.generate("text", 3))
        runner.run(drive(3))
        with pytest.raises(ShapeError, match="2 sequences, but 1 were begun"):
            runner.run(np.zeros((2, 3, 2)))
    with EdgeRunner(words, {**DEVICE, "inputs": 4}) as runner:
        with pytest.raises(InputRangeError, match=r"token 99 at \(text, position\) = \(0, 1\)"):
            runner.run([[0, 99]])
        with pytest.raises(ShapeError, match="tokens must be whole numbers"):
            runner.run([[0.5]])
        with pytest.raises(ShapeError, match="the prompt is empty"):
            runner.generate([], 3)
        with pytest.raises(InputRangeError, match="'Z'"):
            runner.generate("Z", 3)
        with pytest.raises(ConfigurationError, match="max_tokens"):
            runner.generate("the", 0)
    closed = Bundle.open(series)
    closed.close()
    for use in (lambda: closed.read("golden.safetensors"), lambda: EdgeRunner(closed, DEVICE)):
        with pytest.raises(NotOpen, match=r"the bundle .* is closed"):
            use()


# ---- at work


def test_a_closed_runner_says_so(series: Path, device: Reservoir) -> None:
    runner = EdgeRunner(series, DEVICE)
    (own,) = runner.reservoirs
    runner.close()
    assert not own.is_open
    with EdgeRunner(series, device) as runner:
        first = runner.step(drive(1)[:, 0])
        kept = first.copy()
        runner.step(drive(2)[:, 1])
        np.testing.assert_array_equal(first, kept)
        # One series may come alone.
        runner.reset()
        whole = runner.run(drive(10))[0]
        runner.reset()
        halves = [runner.run(part) for part in np.split(drive(10)[0], 2)]
        np.testing.assert_array_equal(np.concatenate(halves), whole)
    assert device.is_open
    for use in (
        lambda: runner.step(drive(1)[:, 0]), lambda: runner.run(drive(2)), runner.reset, runner.verify_probe,
        lambda: runner.generate([1], 2),
    ):  # fmt: skip
        with pytest.raises(NotOpen, match=r"this runner of .* is closed: make another"):
            use()


def test_an_input_that_is_refused_leaves_the_sequence_as_it_was(
    series: Path, device: Reservoir, monkeypatch: pytest.MonkeyPatch
) -> None:
    u = drive(6)

    def refuses(*_: Any) -> Any:
        raise InputRangeError("outside the range")

    with EdgeRunner(series, device) as runner:
        whole = runner.run(u)
        runner.reset()
        runner.run(u[:, :3])
        with monkeypatch.context() as patch:
            patch.setattr(Inputs, "within_limits", refuses)
            for use in (lambda: runner.step(u[:, 3]), lambda: runner.run(u[:, 3:])):
                with pytest.raises(InputRangeError, match="outside"):
                    use()
        np.testing.assert_allclose(runner.run(u[:, 3:]), whole[:, 3:], atol=1e-6)


def test_the_tokenizer_of_another_model(words: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(words) as archive:
        archive.extractall(tmp_path / "open")
    text = CharTokenizer("abc").dump().encode()
    (tmp_path / "open/tokenizer.json").write_bytes(text)
    manifest = json.loads((tmp_path / "open/manifest.json").read_text())
    manifest["files"]["tokenizer.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    (tmp_path / "open/manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(ConfigurationError, match=r"tokenizer.json has 3 tokens, the model \d+: it belongs to another"):
        EdgeRunner(tmp_path / "open", {**DEVICE, "inputs": 4})


def test_a_text_that_ends_within_a_character_is_whole(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes of a character are all that was asked for: what they say is said, too."""
    euro = "\N{EURO SIGN}".encode()

    class Bytes(CharTokenizer):
        def decode(self, tokens: Any) -> str:
            return bytes(euro[token] if token < 3 else ord("-") for token in tokens).decode(errors="replace")

    with EdgeRunner(words, {**DEVICE, "inputs": 4}) as runner:
        monkeypatch.setattr(runner, "_tokenizer", Bytes.from_text("the cat"))
        monkeypatch.setattr(runner, "_generated", lambda *_: iter([0, 1, 2, 4, 0, 1]))
        assert list(runner.generate("the cat", 6)) == ["\N{EURO SIGN}", "-", "\N{REPLACEMENT CHARACTER}"]


def test_after_a_fault_nothing_goes_on(series: Path, device: Reservoir, monkeypatch: pytest.MonkeyPatch) -> None:
    u = drive(20)
    with EdgeRunner(series, device) as runner:
        whole = runner.run(u)
        runner.reset()
        runner.run(u[:, :10])

        def fails(*_: Any) -> Any:
            raise DeviceFault("the laser is out")

        with monkeypatch.context() as patch:
            patch.setattr(device, "_run", fails)
            with pytest.raises(DeviceFault, match="the laser is out"):
                runner.step(u[:, 10])
        for again in (lambda: runner.step(u[:, 10]), lambda: runner.run(u[:, 10:])):
            with pytest.raises(StateLost, match="call reset"):
                again()
        runner.reset()
        np.testing.assert_array_equal(runner.run(u), whole)


def test_repetitions_are_averaged(tmp_path: Path) -> None:
    noisy = {**DEVICE, "nonidealities": {"loop": {"noise": 0.05}}}
    u = drive(40)
    with open_reservoir(noisy) as reservoir:
        readout = RidgeReadout(1e-3).fit(reservoir.run(u), u[..., :1])
        readout.repetitions_ = 50
        export_model(readout, tmp_path / "m.rhw", reservoirs=reservoir)
        once = readout.predict(reservoir.run(u))
        with EdgeRunner(tmp_path / "m.rhw", reservoir, repetitions=50) as runner:
            averages = [runner.run(u)]
            with pytest.raises(StateLost, match="whole sequences from rest"):
                runner.run(u)
            with pytest.raises(NotSupported, match="step by step"):
                runner.step(u[:, 0])
            runner.reset()
            averages.append(runner.run(u))
    # The mean of 50 repeats has a seventh of the noise.
    assert np.abs(averages[0] - averages[1]).std() < 0.3 * np.abs(averages[0] - once).std()


def test_latency_has_a_row_for_each_stage(series: Path) -> None:
    with EdgeRunner(series, DEVICE) as runner:
        for step in range(50):
            runner.step(drive(50)[:, step])
        runner.run(drive(100))
        rows = runner.latency()
        assert [row.stage for row in rows] == ["crossing 0", "segment 0"]
        assert [(row.calls, row.steps) for row in rows] == [(51, 150)] * 2
        assert all(0 < row.p50_s <= row.p99_s <= row.longest_s for row in rows)


def test_quantiles_of_a_histogram() -> None:
    histogram = Histogram()
    assert math.isnan(histogram.quantile_s(0.5))
    durations = np.exp(np.random.default_rng(0).uniform(np.log(200), np.log(1e10), 5000)).astype(np.int64)
    for ns in durations.tolist():
        histogram.add(ns)
    histogram.sort()
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        assert histogram.quantile_s(share) == pytest.approx(np.quantile(durations, share) * 1e-9, rel=0.13)
    histogram.add(10**15)
    histogram.add(0)
    histogram.sort()
    assert histogram.counts.sum() == 5002
    assert histogram.quantile_s(1.0) <= 10**15 * 1e-9


def test_texts(words: Path) -> None:
    with EdgeRunner(words, {**DEVICE, "inputs": 4}) as runner:
        pieces = list(runner.generate("the cat", 30, seed=1))
        tokens = list(runner.generate(runner.tokenizer.encode("the cat"), 30, seed=1))
        assert "".join(pieces) == runner.tokenizer.decode(tokens)
        assert len(pieces) == 30
        for disturb in (lambda: runner.step([1]), lambda: (runner.reset(), runner.run([[3, 4]]))):
            reading = runner.generate("the", 10)
            next(reading)
            disturb()
            with pytest.raises(StateLost, match="used for something else"):
                list(reading)
            runner.reset()


# ---- bundles that do not fit together


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["segments"][0]["gives"][0].update(shape=[5]), "another shape or dtype where it is computed"),
        (lambda m: m["segments"][0]["reads"][0].update(shape=[5]), "reads states_0 in another shape"),
        (lambda m: m["output"].update(shape=[]), "its output has one axis"),
        (lambda m: m["input"].update(scalar=True), "input and output of a model are arrays"),
        (lambda m: m["input"].update(shape=[3]), "inputs does not fit the reservoir"),
        (lambda m: m.update(carried=[{"reads": "zz", "gives": "outputs", "shape": [99]}]), "outputs has another shape"),
        (lambda m: m["segments"][0]["gives"].append(m["segments"][0]["gives"][0]), "outputs is computed twice"),
        (lambda m: m["segments"][0].update(graph="\x1b[2J"), "graph"),
        (lambda m: m.update(segments=[]), "segments"),
        (lambda m: m.update(model="\x1b[31mred"), "cannot be printed"),
        (lambda m: m["slots"][0].update(repetitions=10**30), "repetitions"),
    ],
)
def test_a_manifest_that_contradicts_itself(series: Path, tmp_path: Path, change: Any, message: str) -> None:
    with zipfile.ZipFile(series) as archive:
        archive.extractall(tmp_path / "open")
    manifest = json.loads((tmp_path / "open" / "manifest.json").read_text())
    change(manifest)
    (tmp_path / "open" / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(ConfigurationError, match=message):
        EdgeRunner(tmp_path / "open", DEVICE)


def test_a_golden_response_that_is_no_such_thing(device: Reservoir) -> None:
    golden = record_probe(device)
    for change in ({"spread": np.zeros(3)}, {"repeats": np.array([10**9])}, {"repeats": np.zeros(0, np.int64)}):
        with pytest.raises(ConfigurationError, match="does not fit together"):
            compare_probe(device, {**golden, **change})
    del golden["mean"]
    with pytest.raises(ConfigurationError, match="lacks mean"):
        compare_probe(device, golden)


@pytest.mark.slow
def test_a_module_that_mixes_steps_takes_whole_sequences(device: Reservoir, tmp_path: Path) -> None:
    class Smooth(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(1, keepdim=True)

    plan = export_module(Smooth(), torch.randn(1, 4, 30), reservoir=device.spec)
    export_model(plan, tmp_path / "m.rhw", reservoirs=device)
    u = drive(20)
    with EdgeRunner(tmp_path / "m.rhw", device) as runner:
        whole = runner.run(u)
        with pytest.raises(NotSupported, match="step by step"):
            runner.step(u[:, 0])
        with pytest.raises(StateLost, match="whole sequences"):
            runner.run(u)
        runner.reset()
        np.testing.assert_array_equal(runner.run(u), whole)


# ---- the golden response


def test_a_noisy_device_passes_for_itself_and_not_for_others() -> None:
    noisy = {**DEVICE, "nonidealities": {"loop": {"noise": 0.02}}}
    with open_reservoir(noisy) as reservoir:
        golden = record_probe(reservoir)
        found = [compare_probe(reservoir, golden) for _ in range(10)]
    assert all(one.same for one in found)
    assert 0.8 < np.median([one.deviation for one in found]) < 1.2
    with open_reservoir({**noisy, "spectral_radius": 0.7}) as other:
        assert not compare_probe(other, golden).same
    with open_reservoir(DEVICE) as exact, open_reservoir({**DEVICE, "leak_rate": 0.98}) as other:
        golden = record_probe(exact)
        assert compare_probe(exact, golden).deviation < 1e-3
        assert not compare_probe(other, golden).same


# ---- the user's numbers, and forecasts


def columns(count: int, name: str = "u") -> tuple[ChannelFormat, ...]:
    return tuple(ChannelFormat(name=f"{name}{i}", zero=101325.0 - 7 * i, gain=0.01 + i) for i in range(count))


def looking_ahead(device: Reservoir) -> tuple[RidgeReadout, np.ndarray]:
    """A readout that says the next inputs, and the series (1, 500, 2) of which it has learned it."""
    time = np.arange(500)[:, None]
    # With noise, from which it learns weights that do not let errors grow in the loop.
    noise = 0.1 * np.random.default_rng(0).standard_normal((500, 2))
    u = (0.5 * np.sin(time / np.array([7.0, 11.0])) + noise)[None].astype(np.float32)
    return RidgeReadout(1.0, input_connection=True).fit(device.run(u)[:, :-1], u[:, 1:], u[:, :-1]), u


@pytest.mark.parametrize("scaled", [False, True])
def test_a_forecast_is_that_of_the_closed_loop(scaled: bool, device: Reservoir, tmp_path: Path) -> None:
    readout, u = looking_ahead(device)
    past = np.stack([u[0, 100:350], u[0, 250:500]])
    expected = closed_loop.forecast(device, readout, past, 60)
    series = SeriesFormat(inputs=columns(2), outputs=columns(2)) if scaled else None
    export_model(readout, tmp_path / "m.rhw", reservoirs=device, series=series)
    with EdgeRunner(tmp_path / "m.rhw", device) as runner:
        given = past if series is None else series.user_inputs(past)
        found = runner.forecast(given, 60)
        assert found.shape == (2, 60, 2)
        assert found.dtype == (np.float32 if series is None else np.float64)
        np.testing.assert_array_equal(found, runner.forecast(torch.from_numpy(given), 60))
    found = found if series is None else series.model_targets(found)
    assert np.abs(found - expected).max() <= 1e-5


def test_what_cannot_go_on_alone(device: Reservoir, series: Path, words: Path, tmp_path: Path) -> None:
    readout, u = looking_ahead(device)
    with EdgeRunner(series, device) as runner, pytest.raises(NotSupported, match="does not say its own next inputs"):
        runner.forecast(u, 3)
    with EdgeRunner(words, {**DEVICE, "inputs": 4}) as runner, pytest.raises(NotSupported, match="its own next inputs"):
        runner.forecast(u, 3)
    other = SeriesFormat(inputs=columns(2), outputs=columns(2, "y"))
    export_model(readout, tmp_path / "m.rhw", reservoirs=device, series=other)
    with (
        EdgeRunner(tmp_path / "m.rhw", device) as runner,
        pytest.raises(NotSupported, match=r"its own next inputs \(y0, y1 of u0, u1\)"),
    ):
        runner.forecast(u, 3)
    export_model(readout, tmp_path / "m.rhw", reservoirs=device)
    with EdgeRunner(tmp_path / "m.rhw", device) as runner:
        with pytest.raises(ShapeError, match="at least one step"):
            runner.forecast(u[:, :0], 3)
        with pytest.raises(ConfigurationError, match="steps"):
            runner.forecast(u, 0)
    with Toy(continuity="free_running") as free:
        readout = RidgeReadout(1e-6).fit(free.run(u), u)
        export_model(readout, tmp_path / "free.rhw", reservoirs=free, probe=False)
        with EdgeRunner(tmp_path / "free.rhw", free) as runner, pytest.raises(NotSupported, match="free-running"):
            runner.forecast(u, 3)


def test_a_forecast_that_leaves_the_range_keeps_what_it_said(tmp_path: Path) -> None:
    u = np.linspace(0, 0.9, 40, dtype=np.float32)[None, :, None] * np.ones(2, np.float32)
    with Toy(input_range=(-1, 1), continuity="held") as device:
        readout = RidgeReadout(1e-9, input_connection=True).fit(device.run(u), u + 0.025, u)
        export_model(readout, tmp_path / "m.rhw", reservoirs=device)
        with EdgeRunner(tmp_path / "m.rhw", device) as runner:
            with pytest.raises(
                OutputFault, match="the forecast left the range of the reservoir at its step 5"
            ) as caught:
                runner.forecast(u, 30)
            np.testing.assert_allclose(caught.value.outputs[0, :, 0], 0.9 + 0.025 * np.arange(1, 6), atol=1e-3)


def test_what_is_no_number_is_told_as_the_user_gave_it(device: Reservoir, tmp_path: Path) -> None:
    u = drive(50)
    readout = RidgeReadout(1e-6).fit(device.run(u), u[..., :1])
    series = SeriesFormat(inputs=columns(2), outputs=columns(1, "y"))
    export_model(readout, tmp_path / "m.rhw", reservoirs=device, series=series)
    with EdgeRunner(tmp_path / "m.rhw", device) as runner:
        given = series.user_inputs(u)
        for value, shown in ((np.inf, "inf"), (1e300, r"1e\+300")):
            given[0, 7, 1] = value
            with pytest.raises(InputRangeError, match=rf"channel 1 of the input at step 7 is {shown}"):
                runner.run(given)
