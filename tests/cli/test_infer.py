"""`reservoir-hw infer`: series and texts in and out, streamed; refusals; and where there is no torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import called as call
from command_line import command, started
from edge_runs import NARMA, bound, run_of, text_run
from served import free_address, ipc_address
from toys import SnapshotToy, Toy
from typer.testing import CliRunner

from reservoir_hw.cli import app
from reservoir_hw.core.errors import DeviceDisconnected
from reservoir_hw.core.seeds import generator
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.experiment.deploy.infer import run_series
from reservoir_hw.readout import RidgeReadout
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.readout.export import export_model

ROOT = Path(__file__).parents[2]
AS_THEY_ARE = ["--warmup", "none"]
"""Answers within the washout are numbers."""


def refused(*arguments: object, text: str | bytes = "", lines: int = 1, code: int = 2) -> str:
    """What is said, in one line; in this process, which is quicker."""
    done = CliRunner().invoke(app, ["infer", *map(str, arguments)], input=text)
    assert done.exit_code == code, (done.output, done.exception)
    assert len(done.stderr.strip().splitlines()) == lines, done.stderr
    return done.stderr


@contextlib.contextmanager
def serving(file: Path, address: str, *options: object) -> Iterator[str]:
    """While a reservoir is served; gives the reservoir file that it prints for the other side."""
    process = started("serve", file, "--bind", address, *options)
    assert process.stdout is not None
    try:
        assert "Serving" in process.stdout.readline(), process.communicate()[1]
        while process.stdout.readline().strip():
            pass
        yield textwrap.dedent("".join(iter(process.stdout.readline, "\n")))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def streaming(bundle: Path, reservoir: Path) -> Iterator[subprocess.Popen[str]]:
    """`infer` that waits for lines."""
    process = started("infer", bundle, *AS_THEY_ARE, "--reservoir", reservoir, stdin=subprocess.PIPE, bufsize=1)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a bundle of a series model (with inputs), and of a LAERC."""
    folder = tmp_path_factory.mktemp("edge")
    for name in ("narma", "laerc"):
        made = folder / name
        run = run_of(made, NARMA, readout__input_connection=True) if name == "narma" else text_run(made, name)
        export_run(run, folder / f"{name}.rhw")
        shutil.copy(run / "experiment.yaml", folder / f"{name}.yaml")
    return folder


@pytest.fixture
def narma(folder: Path) -> list[Any]:
    """The series model, its device, and answers within the washout."""
    return [folder / "narma.rhw", *AS_THEY_ARE, "--reservoir", folder / "narma.yaml"]


