"""The command line as a user meets it: its output and exit codes; in real processes where these are what is tested."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import called as call
from command_line import ended, started

EXPERIMENT = """\
title: quick
task: {kind: elman_grammar, sentences: 120}
reservoir:
  kind: esn
  nodes: 30
  input_scaling: 0.5
readout: {kind: ridge, alpha: 1e-2, input_connection: true}
training: {priming_passes: 1}
baselines: [bigram]
run: {folder: RUNS}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.replace("RUNS", str(tmp_path / "runs")))
    return path


def test_run_writes_a_whole_run_folder(file: Path) -> None:
    done = ended("run", file)
    assert done.returncode == 0, done.stderr
    assert "device steps" in done.stderr
    folder = Path(re.findall(r"Results are in (.*)", done.stdout)[0])
    assert {path.name for path in folder.iterdir()} == {
        "experiment.yaml", "metrics.json", "provenance.json", "readout", "outputs", "figures", "report.html",
    }  # fmt: skip
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["status"] == "complete"
    assert [row["label"] for row in metrics["rows"]] == ["bigram", "ESN(30)"]
    # In another process to the digit.
    again = json.loads(call("run", file, "--json").stdout)["rows"]
    assert [row["metrics"] for row in again] == [row["metrics"] for row in metrics["rows"]]
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["rows"][0]["reservoir"]["identity"]["simulated"] is True
    assert len(provenance["configuration_sha256"]) == 64
    page = (folder / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert not re.search(r"(src|href)=\"https?:", page)
    call("check", folder / "experiment.yaml")


def test_json_is_all_that_is_printed(file: Path) -> None:
    done = call("run", file, "--json", "--set", "reservoir.nodes=20")
    result = json.loads(done.stdout)
    assert result["rows"][1]["label"] == "ESN(20)"
    assert 0 < result["rows"][1]["metrics"]["cosine"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "reservoir.nodes=-3"], r"^error: --set reservoir\.nodes: reservoir\.nodes = -3: "),
        (["--set", "reservoir.nodez=3"], r"^error: --set reservoir\.nodez: unknown key .* did you mean 'nodes'"),
        (["--set", "readout.alpha=big"], r"^error: --set readout\.alpha: readout\.alpha"),
        (["--set", "reservoir.device=cuda"], r"no CUDA device here"),
        (["--reservoir", "nowhere.yaml"], r"^error: nowhere\.yaml: there is no such file"),
        (["--set", "task.corpus=nowhere.txt"], r"nowhere\.txt"),
        (
            ["--set", "reservoir.inputs=3", "--set", "reservoir.input_mask=none"],
            r"24 channels for 3 inputs of .*`input_mask: none`",
        ),
        (["--set", "reservoir.connectivity=1e-9"], r"spectral radius"),
        (["--set", "reservoir.weights=x.safetensors"], r"decides about"),
    ],
)
def test_mistakes_exit_2_with_one_message(file: Path, arguments: list[str], message: str) -> None:
    if "cuda" in str(arguments):
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device here")
    done = call("run", file, *arguments, code=2)
    text = done.stderr[done.stderr.find("error:") :]
    assert re.search(message, text), done.stderr
    assert done.stdout == ""


def test_mistakes_in_the_file_name_their_line(file: Path) -> None:
    file.write_text(file.read_text().replace("nodes: 30", "nodes: thirty"))
    assert f"{file}:5: reservoir.nodes = 'thirty'" in call("run", file, code=2).stderr
    call("run", file.parent / "none.yaml", code=2)
    call("run", code=2)


def test_nan_in_a_corpus_and_a_reservoir_that_diverges(file: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"boy walks .\n\xff\xfe nan\n")
    assert f"{corpus}:2" in call("run", file, "--set", f"task.corpus={corpus}", code=2).stderr
    done = call("run", file, "--set", "reservoir.activation=identity", "--set", "reservoir.spectral_radius=9", code=3)
    assert "a simulation that diverges" in done.stderr
    folder = next((tmp_path / "runs").iterdir())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["status"] == "failed"
    assert [row["label"] for row in metrics["rows"]] == ["bigram"]


def test_a_run_folder_that_cannot_be_made(file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file, not a folder" in call("run", file, "--set", f"run.folder={tmp_path / 'file'}", code=2).stderr
    assert "cannot make the run folder" in call("run", file, "--set", "run.folder=/proc/nowhere", code=2).stderr


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGHUP))]
)
def test_signals_keep_what_was_finished(file: Path, tmp_path: Path, number: int) -> None:
    slow = ("reservoir.vary={nodes: [20, 1000]}", "run.chunk_steps=50", "training.priming_passes=50")
    process = started("run", file, *(f"--set={change}" for change in slow))
    deadline = time.monotonic() + 60
    rows: list[str] = []
    while len(rows) < 2 and time.monotonic() < deadline and process.poll() is None:
        found = list((tmp_path / "runs").glob("*/metrics.json"))
        rows = [row["label"] for row in json.loads(found[0].read_text())["rows"]] if found else []
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "interrupted: what was finished is kept" in errors
    assert "Traceback" not in errors
    folder = next((tmp_path / "runs").iterdir())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["status"] == "interrupted"
    assert [row["label"] for row in metrics["rows"]] == ["bigram", "ESN(20)"]
    assert (folder / "report.html").is_file()


