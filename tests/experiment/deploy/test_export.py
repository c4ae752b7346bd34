"""From a run folder to the edge: what a bundle computes there is what the trained model computes here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from edge_runs import NARMA, READOUTS, Seen, bound, logits_of, model_of, run_of, text_run
from onnx import helper
from served import ipc_address, served

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, DeviceError, ReservoirError
from reservoir_hw.core.seeds import generator
from reservoir_hw.experiment.deploy import export_models as header
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.experiment.deploy.trained import trained_row
from reservoir_hw.experiment.devices.info import reservoir_from_file
from reservoir_hw.readout import LowRankReadout, RidgeReadout
from reservoir_hw.readout.edge import Bundle, EdgeRunner
from reservoir_hw.readout.export import recording
from reservoir_hw.readout.export.recording import record_series
from reservoir_hw.readout.linear.online import LMSReadout, RLSReadout

LOOP = {"kind": "delay_loop", "nodes": 30, "physics": {"kind": "paquot", "feedback_gain": 0.8, "input_gain": 0.3}}
MASKED = {"kind": "esn", "nodes": 20, "inputs": 3, "input_mask": {"kind": "uniform"}}
SERIES = {
    "ridge": {},
    "ridge with inputs": {"readout__input_connection": True},
    "two repetitions": {"training__repetitions": 2, "reservoir__nonidealities": {"readout": {"noise": 1e-3}}},
    "rls": {"readout": {"kind": "rls", "washout": 50}},
    "lms": {"readout": {"kind": "lms", "washout": 50, "rate": 0.5}},
    "rls that keeps learning": {"readout": {"kind": "rls", "washout": 50, "keep_learning": True}},
    "lms that keeps learning": {"readout": {"kind": "lms", "washout": 50, "rate": 0.5, "keep_learning": True}},
    "delay loop": {"reservoir": LOOP},
    "input mask": {"reservoir": MASKED},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edge")


@pytest.fixture(scope="module")
def narma(folder: Path) -> Path:
    return run_of(folder / "narma", NARMA)


@pytest.fixture(scope="module")
def laerc(folder: Path) -> Path:
    return text_run(folder / "laerc", "laerc")


def series(batch: int = 2, steps: int = 50) -> np.ndarray:
    return generator(0, "series").uniform(0, 0.5, (batch, steps, 1)).astype(np.float32)


def own_file(run: Path) -> Path:
    """The run's own configuration is a reservoir file, too."""
    return run / "experiment.yaml"


@pytest.mark.parametrize("case", SERIES)
def test_a_readout_at_the_edge_answers_as_it_did(case: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, NARMA, **SERIES[case])
    exported = export_run(run, tmp_path / "model.rhw")
    assert exported.manifest is not None
    assert exported.manifest.certificate.segments[0].recorded_steps == 50 + 300
    config = trained_row(run).point.config
    readout = {"ridge": RidgeReadout, "rls": RLSReadout, "lms": LMSReadout}[config.readout.kind].load(
        run / "readout/000.safetensors"
    )
    # What was learned in the test is exported as well, and it is said.
    assert (readout.n_samples_ > 1200) == ("keeps learning" in case)
    assert any("has its last weights" in note for note in exported.notes) == ("keeps learning" in case)
    u, times = series(), config.training.repetitions
    with open_reservoir(own_file(run), inputs=1) as device:
        states = []
        for _ in range(times):
            device.reset(2)
            states.append(np.asarray(device.run(u)))
        mean = np.mean(states, 0, dtype=np.float64).astype(np.float32)
    expected = readout.predict(mean, u if readout.input_connection else None)
    with EdgeRunner(tmp_path / "model.rhw", own_file(run), repetitions=times) as runner:
        assert np.abs(runner.run(u) - expected).max() <= bound(expected)
        if times == 1:
            runner.reset(2)
            steps = np.stack([runner.step(u[:, t]).copy() for t in range(50)], 1)
            assert np.abs(steps - expected).max() <= bound(expected)
            assert runner.verify_probe()[0].deviation < 1e-3


