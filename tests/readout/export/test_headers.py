"""C headers: compiled strictly, run, and compared with the readouts that they were made of."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.series_format import ChannelFormat, SeriesFormat
from reservoir_hw.experiment.deploy.export_models import header_outputs
from reservoir_hw.readout import (
    AttentionReadout,
    LinearReadout,
    LMSReadout,
    LowRankReadout,
    NotSolved,
    RidgeReadout,
    RLSReadout,
)
from reservoir_hw.readout.export._c_int8 import MOST_FEATURES, Int8Matrix
from reservoir_hw.readout.export.headers import as_coded, c_header, int8_readout, matrices_of

CC, CXX = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"), shutil.which("g++")
needs_cc = pytest.mark.skipif(CC is None, reason="there is no C compiler (cc, gcc, clang) on this machine")
needs_cxx = pytest.mark.skipif(CXX is None, reason="there is no g++ on this machine")

STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror", "-O2"]
SANITIZED = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

PROGRAM = """
#include <stdio.h>
#include "readout.h"

int main(void)
{
    static float states[READOUT_NODES], inputs[READOUT_INPUTS + 1], outputs[READOUT_OUTPUTS];
    float saturated = 0.0f, best = 0.0f;
    while (fread(states, sizeof(float), READOUT_NODES, stdin) == READOUT_NODES
           && fread(inputs, sizeof(float), READOUT_INPUTS, stdin) == READOUT_INPUTS) {
        CALL;
#if READOUT_OUTPUTS > 1
        best = (float)readout_argmax(outputs);
#endif
        fwrite(outputs, sizeof(float), READOUT_OUTPUTS, stdout);
        fwrite(&saturated, sizeof(float), 1, stdout);
        fwrite(&best, sizeof(float), 1, stdout);
    }
    return 0;
}
"""
CODED_PROGRAM = """
#include <stdio.h>
#include "readout.h"

int main(void)
{
    static int8_t coded[READOUT_FEATURES];
    static float outputs[READOUT_OUTPUTS];
    while (fread(coded, 1, READOUT_FEATURES, stdin) == READOUT_FEATURES) {
        CALL;
        fwrite(outputs, sizeof(float), READOUT_OUTPUTS, stdout);
    }
    return 0;
}
"""


def compiles(folder: Path, *command: object) -> None:
    """Without a warning."""
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def compiled(folder: Path, header: str, source: str, flags: list[str]) -> Path:
    assert CC is not None
    (folder / "readout.h").write_text(header, encoding="ascii")
    (folder / "main.c").write_text(source, encoding="ascii")
    compiles(folder, CC, "-std=c99", *STRICT, *flags, "main.c", "-o", "main")
    return folder / "main"


def output_of(program: Path, data: bytes) -> np.ndarray:
    done = subprocess.run([program], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, dtype=np.float32)


def in_c(
    folder: Path, header: str, features: np.ndarray, flags: list[str] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs, saturated counts and argmax of features (steps, nodes + inputs)."""
    sizes = {name: int(value) for name, value in re.findall(r"#define READOUT_(\w+) (\d+)u", header)}
    arguments = "states, inputs, outputs" if sizes["INPUTS"] else "states, outputs"
    assigned = "saturated = (float)" if "int8_t" in header else ""
    source = PROGRAM.replace("CALL", f"{assigned}readout_predict({arguments})")
    program = compiled(folder, header, source, flags or [])
    rows = output_of(program, features.astype(np.float32).tobytes()).reshape(len(features), -1)
    return rows[:, :-2], rows[:, -2], rows[:, -1]


def ridge(features: int, outputs: int, *, inputs: int = 0, seed: int = 0) -> RidgeReadout:
    rng = np.random.default_rng(seed)
    x = np.tanh(rng.standard_normal((2 * features + 20, features)))
    y = x @ rng.standard_normal((features, outputs)) + 0.1 * rng.standard_normal((len(x), outputs)) + 0.5
    readout = RidgeReadout(1e-2, input_connection=bool(inputs))
    return readout.fit(x[:, : features - inputs], y, x[:, features - inputs :] if inputs else None)