@pytest.fixture
def series(folder: Path, tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (time, inputs), as in series.npy and series.csv, and the outputs that they should give."""
    u = generator(0, "series").uniform(0, 0.5, (60, 1)).astype(np.float32)
    np.save(tmp_path / "series.npy", u)
    np.savetxt(tmp_path / "series.csv", u, header="voltage", comments="")
    with EdgeRunner(folder / "narma.rhw", folder / "narma.yaml") as runner:
        return u, runner.run(u[None])[0]


def test_progress_is_told(folder: Path, series: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    inputs = np.load(tmp_path / "series.npy")[None]
    with EdgeRunner(folder / "narma.rhw", [folder / "narma.yaml"]) as runner:
        for stepwise in (True, False):
            run_series(runner, inputs, lambda _, done, total: told.append((done, total)), stepwise=stepwise)
    assert told == [(step, 60) for step in range(60)] + [(0, 60)]


def rows(text: str) -> np.ndarray:
    return np.array([[float(word) for word in line.split(",")] for line in text.splitlines()])


@pytest.mark.parametrize("form", ["npy", "csv", "txt", "stdin"])
def test_series(form: str, narma: list[Any], series: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    u, expected = series
    # As Windows programs write it.
    marked = "\ufeff" + "\n".join(str(value) for value in u[:, 0])
    if form == "stdin":
        said = call("infer", *narma, text=marked).stdout
    else:
        (tmp_path / "series.txt").write_text(marked, encoding="utf-8")
        said = call("infer", *narma, "--input", tmp_path / f"series.{form}").stdout
    assert np.abs(rows(said) - expected).max() <= bound(expected)


@pytest.mark.parametrize("held", [True, False])
def test_sequences_that_are_driven_in_turn_are_one_piece(
    held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without snapshots cannot go on with the first sequence after the second."""
    monkeypatch.setattr("reservoir_hw.experiment.deploy.infer.PIECE", 7)
    u = generator(0, "series").uniform(0, 0.5, (2, 20, 2)).astype(np.float32)
    with (SnapshotToy if held else Toy)(max_batch=1) as device:
        readout = RidgeReadout(1e-6).fit(device.run(u[:1]), u[:1, :, :1])
        export_model(readout, tmp_path / "model.rhw", reservoirs=device)
        with EdgeRunner(tmp_path / "model.rhw", device) as runner:
            expected = runner.run(u)
            pieces: list[np.ndarray] = []
            found = run_series(runner, u, lambda *_: None, answered=pieces)
    assert len(pieces) == (3 if held else 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_series_in_pieces(
    narma: list[Any], series: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    u, expected = series
    monkeypatch.setattr("reservoir_hw.experiment.deploy.infer.PIECE", 7)
    given = ["infer", *narma, "--output", tmp_path / "out.npy"]
    call(*given, "--input", tmp_path / "series.npy")
    assert np.abs(np.load(tmp_path / "out.npy") - expected).max() <= bound(expected)
    # Seen before anything is driven.
    (tmp_path / "out.npy").unlink()
    u[40] = np.nan
    np.save(tmp_path / "bad.npy", u)
    done = CliRunner().invoke(app, [str(one) for one in (*given, "--input", tmp_path / "bad.npy")])
    assert "bad.npy, row 40 (0 is the first), column '0' is empty or nan" in done.stderr
    assert not (tmp_path / "out.npy").exists()


def test_a_header_is_told(narma: list[Any], series: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    said = call("infer", *narma, "--input", tmp_path / "series.csv").stderr
    assert said.endswith(
        "series.csv: the first line is taken as names, which RidgeReadout does not know: columns in order\n"
    )


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no such bundle: a refusal that came later would be about it.
    given = [tmp_path / "none.rhw", "--input", tmp_path / "none.npy"]
    for option, name in (("--output", "out.csv"), ("--output", "out.npy"), ("--figure", "budget.png")):
        said = refused(*given, option, tmp_path / "none" / name)
        assert said == f"error: {option} {tmp_path / 'none' / name}: there is no folder {tmp_path / 'none'}\n"
    for name in ("budget.xyz", "budget"):
        assert "ends in .png, .pdf or .svg" in refused(*given, "--figure", tmp_path / name)
    assert f"{tmp_path} is a folder: name a file" in refused(*given, "--output", tmp_path)
    (tmp_path / "old.csv").write_text("1\n")
    (tmp_path / "old.npy").write_bytes(b"")
    # Who is root may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    for name, place in (("new.csv", ""), ("old.npy", ""), ("old.csv", "old.csv")):
        said = refused(*given, "--output", tmp_path / name)
        assert f"{name}: no permission to write to {tmp_path / place}\n" in said
    assert "nothing at this path" in refused(*given, "--output", "-")


@pytest.fixture(params=["ctrl-c", "device"])
def fourth_call_fails(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[int, str]:
    """The exit code, and what is said."""
    done = []
    for name in ("step", "run"):
        original = getattr(EdgeRunner, name)

        def failing(runner: EdgeRunner, inputs: np.ndarray, original: Any = original) -> np.ndarray:
            done.append(1)
            if len(done) == 4:
                raise KeyboardInterrupt if request.param == "ctrl-c" else DeviceDisconnected("it is gone")
            return original(runner, inputs)

        monkeypatch.setattr(EdgeRunner, name, failing)
    # So a call of `run` is a step as well.
    monkeypatch.setattr("reservoir_hw.experiment.deploy.infer.PIECE", 1)
    return (130, "interrupted: what was finished is kept") if request.param == "ctrl-c" else (3, "device: it is gone")


@pytest.mark.parametrize("source", ["file", "file, timed", "stdin"])
@pytest.mark.parametrize("form", ["csv", "npy", "stdout"])
def test_what_was_answered_is_kept(
    source: str,
    form: str,
    narma: list[Any],
    series: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    fourth_call_fails: tuple[int, str],
) -> None:
    u, expected = series
    output = tmp_path / f"out.{form}"
    given = ["infer", *narma]
    given += ["--input", "-" if source == "stdin" else tmp_path / "series.npy"]
    given += [] if source == "file" else ["--latency"]
    given += [] if form == "stdout" else ["--output", output]
    done = CliRunner().invoke(app, [str(one) for one in given], input="".join(f"{value}\n" for value in u[:, 0]))
    said = done.stderr.strip().splitlines()
    assert (done.exit_code, said[0]) == fourth_call_fails, done.exception
    if form == "npy" or source != "stdin":
        where = "written" if form == "stdout" else f"in {output}"
        assert said[-1] == f"the 3 steps that were answered are {where}"
    if source == "stdin" and done.exit_code == 3:
        assert said[1] == "stdin:4 was not answered"
    if form == "npy":
        kept = np.load(output)
    else:
        kept = rows(done.stdout if form == "stdout" else output.read_text())
    assert kept.shape == (3, 1)
    assert np.abs(kept - expected[:3]).max() <= bound(expected)


def test_a_bad_line_keeps_what_was_answered(narma: list[Any], tmp_path: Path) -> None:
    for name, lines in (("out.npy", 2), ("out.csv", 1)):
        assert "stdin:3: 'abc' is not a row" in refused(
            *narma, "--output", tmp_path / name, text="0.1\n0.2\nabc\n0.3\n", lines=lines
        )
    kept = np.load(tmp_path / "out.npy")
    assert kept.shape == (2, 1)
    assert np.abs(kept - rows((tmp_path / "out.csv").read_text())).max() < 1e-6


def test_a_device_out_of_all_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of 8e37 are allowed, and no output of them is: what came before is kept, and a pipe ends there."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_bench.py").write_text(
        "import numpy as np\n"
        "def measure(u):\n"
        "    return np.where(u > 0.4, 8e37, 0.1) * np.ones(40)\n"
        "def rest():\n"
        "    pass\n"
    )
    (tmp_path / "broken.yaml").write_text(
        "kind: python\ncall: broken_bench:measure\nreset_call: broken_bench:rest\nmode: step\nnodes: 40\n"
        "simulated: true\ncontinuity: held\n"
    )
    (tmp_path / "u.csv").write_text("0.1\n0.2\n0.45\n0.1\n")
    export_run(run_of(tmp_path, NARMA, readout__alpha=0.1), tmp_path / "single.rhw")
    given = [tmp_path / "single.rhw", *AS_THEY_ARE, "--reservoir", tmp_path / "broken.yaml", "--any-device"]
    for source in (["--input", tmp_path / "u.csv"], ["--input", tmp_path / "u.csv", "--latency"], []):
        arguments = [str(one) for one in ["infer", *given, *source]]
        done = CliRunner().invoke(app, arguments, input=(tmp_path / "u.csv").read_text())
        assert done.exit_code == 3, done.output
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("device: ")]
        assert re.search(r"RidgeReadout gives -?(inf|nan) \(sequence 0, step 2, output 0\): a reservoir answers", said)
        assert rows(done.stdout).shape == (2, 1)


@pytest.mark.parametrize("name", ["keep.csv", "keep.npy"])
def test_a_bad_first_line_leaves_an_older_file(name: str, narma: list[Any], tmp_path: Path) -> None:
    given = [*narma, "--output", tmp_path / name]
    (tmp_path / name).write_text("kept")
    assert "stdin:1: 'abc' is not a row" in refused(*given, text="abc\n")
    assert (tmp_path / name).read_text() == "kept"
    done = CliRunner().invoke(app, ["infer", *map(str, given)], input="")
    assert done.exit_code == 0, done.output
    assert (np.load(tmp_path / name).size if name == "keep.npy" else (tmp_path / name).stat().st_size) == 0


@pytest.mark.slow
def test_series_to_files_and_figures(narma: list[Any], series: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    u, expected = series
    np.save(tmp_path / "two.npy", np.stack([u, u]))
    given = [*narma, "--input", tmp_path / "two.npy"]
    done = call(
        "infer", *given, "--output", tmp_path / "out.npy", "--latency", "--figure", tmp_path / "budget.png",
        "--verify-probe",
    )  # fmt: skip
    assert np.abs(np.load(tmp_path / "out.npy") - expected).max() <= bound(expected)
    assert done.stdout == ""
    assert "answers as recorded" in done.stderr
    assert re.search(r"crossing 0\W+60\b", done.stderr)
    assert (tmp_path / "budget.png").read_bytes().startswith(b"\x89PNG")
    assert "csv holds one sequence" in refused(*given)
    said = json.loads(call("infer", *given, "--json", "--latency").stdout)
    assert np.abs(np.array(said["outputs"]) - expected).max() <= bound(expected)
    assert [stage["stage"] for stage in said["latency"]] == ["crossing 0", "segment 0"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_lines_are_answered_as_they_come_until_they_are_interrupted(
    number: int, folder: Path, series: tuple[np.ndarray, np.ndarray]
) -> None:
    u, expected = series
    with streaming(folder / "narma.rhw", folder / "narma.yaml") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for value, wanted in zip(u[:5, 0], expected, strict=False):
            process.stdin.write(f"{value}\n")
            process.stdin.flush()
            # The answer is there before the next line is given.
            assert abs(float(process.stdout.readline()) - wanted[0]) <= bound(expected)
        process.send_signal(number)
        said, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said == ""
    assert errors.strip() == "interrupted: what was finished is kept"


@pytest.mark.parametrize(("closed", "which"), [pytest.param("<&-", "input", marks=pytest.mark.slow), (">&-", "output")])
def test_closed_streams(closed: str, which: str, narma: list[Any]) -> None:
    told = " ".join(command("infer", *narma))
    done = subprocess.run(f"{told} {closed}", shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: standard {which} is closed")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_who_reads_a_pipe_with_a_name_has_left(narma: list[Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    told = command("infer", *narma)
    told += ["--output", str(tmp_path / "pipe")]
    lines = "\n".join(["0.1"] * 5000)
    script = f"{' '.join(told)} <&0 & head -2 {tmp_path / 'pipe'}; wait $!"
    done = subprocess.run(["bash", "-c", script], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert re.search(r"^stopped: who read the answers has left, after \d+ of them were written$", done.stderr, re.M)


@pytest.mark.parametrize("source", ["pipe", pytest.param("file", marks=pytest.mark.slow)])
def test_who_reads_has_left(source: str, narma: list[Any], tmp_path: Path) -> None:
    """Who has seen enough of a file may go. An actuator that is gone is no success."""
    (tmp_path / "lines.txt").write_text("0.1\n" * 5000)
    told = " ".join(command("infer", *narma))
    script = f"cat {tmp_path / 'lines.txt'} | {told}" if source == "pipe" else f"{told} < {tmp_path / 'lines.txt'}"
    script += " | head -2; exit ${PIPESTATUS[-2]}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 2
    if source == "file":
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 3
    assert re.fullmatch(
        r"behind in \d+ of \d+ steps, up to [\d,]+ lines\n"
        r"stopped: who read the answers has left, after \d+ of them were written\n",
        done.stderr,
    )


@pytest.mark.slow
def test_a_text(folder: Path, tmp_path: Path) -> None:
    with EdgeRunner(folder / "laerc.rhw", folder / "laerc.yaml") as runner:
        wanted = "".join(runner.generate("ab", 40, temperature=0.7, top_k=3, seed=4))
    given = [folder / "laerc.rhw", "--reservoir", folder / "laerc.yaml", "--prompt", "ab", "--tokens", 40]
    choices = ["--temperature", 0.7, "--top-k", 3, "--seed", 4]
    assert call("infer", *given, *choices).stdout == wanted + "\n"
    call("infer", *given, *choices, "--output", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == wanted + "\n"
    assert json.loads(call("infer", *given, *choices, "--json").stdout)["text"] == wanted
    assert refused(*given, "--output", "/dev/full", code=1).startswith("error: /dev/full: No space left on device")


@pytest.mark.slow
def test_refusals(folder: Path, tmp_path: Path) -> None:
    series, text = folder / "narma.rhw", folder / "laerc.rhw"
    own = [*AS_THEY_ARE, "--reservoir", folder / "narma.yaml"]
    (tmp_path / "other.yaml").write_text("kind: esn\nnodes: 40\ninput_scaling: 0.5\nseed: 1\n")
    other = [*AS_THEY_ARE, "--reservoir", tmp_path / "other.yaml"]
    assert "is another device" in refused(series, *other)
    assert "does not answer as the one" in refused(series, *other, "--any-device", "--verify-probe")
    assert rows(call("infer", series, *other, "--any-device", text="0.1\n").stdout).shape == (1, 1)
    assert "means of 1 repetitions" in refused(series, *own, "--repetitions", 2)
    assert "needs 1 reservoirs" in refused(series)
    assert "needs 1 reservoirs" in refused(series, *own, *own)
    assert "reads series, not text" in refused(series, *own, "--prompt", "ab")
    assert "continues a text" in refused(text, "--reservoir", folder / "laerc.yaml", text="0.1\n")
    assert "there is no file" in refused(series, *own, "--input", tmp_path / "none.csv")
    np.save(tmp_path / "huge.npy", np.zeros((4, 1)))
    huge = (tmp_path / "huge.npy").read_bytes().replace(b"(4, 1), }" + 12 * b" ", b"(4000000000000, 1), }")
    (tmp_path / "huge.npy").write_bytes(huge)
    assert "huge.npy cannot be read: mmap length" in refused(series, *own, "--input", tmp_path / "huge.npy")
    assert "nothing at this path" in refused(tmp_path / "none.rhw", *own)
    assert "stdin:3: the inputs of a step must be finite" in refused(series, *own, text="\n0.1\nnan\n")
    assert "stdin:2: 2 numbers, but the model takes 1" in refused(series, *own, text="0.1\n0.1,0.2\n")
    assert "stdin:2: 'abc' is not a row of numbers" in refused(series, *own, text="0.1\nabc\n")
    assert "stdin:1: 'u,v' is not a row of numbers; a header is for models" in refused(series, *own, text="u,v\n0.1\n")
    assert "stdin is no text in UTF-8" in refused(series, *own, text=b"\xff\n")
    assert "nothing was timed" in refused(series, *own, "--latency", text="")
    for options in (["--input", tmp_path / "huge.npy"], ["--json"], ["--output", tmp_path / "y.npy"], []):
        assert "--max-behind is for lines of a pipe" in refused(series, *own, "--max-behind", 3, *options, text="0.1\n")
    (tmp_path / "two.csv").write_text("0.1,0.2\n")
    (tmp_path / "inf.csv").write_text("0.1\ninf\n")
    own = ["--reservoir", folder / "narma.yaml"]
    for name, said in (("two", "two.csv has 2 columns"), ("inf", "inf.csv: channel 0 of the input at step 1 is inf")):
        assert said in refused(series, *own, "--warmup", tmp_path / f"{name}.csv", text="0.1\n")
    laerc = ["--reservoir", folder / "laerc.yaml", "--prompt", "ab"]
    for options in (["--warmup", tmp_path / "two.csv"], ["--outside", "stop"]):
        assert "continues a text: --warmup, --outside and --max-behind are for series" in refused(
            text, *laerc, *options
        )
    assert "not with --forecast" in refused(series, *own, "--outside", "nan", "--forecast", 3, text="0.1\n")
    own = [*AS_THEY_ARE, *own]
    np.save(tmp_path / "wide.npy", np.zeros((5, 2)))
    assert "wide.npy has 2 columns, and RidgeReadout takes 1\n" in refused(
        series, *own, "--input", tmp_path / "wide.npy"
    )
    np.save(tmp_path / "nan.npy", np.full((5, 1), np.nan))
    assert "is empty or nan" in refused(series, *own, "--input", tmp_path / "nan.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "objects.npy" in refused(series, *own, "--input", tmp_path / "objects.npy")
    assert "not among the 5 of the vocabulary" in refused(text, "--reservoir", folder / "laerc.yaml", "--prompt", "xyz")


def test_an_empty_line_between_others_is_refused(narma: list[Any]) -> None:
    """It would shift the answers behind it. One at the end is the end of many texts."""
    assert rows(call("infer", *narma, text="\n# u\n0.1\n# more\n0.2\n\n \n").stdout).shape == (2, 1)
    assert "stdin:2: the line is empty" in refused(*narma, text="0.1\n,\n \n0.2\n")


def test_a_damaged_bundle(folder: Path, tmp_path: Path) -> None:
    content = bytearray((folder / "narma.rhw").read_bytes())
    at = content.index(b"golden") + 4000
    content[at] ^= 1
    (tmp_path / "damaged.rhw").write_bytes(content)
    said = refused(tmp_path / "damaged.rhw", "--reservoir", folder / "narma.yaml", text="0.1\n")
    assert "damaged.rhw" in said


@pytest.mark.slow
def test_one_file_may_name_the_reservoirs_of_all_layers(tmp_path: Path) -> None:
    """Here, and behind the sockets of one server."""
    run = text_run(tmp_path, "laerc", reservoir={"kind": "laerc_layers", "nodes": 12})
    export_run(run, tmp_path / "model.rhw")
    tokens = generator(0, "tokens").integers(0, 5, (1, 30))
    with EdgeRunner(tmp_path / "model.rhw", run / "experiment.yaml") as runner:
        assert [device.spec.nodes for device in runner.reservoirs] == [12, 12]
        expected = runner.run(tokens)
    with ipc_address() as address, serving(run / "experiment.yaml", address) as bench:
        (tmp_path / "layers.yaml").write_text(bench)
        with EdgeRunner(tmp_path / "model.rhw", tmp_path / "layers.yaml") as runner:
            np.testing.assert_array_equal(runner.run(tokens), expected)
    (tmp_path / "bare.yaml").write_text("kind: laerc_layers\nnodes: 12\n")
    done = CliRunner().invoke(app, ["serve", str(tmp_path / "bare.yaml")])
    assert done.exit_code == 2
    assert "give the experiment file" in done.stderr


def test_repetitions_are_those_of_the_training(tmp_path: Path) -> None:
    noisy = {"readout": {"noise": 1e-3}}
    run = run_of(tmp_path, NARMA, training__repetitions=2, reservoir__nonidealities=noisy)
    export_run(run, tmp_path / "model.rhw")
    given = [tmp_path / "model.rhw", *AS_THEY_ARE, "--reservoir", run / "experiment.yaml"]
    assert rows(call("infer", *given, text="0.1\n0.2\n").stdout).shape == (2, 1)
    assert "means of 2 repetitions" in refused(*given, "--repetitions", 1)


@pytest.mark.slow
def test_over_a_socket(folder: Path, series: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    u, expected = series
    address = free_address()
    (tmp_path / "bench.yaml").write_text(f"kind: zmq\naddress: {address}\n")
    with serving(folder / "narma.yaml", address):
        said = call(
            "infer", folder / "narma.rhw", *AS_THEY_ARE, "--reservoir", tmp_path / "bench.yaml", "--verify-probe",
            text="\n".join(str(value) for value in u[:, 0]),
        )  # fmt: skip
    assert np.abs(rows(said.stdout) - expected).max() <= bound(expected)


@pytest.mark.slow
def test_a_device_that_dies(folder: Path, tmp_path: Path) -> None:
    """What was answered stays, and the code is that of a device fault."""
    address = free_address()
    (tmp_path / "bench.yaml").write_text(f"kind: zmq\naddress: {address}\ntimeout_s: 3.0\n")
    with contextlib.ExitStack() as stack:
        server = contextlib.ExitStack()
        stack.push(server)
        server.enter_context(serving(folder / "narma.yaml", address))
        process = stack.enter_context(streaming(folder / "narma.rhw", tmp_path / "bench.yaml"))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("0.1\n")
        assert process.stdout.readline()
        server.close()
        _, errors = process.communicate("0.2\n", timeout=60)
    assert process.returncode == 3, errors
    assert errors.startswith("device: ")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_the_walk_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What examples/edge_deploy tells to type, on another port; a second time, over what the first has left."""
    monkeypatch.chdir(tmp_path)
    example = ROOT / "examples/edge_deploy"
    subprocess.run([sys.executable, example / "make_text.py", "sentences.txt"], check=True)
    for name in ("narma", "text", "narma"):
        call("run", example / f"{name}.yaml")
        run = sorted(Path("runs").glob(f"edge-{name}-*"))[-1]
        call("export", run, "-o", f"{name}.rhw", "--force")
        if name == "text":
            told = call("export", run, "-o", "text-int8.rhw", "--precision", "int8", "--force")
            assert "bits_per_character" in told.stdout
        else:
            call("export", run, "-o", "whole.rhw", "--target", "whole", "--force")
            call("export", run, "-o", "narma.h", "--target", "c", "--force")
            refusal = call("export", run, "-o", "n8.h", "--target", "c", "--precision", "int8", code=2).stderr
            assert refusal.startswith("error: int8 changes an output by a root mean square of ")
    call("bundle", "verify", "text.rhw")
    address = free_address()
    Path("bench.yaml").write_text((example / "bench.yaml").read_text().replace("tcp://127.0.0.1:5555", address))
    bench = ["--reservoir", "bench.yaml"]
    with serving(example / "text.yaml", address):
        told = call("infer", "text.rhw", *bench, "--prompt", "dogs who ", "--tokens", 120, "--temperature", 0.5)
        assert set(told.stdout.split()) & {"dogs", "dog", "cats", "cat", "boys", "boy", "girls", "girl"}
    with serving(example / "narma.yaml", address):
        subprocess.run([sys.executable, example / "make_series.py", "inputs.csv", "targets.csv"], check=True)
        near = rows(call("infer", "narma.rhw", *bench, text=Path("inputs.csv").read_text()).stdout)
    whole = rows(call("infer", "whole.rhw", "--input", "inputs.csv").stdout)
    # Within the washout both are nan.
    assert np.abs(near - whole)[100:].max() < 1e-4
    targets = np.loadtxt("targets.csv")[100:, None]
    assert np.sqrt(np.mean((near[100:] - targets) ** 2)) < 0.3 * targets.std()
    said = json.loads(call("infer", "whole.rhw", "--json", "--input", "inputs.csv").stdout)["outputs"]
    np.testing.assert_allclose(np.array(said, float)[0], whole, rtol=1e-6)
    assert "holds its reservoirs: no device answers" in refused("whole.rhw", "--verify-probe", text="0.1\n")


WITHOUT_TORCH = """
import importlib.util, sys, time
begun = time.perf_counter()
from reservoir_hw.readout.edge import EdgeRunner
taken = time.perf_counter() - begun
for name in ("torch", "onnx", "zarr", "scipy", "numba", "matplotlib"):
    assert importlib.util.find_spec(name) is None, name
with EdgeRunner(sys.argv[1], sys.argv[2]) as runner:
    text = "".join(runner.generate("ab", 60, seed=1))
print(taken, text)
"""


@pytest.mark.slow
def test_where_there_is_no_torch(folder: Path, tmp_path: Path, record_property: Any) -> None:
    """A fresh environment with the `edge` and `zmq` extras of a wheel; the reservoir is behind a server over here."""
    source = tmp_path / "source"
    source.mkdir()
    # From a copy: setuptools leaves its scratch folders beside the sources.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "reservoir_hw", source / "reservoir_hw", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "edge", with_pip=True)
    python = tmp_path / "edge/bin/python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    constraints = ["-c", str(ROOT / "constraints.txt")]
    installed = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *constraints, f"{wheel}[edge,zmq]"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    address = free_address()
    (tmp_path / "bench.yaml").write_text(f"kind: zmq\naddress: {address}\n")
    with EdgeRunner(folder / "laerc.rhw", folder / "laerc.yaml") as runner:
        wanted = "".join(runner.generate("ab", 60, seed=1))
    with serving(folder / "laerc.yaml", address):
        done = subprocess.run(
            [str(python), "-c", WITHOUT_TORCH, str(folder / "laerc.rhw"), str(tmp_path / "bench.yaml")],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        by_command = subprocess.run(
            command(
                "infer", folder / "laerc.rhw", "--reservoir", "bench.yaml", "--prompt", "ab", "--tokens", 60,
                "--seed", 1, python=python,
            ),
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    taken, _, text = done.stdout.partition(" ")
    assert text == wanted + "\n"
    assert by_command.stdout == wanted + "\n", by_command.stderr
    packages = next((tmp_path / "edge/lib").glob("python*/site-packages"))
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file() and "pip" not in path.parts)
    facts = f"{size / 2**20:.0f} MiB, import {float(taken):.2f} s"
    record_property("edge environment", facts)
    sys.stdout.write(f"edge environment: {facts}\n")
    assert size < 250 * 2**20