@pytest.mark.parametrize("kind", READOUTS)
def test_a_language_model_at_the_edge_writes_what_torch_writes(kind: str, tmp_path: Path) -> None:
    run = text_run(tmp_path, kind)
    exported = export_run(run, tmp_path / "model.rhw")
    assert len(exported.about["segments"]) == (3 if kind == "laerc" else 2)
    tokens = generator(0, "tokens").integers(0, 5, (2, 40))
    with model_of(run) as (model, _):
        expected = logits_of(model, tokens)
        written = list(model.generate([0, 1], 60, seed=2))
    with EdgeRunner(tmp_path / "model.rhw", own_file(run)) as runner:
        assert np.abs(runner.run(tokens) - expected).max() <= bound(expected)
        assert list(runner.generate([0, 1], 60, seed=2)) == written
        assert "".join(runner.generate("ab", 60, seed=2)) == runner.tokenizer.decode(written)


def test_each_layer_may_have_its_own_device(tmp_path: Path) -> None:
    run = text_run(tmp_path, "laerc", reservoir={"kind": "laerc_layers", "nodes": 12})
    exported = export_run(run, tmp_path / "model.rhw")
    assert exported.manifest is not None
    fingerprints = [slot.fingerprint for slot in exported.manifest.slots]
    assert len(set(fingerprints)) == 2
    assert fingerprints == [spec.identity.fingerprint for spec in trained_row(run).reservoirs]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["esn", "attention", "laerc"])
def test_the_reservoir_may_be_far_away(kind: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, NARMA) if kind == "esn" else text_run(tmp_path, kind)
    given = series() if kind == "esn" else generator(0, "tokens").integers(0, 5, (2, 30))
    exported = export_run(run, tmp_path / "model.rhw")
    with EdgeRunner(exported.path, own_file(run)) as runner:
        near = runner.run(given)
    with ipc_address() as address:
        bench = tmp_path / "bench.yaml"
        bench.write_text(f"kind: zmq\naddress: {address}\n")
        _, device = reservoir_from_file(own_file(run))
        with served(device, address):
            again = export_run(run, tmp_path / "far.rhw", reservoir=bench)
            with EdgeRunner(again.path, bench) as runner:
                far = runner.run(given)
                runner.reset(2)
                steps = np.stack([runner.step(given[:, t]).copy() for t in range(given.shape[1])], 1)
    assert np.array_equal(near, far)
    assert np.abs(steps - far).max() <= bound(far)


# From a standard normal table of t: 9 degrees of freedom, two-sided 99 %.
T_9 = 3.250
REPEATS = 10


def test_a_noisy_device_behind_a_socket(tmp_path: Path, record_property: Any) -> None:
    """Trained on states of the device: equal to the model on the same states, and as good as it is on fresh ones.

    The interval is fixed beforehand: the test is played `REPEATS` times to the device and read by the original
    readout; a further run has to lie in the prediction interval mean ± t s √(1 + 1/n), at 99 %.
    """
    run_text = NARMA.replace("{kind: esn, nodes: 40, input_scaling: 0.5}", "{kind: zmq, address: ADDRESS}")
    lab = tmp_path / "lab.yaml"
    lab.write_text(
        "kind: delay_loop\nnodes: 50\ninputs: 1\nphysics: {kind: paquot, feedback_gain: 0.8, input_gain: 0.3}\n"
        "nonidealities: photonic_delay_loop\n"
    )
    with ipc_address() as address:
        bench = tmp_path / "bench.yaml"
        bench.write_text(f"kind: zmq\naddress: {address}\n")
        with served(reservoir_from_file(lab)[1], address):
            run = run_of(tmp_path, run_text.replace("ADDRESS", address))
            exported = export_run(run, tmp_path / "model.rhw")
            assert exported.manifest is not None
            assert exported.manifest.slots[0].identity["model"] == "delay_loop"
            task = trained_row(run).point.config.task.build()
            warmup = task.train.inputs[:, -200:]
            played = np.concatenate([warmup, task.test.inputs], 1)
            readout = RidgeReadout.load(run / "readout/000.safetensors")
            with open_reservoir(bench) as device:
                errors = []
                for _ in range(REPEATS):
                    device.reset(1)
                    outputs = readout.predict(np.asarray(device.run(played)))
                    errors.append(task.evaluate(outputs[:, 200:]).metrics["nrmse"])
                seen = Seen()
                with EdgeRunner(tmp_path / "model.rhw", device) as runner:
                    with device.observed_by(seen):
                        edge = runner.run(played)
                    (probe,) = runner.verify_probe()
    expected = readout.predict(seen.states[0])
    assert np.abs(edge - expected).max() <= bound(expected)
    mean, spread = np.mean(errors), np.std(errors, ddof=1)
    assert spread > 0
    reach = T_9 * spread * np.sqrt(1 + 1 / REPEATS)
    fresh = task.evaluate(edge[:, 200:]).metrics["nrmse"]
    record_property("nrmse", f"{mean:.4f} ± {reach:.4f}, at the edge {fresh:.4f}, probe {probe.deviation:.2f}")
    assert abs(fresh - mean) <= reach
    assert probe.same