def with_weights(weights: np.ndarray, bias: np.ndarray) -> RidgeReadout:
    """A ridge readout that was trained, and whose solution is then replaced."""
    readout = ridge(weights.shape[1], weights.shape[0])
    readout._hold(readout.linear_form()._replace(weights=weights, bias=bias))
    return readout


X = np.tanh(np.random.default_rng(5).standard_normal((300, 13)))
Y = X @ np.random.default_rng(6).standard_normal((13, 4)) + 1
KINDS: dict[str, Callable[[], Any]] = {
    "ridge": lambda: RidgeReadout(1e-3).fit(3 * X + 1, Y),
    "ridge without bias": lambda: RidgeReadout(1e-3, bias=False).fit(X, Y),
    "ridge with inputs": lambda: RidgeReadout(1e-3, input_connection=True).fit(X[:, :10], Y, X[:, 10:]),
    "rls with inputs": lambda: RLSReadout(input_connection=True).fit(X[:, :10], Y, X[:, 10:]),
    "lms": lambda: LMSReadout().fit(X, Y),
    "linear": lambda: LinearReadout(13, 4),
    "linear without bias": lambda: LinearReadout(13, 4, bias=False),
    "low rank": lambda: LowRankReadout(13, 9, 3),
    "low rank without bias": lambda: LowRankReadout(13, 9, 3, bias=False),
    "bfloat16": lambda: LinearReadout(13, 4).to(torch.bfloat16),
}


def trained(kind: str) -> tuple[Any, np.ndarray, int]:
    """A readout, float32 features to try it with, and how many of these are nodes."""
    torch.manual_seed(0)
    features = np.tanh(np.random.default_rng(7).standard_normal((40, 13))).astype(np.float32)
    return KINDS[kind](), features, 10 if kind.endswith("inputs") else 13


def answers(readout: Any, features: np.ndarray, nodes: int) -> np.ndarray:
    if isinstance(readout, torch.nn.Module):
        with torch.no_grad():
            return readout.float()(torch.from_numpy(features)).numpy()
    inputs = features[:, nodes:] if nodes < features.shape[1] else None
    return readout.predict(features[:, :nodes], inputs)


def ranges(nodes: int, features: int) -> dict[str, Any]:
    return {"state_range": (-1, 1), **({"input_range": (-1, 1)} if nodes < features else {})}


# ---- float32


@needs_cc
@pytest.mark.parametrize("kind", KINDS)
def test_fp32_agrees_with_the_readout(kind: str, tmp_path: Path) -> None:
    readout, features, nodes = trained(kind)
    expected = answers(readout, features, nodes)
    outputs, saturated, best = in_c(tmp_path, c_header(readout), features)
    assert expected.dtype == np.float32
    assert np.abs(outputs - expected).max() <= 1e-5 * max(1, np.abs(expected).max())
    assert not saturated.any()
    np.testing.assert_array_equal(best, outputs.argmax(axis=1))


@needs_cc
def test_fp32_weights_arrive_bit_by_bit(tmp_path: Path) -> None:
    """One weight per output, read back with a state of 1: denormals, the largest numbers, random bits."""
    bits = np.random.default_rng(3).integers(0, 2**32, 3000, dtype=np.uint32).view(np.float32)
    special = np.array(
        [0.0, 1e-45, -1e-45, 1.1754942e-38, np.finfo(np.float32).max, -3.4028235e38, 0.1, 1 / 3, 16777217]
    )
    weights = np.concatenate([special.astype(np.float32), bits[np.isfinite(bits)]])
    readout = with_weights(weights[:, None].astype(np.float64), np.zeros(len(weights)))
    outputs, _, _ = in_c(tmp_path, c_header(readout), np.ones((1, 1)))
    np.testing.assert_array_equal(outputs[0].view(np.uint32), weights.view(np.uint32))