def test_check_opens_nothing_and_estimates(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace("  nodes: 30\n", "  nodes: 30\n  vary: {nodes: [20, 40]}\n"))
    done = call("check", file)
    assert re.search(r"is a valid experiment over 2 nodes\n2 runs, [\d,]+ device steps", done.stdout)
    estimate = json.loads(call("check", file, "--json").stdout)["estimate"]
    assert estimate["runs"] == 2
    assert not (tmp_path / "runs").exists()
    lab = tmp_path / "lab.yaml"
    lab.write_text("kind: esn\nnodes: 3\n")
    assert "valid reservoir file of kind esn" in call("check", lab).stdout
    call("check", file, "--reservoir", lab)
    lab.write_text("kind: esn\nnodes: 3\nleek_rate: 1\n")
    assert f"{lab}:3: unknown key 'leek_rate'; did you mean 'leak_rate'" in call("check", lab, code=2).stderr


def test_init_writes_a_file_that_runs_and_overwrites_none(tmp_path: Path) -> None:
    call("init", cwd=tmp_path)
    call("check", "experiment.yaml", cwd=tmp_path)
    call("run", "experiment.yaml", "--set", "task.sentences=200", cwd=tmp_path)
    assert "exists already" in call("init", cwd=tmp_path, code=2).stderr
    call("init", "no/such/folder/x.yaml", cwd=tmp_path, code=2)


def test_schema_describes_every_kind(file: Path) -> None:
    schema = json.loads(call("schema").stdout)
    text = json.dumps(schema)
    for word in ("connections_per_node", "set_call", "elman_grammar", "gcv", "priming_passes", "bigram"):
        assert word in text
    # A baseline may have several seeds.
    seeds = [kind["properties"]["seed"] for name, kind in schema["$defs"].items() if name.endswith("GptConfig")]
    assert {"array", "integer"} == {one["type"] for one in seeds[0]["anyOf"]}


def test_list_shows_kinds(tmp_path: Path) -> None:
    done = call("list", "backends", "--json")
    assert {row["kind"] for row in json.loads(done.stdout)} >= {"esn", "python"}
    call("list", "spaceships", code=2)
    for group in ("readouts", "tasks", "baselines", "instruments"):
        call("list", group)


def test_the_version_and_a_bad_log_level() -> None:
    assert re.fullmatch(r"reservoir-hw \d+\.\d+\.\d+\n", call("--version").stdout)
    call("--log", "loud", "list", "tasks", code=2)


LAB = """\
kind: python
call: lab_bench:prints
reset_call: lab_bench:to_rest
nodes: 2
simulated: true
continuity: CONTINUITY
memory_steps: 30
"""


@pytest.mark.parametrize("continuity", ["held", "replayed", "free_running"])
def test_an_experiment_runs_on_every_continuity_and_owns_its_output(
    file: Path, tmp_path: Path, continuity: str
) -> None:
    lab = tmp_path / "lab.yaml"
    lab.write_text(LAB.replace("CONTINUITY", continuity))
    bench = Path(__file__).parents[1] / "backends"
    done = call("run", file, "--reservoir", lab, "--json", "--set", "run.chunk_steps=500", cwd=bench)
    assert json.loads(done.stdout)["status"] == "complete"
    assert "hello from the lab" in done.stderr


def test_a_device_that_fails_to_close_loses_no_result(file: Path, tmp_path: Path) -> None:
    lab = tmp_path / "lab.yaml"
    lab.write_text(LAB.replace("CONTINUITY", "held") + "close_call: lab_bench:prints_and_fails_to_close\n")
    done = call("run", file, "--reservoir", lab, cwd=Path(__file__).parents[1] / "backends", code=3)
    assert "the shutter is stuck" in done.stderr
    folder = next((tmp_path / "runs").iterdir())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["status"] == "failed"
    assert [row["label"] for row in metrics["rows"]] == ["bigram", "PYTHON(2)"]
    assert (folder / "readout/000.safetensors").is_file()


def test_a_faulting_device_is_in_the_provenance(file: Path, tmp_path: Path) -> None:
    over = ["reservoir.activation=identity", "reservoir.spectral_radius=9"]
    call("run", file, *(part for value in over for part in ("--set", value)), code=3)
    record = json.loads(next((tmp_path / "runs").glob("*/provenance.json")).read_text())
    assert record["unfinished"]["reservoir"]["identity"]["simulated"] is True
    assert record["unfinished"]["reservoir"]["counters"]["faults"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("? [1, 2]\n: 4\n", "must be a text"),
        ("a: " + "[" * 1500 + "\n", "nested too deeply|not valid YAML"),
    ],
)
def test_odd_yaml(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "odd.yaml").write_text(line)
    done = call("check", tmp_path / "odd.yaml", code=2)
    assert re.search(message, done.stderr)


def test_all_points_are_checked_before_the_first_runs(file: Path, tmp_path: Path) -> None:
    for vary in ("reservoir.vary={input_scaling: [0.5, [1, 2]]}", "vary={readout.alpha: [0.1, [1, 2]]}"):
        for command in ("run", "check"):
            call(command, file, "--set", vary, code=2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_files(file: Path, tmp_path: Path) -> None:
    command = f"ulimit -f 20; exec {sys.executable} -m reservoir_hw.cli run {file}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert re.search(r"error: cannot write .*\.(png|npy): File too large", done.stderr), done.stderr
    folder = next((tmp_path / "runs").iterdir())
    assert json.loads((folder / "metrics.json").read_text())["status"] == "failed"
    assert not list(folder.rglob("*.partial"))


def test_texts_may_hold_a_hash(file: Path) -> None:
    folder = json.loads(call("run", file, "--json", "--set", "run.notes=sample #3").stdout)["folder"]
    assert json.loads((Path(folder) / "provenance.json").read_text())["notes"] == "sample #3"


@pytest.mark.parametrize("value", ["2024-13-45", "!!int x"])
def test_yaml_values_that_are_none(file: Path, value: str) -> None:
    assert "cannot be read as a YAML value" in call("check", file, "--set", f"run.notes={value}", code=2).stderr