def test_int8_says_what_it_costs(laerc: Path, tmp_path: Path) -> None:
    exported = export_run(laerc, tmp_path / "int8.rhw", precision="int8")
    run_metrics = json.loads((laerc / "metrics.json").read_text())["rows"][0]["metrics"]
    for name in ("cross_entropy", "bits_per_character", "accuracy"):
        assert exported.metrics[name]["before"] == pytest.approx(run_metrics[name], abs=1e-5)
    cost = exported.metrics["bits_per_character"]
    assert 0 < abs(cost["after"] - cost["before"]) < 0.05
    assert exported.manifest is not None
    assert exported.manifest.certificate.metrics == exported.metrics


def test_int8_of_a_series(narma: Path, tmp_path: Path) -> None:
    exported = export_run(narma, tmp_path / "int8.rhw", precision="int8", accept_loss=True)
    wanted = json.loads((narma / "metrics.json").read_text())["rows"][0]["metrics"]["nrmse"]
    cost = exported.metrics["nrmse"]
    assert cost["before"] == pytest.approx(wanted, rel=1e-4)
    assert cost["after"] != cost["before"]


def test_a_closed_loop(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        NARMA.replace("{kind: narma, train_steps: 1200, test_steps: 400}", "{kind: lorenz, train_steps: 1500}"),
        readout__alpha=1e-3,
    )
    exported = export_run(run, tmp_path / "model.rhw", precision="int8")
    assert exported.metrics
    assert exported.manifest is not None
    assert exported.manifest.output.shape == (3,)


def test_whole(narma: Path, laerc: Path, tmp_path: Path) -> None:
    """The simulated network inside: no device, the same answers."""
    for run, given in ((narma, series()), (laerc, generator(0, "tokens").integers(0, 5, (2, 30)))):
        export_run(run, tmp_path / "segments.rhw", force=True)
        exported = export_run(run, tmp_path / "whole.rhw", target="whole", force=True)
        assert exported.manifest is not None
        assert exported.manifest.slots == ()
        with EdgeRunner(tmp_path / "segments.rhw", own_file(run)) as runner:
            expected = runner.run(given)
        with EdgeRunner(tmp_path / "whole.rhw") as runner:
            assert np.abs(runner.run(given) - expected).max() <= 10 * bound(expected)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reservoir": LOOP}, "delay_loop.* cannot be put inside a graph"),
        ({"reservoir__nonidealities": "memristive_film"}, "has non-idealities"),
        ({"reservoir": MASKED}, "input mask"),
    ],
)
def test_what_has_no_whole_graph(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, NARMA, **changes)
    with pytest.raises(ConfigurationError, match=why):
        export_run(run, tmp_path / "model.rhw", target="whole")
    assert not (tmp_path / "model.rhw").exists()