@pytest.mark.parametrize(
    "compiler",
    [
        pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"there is no {name} here"))
        for name in ("gcc", "clang", "arm-none-eabi-gcc")
    ],
)
def test_no_warning_where_everything_is_inlined(compiler: str, tmp_path: Path) -> None:
    """Of widths that are a multiple of four GCC for Arm would warn of a loop that has nothing to do."""
    (tmp_path / "main.c").write_text(
        '#include "readout.h"\nvoid answer(const float *s, const float *u, float *y);\n'
        "void answer(const float *s, const float *u, float *y) { (void)u; (void)CALL; }\n"
    )
    cases: Any = (
        (100, "fp32", 0, "-O2"), (200, "fp32", 4, "-O3"), (512, "int8", 0, "-O3"), (102, "fp32", 1, "-O3"),
    )  # fmt: skip
    for nodes, precision, inputs, optimised in cases:
        limits = ranges(nodes, nodes + inputs) if precision == "int8" else {}
        header = c_header(ridge(nodes + inputs, 2, inputs=inputs), precision=precision, **limits)
        (tmp_path / "readout.h").write_text(header, encoding="ascii")
        call = "readout_predict(s, u, y)" if inputs else "readout_predict(s, y)"
        warnings = ("-Wall", "-Wextra", "-Werror")
        compiles(tmp_path, compiler, "-std=c99", *warnings, optimised, f"-DCALL={call}", "-c", "main.c")