def test_c(narma: Path, folder: Path, tmp_path: Path) -> None:
    """8 bits hold the readout of a large penalty, and not that of a small one."""
    gentle = run_of(folder / "gentle", NARMA, readout__alpha=10)
    cases: Any = ((narma, "fp32"), (gentle, "int8"))
    for run, precision in cases:
        exported = export_run(run, tmp_path / "my model.h", target="c", precision=precision, force=True)
        text = exported.path.read_text()
        assert "my_model_predict" in text
        assert trained_row(run).reservoirs[0].identity.fingerprint in text
        assert bool(exported.metrics) is (precision == "int8")
        name = "float32 changes an output by at most" if precision == "fp32" else "int8 changes an output by a root"
        assert len([note for note in exported.notes if note.startswith(name)]) == 1
    with pytest.raises(ConfigurationError, match=r"int8 changes an output by .*at most 0\.1 is taken for harmless"):
        export_run(narma, tmp_path / "lost.h", target="c", precision="int8")
    assert not (tmp_path / "lost.h").exists()


WITHOUT_ONNX = """
import sys
sys.modules |= {"onnx": None, "onnxruntime": None}
from reservoir_hw.experiment.deploy.export import export_run
for precision in ("fp32", "int8"):
    export_run(*sys.argv[1:], target="c", precision=precision, accept_loss=True, force=True)
"""


@pytest.mark.slow
def test_c_needs_no_onnx(narma: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_ONNX, str(narma), str(tmp_path / "model.h")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "model_predict_q" in (tmp_path / "model.h").read_text()


def test_c_of_counts_that_float32_does_not_hold(narma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same states around 1e6: their differences are what the readout reads, and float32 loses them."""
    readout = RidgeReadout.load(narma / "readout/000.safetensors")
    form = readout.linear_form()
    readout._form = form._replace(bias=form.bias - 1e6 * form.weights.sum(1))

    def far(device: Any, inputs: np.ndarray) -> dict[str, np.ndarray]:
        recorded = record_series(device, inputs)
        return {**recorded, "states_0": recorded["states_0"].astype(np.float64) + 1e6}

    monkeypatch.setattr(recording, "record_series", far)
    monkeypatch.setattr(RidgeReadout, "load", lambda path: readout)
    with pytest.raises(ConfigurationError, match=r"differs from this readout by .*300 recorded steps.*larger alpha"):
        export_run(narma, tmp_path / "model.h", target="c")
    assert not (tmp_path / "model.h").exists()


def test_each_output_of_a_header_is_compared() -> None:
    """A large output says nothing about a small one, whose weights cancel."""
    random = np.random.default_rng(0)
    states = random.normal(size=(1, 400, 3)).astype(np.float32)
    states[..., 0] *= 1000
    states[..., 2] = states[..., 1] + 1e-6 * random.normal(size=(1, 400)).astype(np.float32)
    readout = RidgeReadout(1.0).fit(states, states[..., :2])
    form = readout.linear_form()._replace(weights=np.array([[1.0, 0, 0], [0, -1e7, 1e7]]), bias=np.zeros(2))
    readout._hold(form)
    with pytest.raises(ConfigurationError, match=r"at most .* 400 recorded steps \(output 1, whose standard deviation"):
        header.precision_note(readout, {"states_0": states})
    readout._hold(form._replace(weights=np.array([[1.0, 0, 0], [0, -1.0, 2.0]])))
    assert "float32 changes an output by at most" in header.precision_note(readout, {"states_0": states})


def test_counts_of_a_device_without_a_declared_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter's 8192 ± 4000: the bundle computes in double, and the header says what float32 costs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counting_bench.py").write_text(
        "import numpy as np\n"
        "W = np.random.default_rng(0).normal(size=(4, 60))\n"
        "def measure(u):\n"
        "    past = np.stack([np.pad(u[:, 0], (k, 0))[: len(u)] for k in range(4)], 1)\n"
        "    return np.round(8192 + 4000 * np.tanh(past @ W))\n"
        "def rest():\n"
        "    pass\n"
    )
    device = {
        "kind": "python", "call": "counting_bench:measure", "reset_call": "counting_bench:rest", "nodes": 60,
        "simulated": True, "continuity": "replayed", "memory_steps": 4, "deterministic": True,
    }  # fmt: skip
    run = run_of(tmp_path, NARMA, reservoir=device)
    (spec,) = trained_row(run).reservoirs
    assert spec.state_range is None
    exported = export_run(run, tmp_path / "model.rhw")
    with Bundle.open(exported.path) as bundle:
        graph = onnx.load_from_string(bundle.graph(0))
    assert any(one.op_type == "Cast" for one in graph.graph.node)
    header = export_run(run, tmp_path / "model.h", target="c")
    assert any(note.startswith("float32 changes an output by at most") for note in header.notes)


@pytest.mark.parametrize("connected", [False, True])
def test_the_header_in_numpy(connected: bool) -> None:
    """In float64 it is the readout, in float32 nearly."""
    random = generator(0, "header")
    x, u = random.normal(size=(1, 200, 11)), random.normal(size=(1, 200, 3))
    given = u if connected else None
    readout = RidgeReadout(input_connection=connected).fit(x, x[..., :2] * u[..., :1] + u[..., :2], given)
    exact = readout.predict(x, given)
    assert np.allclose(header.header_outputs(readout, x, given, np.float64), exact, rtol=0, atol=1e-13)
    single = header.header_outputs(readout, x, given, np.float32)
    assert single.dtype == np.float32
    assert 0 < np.abs(single - exact).max() < 1e-5
    low_rank = LowRankReadout(11, 5, 2)
    logits = low_rank(torch.from_numpy(x.astype(np.float32))).detach().numpy()
    assert np.abs(header.header_outputs(low_rank, x, None, np.float32) - logits).max() < 1e-5


def _without_time(graph: bytes) -> onnx.ModelProto:
    """A graph without the second in which it was written; it names the run that it comes from."""
    model = onnx.load_from_string(graph)
    said = {entry.key: entry.value for entry in model.metadata_props}
    assert len(said["configuration_sha256"]) == 64
    assert said["time"]
    helper.set_model_props(model, {key: value for key, value in said.items() if key != "time"})
    return model


def test_c_of_a_language_model(tmp_path: Path) -> None:
    run = text_run(tmp_path, "low_rank")
    exported = export_run(run, tmp_path / "model.h", target="c", precision="int8")
    assert exported.metrics["bits_per_character"]["after"] < exported.metrics["bits_per_character"]["before"] + 0.1


@pytest.mark.parametrize("kind", ["ridge", "attention", "laerc"])
def test_offline(kind: str, tmp_path: Path) -> None:
    """No device is opened: here there is none any more."""
    run = run_of(tmp_path, NARMA) if kind == "ridge" else text_run(tmp_path, kind)
    export_run(run, tmp_path / "there.rhw")
    if kind != "ridge":
        (tmp_path / "text.txt").unlink()
    exported = export_run(run, tmp_path / "offline.rhw", offline=True)
    assert "No device was opened" in exported.notes[0]
    assert exported.manifest is not None
    assert exported.manifest.slots[0].probe is None
    assert exported.manifest.certificate.segments[0].recorded_steps == 0
    with Bundle.open(tmp_path / "there.rhw") as there, Bundle.open(tmp_path / "offline.rhw") as offline:
        assert there.manifest.slots[0].fingerprint == offline.manifest.slots[0].fingerprint
        for number in range(len(there.manifest.segments)):
            ours, theirs = (_without_time(bundle.graph(number)) for bundle in (there, offline))
            assert ours == theirs
        for name, array in there.weights.items():
            assert np.array_equal(array, offline.weights[name])


def test_a_recording_cannot_be_driven_as_an_export_does(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace")
    there = run_of(tmp_path / "there", NARMA, run__record=trace)
    run = run_of(tmp_path / "again", NARMA, reservoir={"kind": "replay", "trace": trace})
    with pytest.raises(ConfigurationError, match=r"reservoir 0, esn \(replayed\), is a recording.*--offline"):
        export_run(run, tmp_path / "model.rhw")
    assert not (tmp_path / "model.rhw").exists()
    offline = export_run(run, tmp_path / "offline.rhw", offline=True)
    assert "--reservoir FILE" in offline.command
    assert "FILE is to be the reservoir file of the device that was recorded." in offline.notes
    recorded = export_run(run, tmp_path / "model.rhw", reservoir=own_file(there))
    assert offline.manifest is not None
    assert recorded.manifest is not None
    assert offline.manifest.slots[0].fingerprint == recorded.manifest.slots[0].fingerprint
    assert recorded.manifest.certificate.segments[0].recorded_steps == 50 + 300


def test_a_grid_is_asked_which(tmp_path: Path) -> None:
    run = run_of(tmp_path, NARMA, reservoir__vary={"nodes": [10, 20]})
    with pytest.raises(ConfigurationError, match=r"2 trained models.*--row\n  0  ESN\(10\).*\n  1  ESN\(20\)"):
        export_run(run, tmp_path / "model.rhw")
    with pytest.raises(ConfigurationError, match="no row 2"):
        export_run(run, tmp_path / "model.rhw", row=2)
    exported = export_run(run, tmp_path / "model.rhw", row=1)
    assert exported.label == "ESN(20)"
    assert exported.as_dict()["parameters"] == [21]
    # What to type next names the reservoir of this row.
    own = f"{run}/readout/001.reservoir.yaml"
    assert exported.command == f"reservoir-hw infer {tmp_path}/model.rhw --reservoir {own}"
    with EdgeRunner(tmp_path / "model.rhw", own) as runner:
        assert runner.reservoirs[0].spec.nodes == 20


def test_refusals(narma: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("kind: esn\nnodes: 40\ninput_scaling: 0.5\nseed: 1\n")
    asked: list[tuple[Path, str, dict[str, Any], str]] = [
        (narma, "model.rhw", {"reservoir": other}, r"fingerprint .* was trained on"),
        (tmp_path, "model.rhw", {}, "not the folder of a run"),
        (narma, "model.rhw", {"target": "whole", "offline": True}, "leave out offline"),
        (narma, "model.rhw", {"offline": True, "reservoir": other}, "offline opens no device"),
        (narma, "model.rhw", {"target": "c"}, "writes a header"),
        (narma, "model.h", {}, r"ends with \.rhw"),
    ]
    for run, name, settings, said in asked:
        with pytest.raises(ConfigurationError, match=said):
            export_run(run, tmp_path / name, **settings)
    broken = tmp_path / "broken"
    shutil.copytree(narma, broken)
    (broken / "readout/000.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"has no readout/000\.safetensors of row 0"):
        export_run(broken, tmp_path / "model.rhw")
    (broken / "provenance.json").write_text("{")
    with pytest.raises(ConfigurationError, match="damaged"):
        export_run(broken, tmp_path / "model.rhw")
    assert not (tmp_path / "model.rhw").exists()
    exported = export_run(narma, tmp_path / "model.rhw")
    with pytest.raises(ConfigurationError, match="there already"):
        export_run(narma, tmp_path / "model.rhw")
    assert export_run(narma, tmp_path / "model.rhw", force=True).bytes == exported.bytes


def test_nothing_is_written_when_the_device_fails(tmp_path: Path) -> None:
    run = run_of(tmp_path, NARMA)
    bench = tmp_path / "bench.yaml"
    with ipc_address() as address:
        bench.write_text(f"kind: zmq\naddress: {address}\ntimeout_s: 0.3\n")
        with pytest.raises((DeviceError, ReservoirError)):
            export_run(run, tmp_path / "model.rhw", reservoir=bench)
    assert not (tmp_path / "model.rhw").exists()


def test_no_place_of_this_machine_is_in_a_bundle(laerc: Path, narma: Path, tmp_path: Path) -> None:
    for run in (laerc, narma):
        export_run(run, tmp_path / "bundle", force=True)
        for path in (tmp_path / "bundle").rglob("*"):
            if path.is_file():
                assert str(run.parent).encode() not in path.read_bytes(), path