@pytest.mark.slow
@needs_cc
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_shape_and_size(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    features, outputs = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 70))
    size = data.draw(st.sampled_from([1e-44, 1e-38, 1e-20, 1.0, 1e4, 1e30]))
    low, high = data.draw(st.sampled_from([(-1.0, 1.0), (0.0, 1.0), (-3e-6, 1e-6), (5.0, 5.5), (-1e5, 3e5)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    weights = (size * rng.standard_normal((outputs, features))).astype(np.float32).astype(np.float64)
    weights[rng.random(weights.shape) < 0.1] = -0.0
    readout: Any = with_weights(weights, size * rng.standard_normal(outputs))
    states = rng.uniform(-1, 1, (16, features)).astype(np.float32)
    states[rng.random(states.shape) < 0.05] = 1e-42
    expected = readout.predict(states)
    got, _, _ = in_c(tmp_path_factory.mktemp("any"), c_header(readout), states)
    assert np.abs(got - expected).max() <= 1e-5 * max(1, np.abs(expected).max())
    if data.draw(st.booleans()):
        readout = LowRankReadout(features, outputs, data.draw(st.integers(1, min(features, outputs))))
        with torch.no_grad():
            readout.A.weight.mul_(size)
    states = rng.uniform(low, high, (16, features)).astype(np.float32)
    expected, counts = int8_readout(readout, state_range=(low, high)).predict(states)
    header = c_header(readout, precision="int8", state_range=(low, high))
    got, saturated, _ = in_c(tmp_path_factory.mktemp("any"), header, states)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(saturated, counts)
    assert not counts.any()


# ---- int8


@needs_cc
@pytest.mark.parametrize("kind", KINDS)
def test_int8_computes_what_the_emulation_says(kind: str, tmp_path: Path) -> None:
    readout, features, nodes = trained(kind)
    recorded = np.tanh(features)
    span: dict[str, Any] = {"state_range": (recorded[:, :nodes].min(), recorded[:, :nodes].max())}
    if nodes < 13:
        span["input_range"] = (recorded[:, nodes:].min(), recorded[:, nodes:].max())
    assert c_header(readout, precision="int8", calibration=recorded) == c_header(readout, precision="int8", **span)
    features[3, 2], features[5, 0], features[7, 12] = 1.5, -np.inf, np.nan
    features[7, 4], features[8, 1] = np.inf, 1e38
    given_ranges = ranges(nodes, features.shape[1])
    emulated = int8_readout(readout, **given_ranges)
    expected, counts = emulated.predict(features[:, :nodes], features[:, nodes:] if nodes < 13 else None)
    outputs, saturated, _ = in_c(tmp_path, c_header(readout, precision="int8", **given_ranges), features)
    np.testing.assert_array_equal(saturated, counts)
    assert np.flatnonzero(counts).tolist() == [3, 5, 7, 8]
    assert counts.sum() == 5
    np.testing.assert_array_equal(outputs, expected)


@needs_cc
@pytest.mark.parametrize("kind", ["ridge", "rls with inputs", "low rank"])
def test_int8_takes_the_integers_of_a_converter(kind: str, tmp_path: Path) -> None:
    """All 256 values, -128 included, which `predict` itself never makes."""
    readout, _, nodes = trained(kind)
    coded = np.random.default_rng(0).integers(-128, 128, (50, 13), dtype=np.int8)
    coded[0], coded[1] = -128, 127
    given_ranges = ranges(nodes, 13)
    call = "readout_predict_q(coded, outputs)" if nodes == 13 else "readout_predict_q(coded, coded + 10, outputs)"
    header = c_header(readout, precision="int8", **given_ranges)
    program = compiled(tmp_path, header, CODED_PROGRAM.replace("CALL", call), SANITIZED)
    expected = int8_readout(readout, **given_ranges).predict_q(coded)
    np.testing.assert_array_equal(output_of(program, coded.tobytes()).reshape(50, -1), expected)


def test_codes_of_an_8_bit_converter_are_the_integers() -> None:
    """Trained on codes 0 to 255 with a range of 1 to 255, `predict_q` takes code - 128."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 256, (500, 20), dtype=np.uint8)
    readout = RidgeReadout(1e-3).fit(codes, codes @ rng.standard_normal((20, 3)))
    emulated = int8_readout(readout, state_range=(1, 255))
    integers = (codes.astype(np.int16) - 128).astype(np.int8)
    coded, saturated = emulated.coded(codes)
    np.testing.assert_array_equal(coded, np.maximum(integers, -127))
    np.testing.assert_array_equal(saturated, (codes == 0).sum(axis=1))
    expected = readout.predict(codes)
    error = emulated.predict_q(integers) - expected
    assert np.sqrt(np.mean(error**2)) < 0.01 * expected.std()


def test_int8_errors_stay_within_half_counts() -> None:
    """|Δy| ≤ Σ_j |w_j| · half a count of x + half a count of w · Σ_j |x_j|, for every output."""
    readout = ridge(64, 5)
    x = np.random.default_rng(0).uniform(-1, 1, (200, 64))
    weights = readout.weights_
    count = np.abs(weights).max(axis=1) / 127
    bound = np.abs(weights).sum(axis=1) / 254 + 64 * (count / 2) * (1 + 1 / 254)
    error = np.abs(int8_readout(readout, state_range=(-1, 1)).predict(x)[0] - readout.predict(x))
    assert (error <= bound + 1e-5).all()
    assert error.max() > 1e-4


def test_as_coded_are_the_states_that_int8_sees() -> None:
    x = np.array([[-2.0, -1.0, -0.3], [0.0, 1.0, np.nan]])
    expected = [[-1, -1, -38 / 127], [0, 1, 0]]
    np.testing.assert_allclose(as_coded(x, (-1, 1)), expected, rtol=1e-12)
    assert as_coded(0.26, (0, 1)) == pytest.approx(0.5 - 61 / 254)
    readout = ridge(6, 2)
    states = np.random.default_rng(0).uniform(-1, 1, (9, 6)).astype(np.float32)
    emulated = int8_readout(readout, state_range=(-1, 1))
    np.testing.assert_array_equal(emulated.coded(as_coded(states, (-1, 1)))[0], emulated.coded(states)[0])


# ---- what compilers say


def header_of(kind: str, precision: Any) -> str:
    readout, features, nodes = trained(kind)
    return c_header(readout, precision=precision, **(ranges(nodes, features.shape[1]) if precision == "int8" else {}))


FREESTANDING = '#include "readout.h"\n#include "readout.h"\nextern int used;\nint used;\n'
FUNCTION = """
#include "readout.h"
extern void f(const float *s, float *o);
void f(const float *s, float *o) { (void)CALL; }
"""


@needs_cc
@needs_cxx
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("kind", ["ridge", "ridge with inputs", "low rank"])
def test_compilers_and_sanitizers_find_nothing(kind: str, precision: str, tmp_path: Path) -> None:
    """Freestanding, included twice without use, as C++; and no globals that could be written: calls are re-entrant."""
    header, called = header_of(kind, precision), "s, s, o" if kind.endswith("inputs") else "s, o"
    (tmp_path / "readout.h").write_text(header, encoding="ascii")
    function = FUNCTION.replace("CALL", f"readout_predict({called})")
    commands: dict[str, tuple[str, list[Any]]] = {
        "only.c": (
            FREESTANDING,
            [CC, "-std=c99", "-ffreestanding", "-Os", "-Wdouble-promotion", "-Wmissing-prototypes"],
        ),
        "f.c": (function, [CC, "-std=c99"]),
        "f.cpp": (function, [CXX, "-std=c++11"]),
    }
    for name, (source, command) in commands.items():
        (tmp_path / name).write_text(source)
        compiles(tmp_path, *command, *STRICT, "-c", name)
        if name == "f.c" and shutil.which("size"):
            text = subprocess.run(["size", "f.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
            assert text.splitlines()[1].split()[1:3] == ["0", "0"]
    _, features, _ = trained(kind)
    features[0, 0], features[1, 1], features[2] = np.nan, np.inf, -3e38
    _, saturated, _ = in_c(tmp_path, header, features, SANITIZED)
    assert (saturated[:3] > 0).all() == (precision == "int8")


@needs_cc
def test_two_readouts_in_one_program(tmp_path: Path) -> None:
    (tmp_path / "two.h").write_text(c_header(ridge(4, 1), name="two", precision="int8", state_range=(-1, 1)))
    source = '#include "readout.h"\n#include "two.h"\nint main(void) { float s[4] = {0.0f}, o[2]; '
    source += "readout_predict(s, o); return (int)two_predict(s, o); }\n"
    assert not output_of(compiled(tmp_path, c_header(ridge(3, 2)), source, []), b"").size


# What the page's program finds on a board: a code for each node on standard input, the actuator on standard output.
BOARD = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "readout.h"
uint8_t adc_read(unsigned int node);
void dac_write(float value);
void warning_light(int on);
void wait_for_next_step(void);

static uint8_t codes[READOUT_NODES];
uint8_t adc_read(unsigned int node) { return codes[node]; }
void dac_write(float value) { printf("%.9g\\n", (double)value); }
void warning_light(int on) { printf("%s\\n", on ? "on" : "off"); }
void wait_for_next_step(void)
{
    if (fread(codes, 1, READOUT_NODES, stdin) != READOUT_NODES) {
        exit(0);
    }
}
"""


@needs_cc
@pytest.mark.parametrize("washout", [0, 7])
def test_the_program_of_the_documentation(washout: int, tmp_path: Path) -> None:
    """Safe while the reservoir warms up, and where a converter is at its end; else the answer, as Python knows it."""
    page = (Path(__file__).parents[3] / "docs" / "microcontroller.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    readout = ridge(9, 2)
    (tmp_path / "board.c").write_text(BOARD)
    header = c_header(readout, precision="int8", state_range=(1, 255), washout=washout)
    assert f"#define READOUT_WARMUP {washout}u\n" in header
    codes = np.random.default_rng(0).integers(1, 255, (40, 9), dtype=np.uint8)
    codes[3, 2], codes[20, 8], codes[30, 0] = 255, 0, 255
    done = subprocess.run(
        [compiled(tmp_path, header, program, ["board.c", *SANITIZED])],
        input=codes.tobytes(), capture_output=True, check=True, text=False,
    )  # fmt: skip
    before, *lines = done.stdout.decode().split()
    values, lights = np.array(lines[::2], dtype=float), np.array(lines[1::2])
    ends = ((codes == 0) | (codes == 255)).any(axis=1)
    safe = ends | (np.arange(40) < washout)
    assert float(before) == 0
    assert (values[safe] == 0).all()
    assert (values[~safe] != 0).all()
    expected = int8_readout(readout, state_range=(1, 255)).predict(codes.astype(np.float32))[0][:, 0]
    np.testing.assert_allclose(values[~safe], expected[~safe], rtol=1e-6)
    np.testing.assert_array_equal(lights == "on", ends)


@needs_cc
@pytest.mark.parametrize("kind", ["ridge", "ridge with inputs", "low rank"])
def test_the_bits_of_numpy(kind: str, tmp_path: Path) -> None:
    """In C99 no product and sum are joined to one rounding, as gcc's own dialect does where a processor can."""
    readout, features, nodes = trained(kind)
    inputs = features[:, nodes:] if nodes < features.shape[1] else None
    outputs, _, _ = in_c(tmp_path, c_header(readout), features)
    np.testing.assert_array_equal(outputs, header_outputs(readout, features[:, :nodes], inputs, np.float32))
    said = subprocess.run([str(CC), "--version"], capture_output=True, text=True, check=True).stdout
    if platform.machine() != "x86_64" or "Free Software Foundation" not in said:
        return
    for standard, joined in (("c99", False), ("gnu99", True)):
        command = [str(CC), f"-std={standard}", "-O2", "-mfma", "-S", "-o", "-", "main.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ("vfmadd" in done.stdout) is joined


@needs_cc
def test_no_array_is_too_large_for_avr(tmp_path: Path) -> None:
    coded: dict[str, Any] = {"precision": "int8", "state_range": (-1, 1)}
    for width, options, fits in ((8191, {}, True), (8192, {}, False), (32767, coded, True)):
        header = c_header(LinearReadout(width, 1), **options)
        (tmp_path / "only.c").write_text(header + "extern int used;\nint used;\n")
        for flags, works in (((), True), (("-D__AVR__",), fits)):
            command = [str(CC), "-std=c99", *STRICT, *flags, "-c", "only.c", "-o", "only.o"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (done.returncode == 0) is works, done.stderr
            assert works or "a table of 32768 bytes, and an array on AVR has at most 32767: take int8" in done.stderr


# ---- comment


HOSTILE = "*/ int evil = 1; /* \\\n*/ ??/\n \r\0 \u2028 *\\\n/ // **//*/*/ é \\"


@needs_cc
def test_texts_cannot_leave_the_comment(tmp_path: Path) -> None:
    header = c_header(ridge(3, 2), provenance={"reservoir": HOSTILE, HOSTILE: "*", "path": "/" * 1000, "": "*/"})
    assert header.isascii()
    assert "\\" not in header
    comment, code = header.split("*/", 1)
    assert "evil" in comment
    assert "evil" not in code
    assert code == c_header(ridge(3, 2)).split("*/", 1)[1]
    in_c(tmp_path, header, np.zeros((1, 3)), ["-Wtrigraphs", "-Wcomment"])


def test_provenance_and_checksum() -> None:
    readout = ridge(3, 2)
    header = c_header(readout, provenance={"reservoir fingerprint": "ab" * 32})
    weights, bias = readout.weights_.astype("<f4"), readout.bias_.astype("<f4")
    digest = hashlib.sha256(b"(2, 3)" + weights.tobytes() + b"(2,)" + bias.tobytes()).hexdigest()
    assert f" * weights sha256: {digest}\n * reservoir fingerprint: {'ab' * 32}\n" in header
    assert header == c_header(readout, provenance={"reservoir fingerprint": "ab" * 32})
    assert "drives with the same inputs" not in header
    readout.repetitions_ = 20
    assert " * states: the mean of 20 drives with the same inputs, as in training\n" in c_header(readout)


# ---- what is refused


class Squared(LinearReadout):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input * input)


HOOKED: Any = LowRankReadout(4, 4, 2)
HOOKED.register_forward_hook(lambda module, given, logits: -logits)
HUGE = with_weights(np.full((1, 9), 1e38), np.zeros(1))
coded = partial(c_header, precision="int8")
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: c_header(RidgeReadout()), NotSolved, "export needs weights"),
    (lambda: c_header(RLSReadout()), NotSolved, "export needs weights"),
    (lambda: c_header(AttentionReadout(5, 2, 7)), ConfigurationError, "AttentionReadout: export it as ONNX"),
    (lambda: c_header(Squared(4, 3)), ConfigurationError, "this is a Squared: export it as ONNX"),
    (lambda: c_header(HOOKED), ConfigurationError, "this is a LowRankReadout: export it as ONNX"),
    (lambda: c_header(ridge(4, 2), precision="int4"), ConfigurationError, "precision must be"),  # type: ignore[arg-type]
    (lambda: c_header(ridge(4, 2), state_range=(-1, 1)), ConfigurationError, "leave them out"),
    (lambda: coded(HUGE, state_range=(-1, 1)), ConfigurationError, "more than float32 holds"),
    (lambda: coded(ridge(4, 2), calibration=np.zeros((3, 5))), ShapeError, r"calibration must be \(\.\.\., 4\)"),
]
for name in ("", "1a", "a-b", "int", "class", "_a", "a\n", "é", "a*/", "a" * 41, "a;b"):
    REFUSED.append((lambda name=name: c_header(ridge(2, 1), name=name), ConfigurationError, "C identifier"))
RANGES: list[tuple[dict[str, Any], str]] = [
    ({}, "range of the states"),
    ({"state_range": (-1, 1)}, "input_range"),
    ({"state_range": (1, -1), "input_range": (0, 1)}, "cannot divide"),
    ({"state_range": (0, 0), "input_range": (0, 1)}, "cannot divide"),
    ({"state_range": (-1, np.inf), "input_range": (0, 1)}, "cannot divide"),
    ({"state_range": (-1, 1), "input_range": (0, np.nan)}, "range of the inputs"),
    ({"state_range": (0, 1e-44), "input_range": (0, 1)}, "scale them"),
    ({"state_range": (0, 1e300), "input_range": (0, 1)}, "scale them"),
    ({"state_range": (-1, 1), "calibration": np.zeros((3, 4))}, "give one"),
    ({"calibration": np.zeros((3, 4))}, "cannot divide"),
    ({"calibration": np.full((3, 4), np.nan)}, "cannot divide"),
]
for keys, message in RANGES:
    REFUSED.append((lambda keys=keys: coded(ridge(4, 2, inputs=1), **keys), ConfigurationError, message))


@pytest.mark.parametrize(("use", "error", "message"), REFUSED)
def test_refused(use: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_that_are_no_float32(value: float, precision: Any) -> None:
    more: dict[str, Any] = {"state_range": (-1, 1)} if precision == "int8" else {}
    for part in ("weights_", "bias_"):
        readout = ridge(3, 2)
        getattr(readout, part)[-1] = value
        with pytest.raises(ConfigurationError, match=rf"{part[:-1]} .*no finite float32"):
            c_header(readout, precision=precision, **more)
    factors = LowRankReadout(4, 4, 2).double()
    with torch.no_grad():
        factors.A.weight[1, 0] = value
    with pytest.raises(ConfigurationError, match="no finite float32"):
        c_header(factors, precision=precision, **more)


def test_sums_of_32_bits_cannot_overflow() -> None:
    assert MOST_FEATURES * 127 * 128 < 2**31 <= (MOST_FEATURES + 1) * 127 * 128
    widest = Int8Matrix.of(np.ones((1, MOST_FEATURES)))
    assert widest.sums(np.full(MOST_FEATURES, -128, dtype=np.int8)) == np.float32(-MOST_FEATURES * 127 * 128)
    with pytest.raises(ConfigurationError, match="32-bit sum"):
        Int8Matrix.of(np.ones((1, MOST_FEATURES + 1)))


# ---- the user's numbers


USER_PROGRAM = """
#include <stdio.h>
#include "readout.h"

int main(void)
{
    static float states[READOUT_NODES], drive[READOUT_CHANNELS];
    static double inputs[READOUT_CHANNELS];
    static FLOAT outputs[READOUT_OUTPUTS];
    unsigned int saturated = 0u, i;
    while (fread(states, sizeof(float), READOUT_NODES, stdin) == READOUT_NODES
           && fread(inputs, sizeof(double), READOUT_CHANNELS, stdin) == READOUT_CHANNELS) {
        readout_drive(inputs, drive);
        CALL;
        for (i = 0u; i < READOUT_CHANNELS; ++i) { printf("%.9g,", (double)drive[i]); }
        for (i = 0u; i < READOUT_OUTPUTS; ++i) { printf("%.17g,", (double)outputs[i]); }
        printf("%u,%s\\n", saturated, ANSWER);
    }
    return 0;
}
"""
CLASSES = ('say "ja"', "wie?\\n", "größer", "d")


@needs_cc
@needs_cxx
@pytest.mark.parametrize(
    ("precision", "kind", "classes"),
    [("fp32", "ridge with inputs", False), ("int8", "ridge with inputs", True), ("fp32", "low rank", True),
     ("int8", "ridge", False)],
)  # fmt: skip
def test_the_users_numbers(classes: bool, kind: str, precision: Any, tmp_path: Path) -> None:
    readout, features, nodes = trained(kind)
    count = matrices_of(readout).widths.outputs
    named = [ChannelFormat(name=f"in {i} */ ?", zero=101325.0 - i, gain=250.0 + i) for i in range(3)]
    found = [ChannelFormat(name=f"out {i}", zero=-40.0, gain=1 / (3 + i)) for i in range(count)]
    labels = CLASSES + tuple(f"class {i}" for i in range(4, count))
    series = SeriesFormat(
        inputs=tuple(named), outputs=() if classes else tuple(found), classes=labels if classes else ()
    )
    limits = ranges(nodes, features.shape[1]) if precision == "int8" else {}
    header = c_header(readout, precision=precision, series=series, **limits)
    drive = features[:, -3:]
    user = series.user_inputs(drive)
    given = "states, inputs, outputs" if nodes < features.shape[1] else "states, outputs"
    source = USER_PROGRAM.replace("FLOAT", "float" if classes else "double")
    source = source.replace("CALL", f"{'saturated = ' if precision == 'int8' else ''}readout_predict({given})")
    source = source.replace("ANSWER", "readout_class(outputs)" if classes else '""')
    program = compiled(tmp_path, header, source, SANITIZED)
    (tmp_path / "main.cc").write_text('#include "readout.h"\nint main() { return 0; }\n')
    compiles(tmp_path, CXX, "-std=c++11", "-Wall", "-Wextra", "-Werror", "-c", "main.cc")
    data = b"".join(a[:nodes].tobytes() + b.tobytes() for a, b in zip(features, user, strict=True))
    done = subprocess.run([program], input=data, capture_output=True, check=True)
    rows = [line.split(",", 4 + count) for line in done.stdout.decode().splitlines()]
    numbers = np.array([[float(word) for word in row[: 4 + count]] for row in rows])
    # What comes back from the user's numbers may be one rounding away.
    assert np.abs(numbers[:, :3] - drive).max() < 1e-6
    outputs = numbers[:, 3 : 3 + count]
    if precision == "int8":
        more = (features[:, nodes:],) if nodes < features.shape[1] else ()
        expected = int8_readout(readout, **limits).predict(features[:, :nodes], *more)[0]
    else:
        expected = answers(readout, features, nodes)
    bound = 1e-5 * max(1, np.abs(expected).max()) if precision == "fp32" else 0.05 * np.abs(expected).max()
    assert np.abs(series.model_targets(outputs) - expected).max() <= bound
    assert not numbers[:, -1].any()
    if classes:
        assert [row[-1] for row in rows] == [labels[best] for best in outputs.argmax(axis=1)]
