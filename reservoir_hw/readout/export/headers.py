"""A trained readout as a C99 header without dependencies, for microcontrollers.

    text = c_header(readout, name="readout")                                            # float32
    text = c_header(readout, name="readout", precision="int8", state_range=(-1, 1))

The header holds the weights as constants and functions that are re-entrant, take no memory from the heap and write to
nothing but their arguments. It compiles as C99 and as C++, freestanding as well. docs/microcontroller.md shows its use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.provenance import versions
from reservoir_hw.core.series_format import SeriesFormat
from reservoir_hw.core.validation import whole_number
from reservoir_hw.readout.edge.manifest import Precision
from reservoir_hw.readout.export._c_int8 import SMALLEST_PEAK, Coding, Int8Matrix, Int8Readout
from reservoir_hw.readout.export.unchanged import is_unchanged
from reservoir_hw.readout.linear.training_chunks import Widths

Range: TypeAlias = tuple[float, float]

_WIDTH = 116
_LONGEST_NAME = 40
_LONGEST_TEXT = 300
# Bytes of one array, in the 16-bit sizes of avr-gcc.
_AVR_LIMIT = 32767
_KEYWORDS = """auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class co_await co_return co_yield
    compl concept const_cast consteval constexpr constinit decltype delete dynamic_cast explicit export false friend
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast
    requires static_assert static_cast template this thread_local throw true try typeid typename using virtual wchar_t
    xor xor_eq"""


class Matrices(NamedTuple):
    """y = first · x + bias, or y = second (first · x) + bias; x are states, then inputs, in raw units.

    `first` is (outputs, features), or (rank, features) where there is a `second` (outputs, rank); `bias` is (outputs,).
    All are in the dtype that the readout keeps them in: float64, or that of the torch parameters.
    """

    first: npt.NDArray
    second: npt.NDArray | None
    bias: npt.NDArray
    widths: Widths


def matrices_of(readout: Any) -> Matrices:
    """What a readout states by `linear_form()` or, a torch module, by `matrices()`; all finite in float32.

    Raises `NotSolved` for a readout without weights, `ConfigurationError` for one that states neither, or that
    computes something else.
    """
    if hasattr(readout, "linear_form"):
        form = readout.linear_form()
        found = Matrices(form.weights, None, form.bias, Widths(form.nodes, form.inputs, len(form.bias)))
    elif hasattr(readout, "matrices") and is_unchanged(readout, "matrices"):
        first, *others = readout.matrices()
        first = _array(first)
        second, bias = (None if one is None else _array(one) for one in others)
        last = first if second is None else second
        bias = np.zeros(len(last), last.dtype) if bias is None else bias
        found = Matrices(first, second, bias, Widths(first.shape[1], 0, len(bias)))
    else:
        raise ConfigurationError(
            f"a C header needs a linear or low-rank readout (one that states linear_form or matrices), and this is a "
            f"{type(readout).__name__}: export it as ONNX instead"
        )
    for what, array in (("weights", found.first), ("weights", found.second), ("bias", found.bias)):
        with np.errstate(over="ignore"):
            infinite = [] if array is None else np.argwhere(~np.isfinite(array.astype(np.float32))).tolist()
        if array is not None and infinite:
            where = tuple(infinite[0])
            raise ConfigurationError(
                f"the {what} of this readout at {where} are {array[where]}, no finite float32: train it again on "
                "scaled, finite states"
            )
    return found


def c_header(
    readout: Any,
    *,
    name: str = "readout",
    precision: Precision = "fp32",
    state_range: Range | None = None,
    input_range: Range | None = None,
    calibration: npt.ArrayLike | None = None,
    provenance: Mapping[str, str] | None = None,
    series: SeriesFormat | None = None,
    washout: int = 0,
) -> str:
    """The text of a header for a ridge, RLS, LMS, linear or low-rank readout.

    With `name="readout"` it declares `READOUT_NODES`, `READOUT_INPUTS`, `READOUT_FEATURES`, `READOUT_OUTPUTS`,
    `READOUT_WARMUP` and

        void readout_predict(const float *states, [const float *inputs,] float *outputs)                   fp32
        unsigned int readout_predict(const float *states, [const float *inputs,] float *outputs)           int8
        void readout_predict_q(const int8_t *states_q, [const int8_t *inputs_q,] float *outputs)           int8
        int readout_argmax(const float *outputs)                                            two outputs and more

    Where the model works with scaled numbers (`series`), `predict` takes inputs and gives outputs as the user knows
    them, in double, and two functions come to it (the second for classes, whose scores stay float):

        void readout_drive(const double *inputs, float *drive)                  what the reservoir is to be driven with
        const char *readout_class(const float *outputs)

    The int8 `predict` returns how many features lay outside their range (or were no number) and were saturated.

    Args:
        readout: A trained readout.
        name: Prefix of all names, a C identifier of at most 40 letters.
        precision: "fp32": weights are rounded to float32 and written exactly. "int8": weights and features in 8 bits.
        state_range, input_range: For int8: what states (and inputs, if the readout takes them) lie within, as the
            device declares it (`ReservoirSpec.state_range`, `input_range`).
        calibration: For int8, instead: recorded features (..., features), whose smallest and largest value give
            the ranges.
        provenance: Texts by name for the comment at the top, such as fingerprints of the device.
        series: What the user's numbers are.
        washout: So many answers from rest are not to be used.

    Raises:
        NotSolved: The readout has no weights yet.
        ConfigurationError: No linear or low-rank readout; weights that are not finite in float32; a name that C does
            not take; int8 without ranges; more features than a 32-bit sum can hold for certain.
        ShapeError: The calibration has another number of features.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or len(name) > _LONGEST_NAME or name in _KEYWORDS.split():
        raise ConfigurationError(
            f"name must be a C identifier of at most {_LONGEST_NAME} letters, digits and _, start with a letter and be "
            f"no keyword of C or C++, not {name!r}"
        )
    if precision not in get_args(Precision):
        raise ConfigurationError(f'precision must be "fp32" or "int8", not {precision!r}')
    first, second, bias, widths = matrices = matrices_of(readout)
    facts = dict(provenance or {})
    repetitions = getattr(readout, "repetitions_", 1)
    if repetitions > 1:
        facts["states"] = f"the mean of {repetitions} drives with the same inputs, as in training"
    comment = _comment(name, precision, (first, second, bias), facts) + _too_large_for_avr(precision, matrices)
    sizes = {
        "NODES": widths.nodes,
        "INPUTS": widths.inputs,
        "FEATURES": widths.features,
        "OUTPUTS": widths.outputs,
        "WARMUP": whole_number("washout", washout, least=0),
    }
    if second is not None:
        sizes["RANK"] = second.shape[1]
    ranges: dict[str, Any] = {"state_range": state_range, "input_range": input_range, "calibration": calibration}
    if precision == "int8":
        code = _int8_code(int8_readout(readout, **ranges))
    elif any(given is not None for given in ranges.values()):
        raise ConfigurationError("ranges and calibration are for precision='int8'; float32 needs none: leave them out")
    else:
        code = _float_code(matrices)
    if series is None:
        code = code.replace("@predict", "predict")
    else:
        sizes["CHANNELS"] = len(series.inputs)
        code = code.replace("@predict", "model") + _user_code(series, saturates="saturated" in code)
    argmax = _ARGMAX if widths.outputs > 1 and (series is None or series.classes) else ""
    if series is not None and series.classes:
        decide = "the scores of its last step"
        if series.decide == "mean":
            decide = f"the means of its scores from step {series.decide_from} on (from 0, if it is shorter)"
        argmax += _CLASS.replace("@decide", decide)
    macro = name.upper()
    return "\n".join(
        [
            *comment,
            f"#ifndef {macro}_H",
            f"#define {macro}_H",
            "",
            *(f"#define {macro}_{size} {count}u" for size, count in sizes.items()),
            "",
            _filled(name, widths, code).strip("\n"),
            *_filled(name, widths, argmax).splitlines(),
            "",
            f"#endif /* {macro}_H */",
            "",
        ]
    )


def int8_readout(
    readout: Any,
    *,
    state_range: Range | None = None,
    input_range: Range | None = None,
    calibration: npt.ArrayLike | None = None,
) -> Int8Readout:
    """What the int8 header of the same arguments computes, in numpy: to know what it costs before it is flashed.

    `predict(states[, inputs])` of the result gives outputs (..., outputs) and the saturated features (...).
    Raises as `c_header` does.
    """
    first, second, bias, widths = matrices_of(readout)
    if calibration is not None:
        if state_range is not None or input_range is not None:
            raise ConfigurationError(
                "int8 takes its ranges from state_range and input_range or from calibration: give one"
            )
        recorded = np.asarray(calibration)
        if recorded.ndim == 0 or recorded.shape[-1] != widths.features or recorded.size == 0:
            raise ShapeError(f"calibration must be (..., {widths.features}) features, got {recorded.shape}")
        states, inputs = recorded[..., : widths.nodes], recorded[..., widths.nodes :]
        state_range = (float(states.min()), float(states.max()))
        input_range = (float(inputs.min()), float(inputs.max())) if widths.inputs else None
    if state_range is None:
        raise ConfigurationError("int8 needs the range of the states: give state_range=(low, high), or calibration")
    if widths.inputs and input_range is None:
        raise ConfigurationError("this readout takes the inputs too: give input_range=(low, high), or calibration")
    return Int8Readout.of(
        first,
        second,
        bias,
        states=Coding.of_range("states", *state_range),
        inputs=Coding.of_range("inputs", *input_range) if widths.inputs and input_range else None,
        nodes=widths.nodes,
    )


def as_coded(values: npt.ArrayLike, value_range: Range) -> npt.NDArray[np.float64]:
    """States or inputs as the int8 header sees them, rounded to 8 bits and saturated: any shape -> the same, float64.

    A readout that is to run in int8 is trained on these: it then learns how little the last bit is worth. Trained on
    unrounded states with a small penalty, it relies on differences that 8 bits do not hold.
    """
    coding = Coding.of_range("values", *value_range)
    values = np.asarray(values)
    return coding.decoded(coding.coded(values.reshape(-1))[0]).reshape(values.shape)


# ---- what a readout holds


def _array(parameter: Any) -> npt.NDArray:
    tensor = parameter.detach().cpu()
    # numpy has no bfloat16.
    return tensor.numpy().copy() if tensor.element_size() >= 4 else tensor.float().numpy()


# ---- text


def _text(value: str) -> str:
    """Any text, made safe for a C comment: one line of ASCII that neither ends nor continues the comment."""
    plain = re.sub(r"[^ -~]+", " ", value).replace("\\", "_").replace("?", "_")
    return plain.replace("*/", "* /").replace("/*", "/ *")[:_LONGEST_TEXT]


def _comment(
    name: str, precision: Precision, arrays: Iterable[npt.NDArray | None], provenance: Mapping[str, str]
) -> list[str]:
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(f"{array.shape}".encode() + array.astype("<f4").tobytes())
    version = versions().get("reservoir-hw", "")
    lines = [
        f"{name}: a trained readout, {precision}, generated by reservoir-hw {version}. Do not edit.",
        f"weights sha256: {digest.hexdigest()}",
        *(f"{_text(str(key))}: {_text(str(value))}" for key, value in provenance.items()),
    ]
    return ["/*", *(f" * {line}".rstrip() for line in lines), " */"]


def _too_large_for_avr(precision: Precision, matrices: Matrices) -> list[str]:
    """What stops avr-gcc, which would say no more than that an array is too large."""
    weights = (array.size for array in matrices[:2] if array is not None)
    largest = max(4 * len(matrices.bias), (1 if precision == "int8" else 4) * max(weights))
    if largest <= _AVR_LIMIT:
        return []
    advice = "a low-rank readout or fewer nodes" if precision == "int8" else "int8, a low-rank readout or fewer nodes"
    said = f'"a table of {largest} bytes, and an array on AVR has at most {_AVR_LIMIT}: take {advice}"'
    return ["#ifdef __AVR__", f"#error {said}", "#endif"]


def _float_code(matrices: Matrices) -> str:
    first, second, bias, _ = matrices
    if second is None:
        tables = [_floats("@n_weights[@N_OUTPUTS][@N_FEATURES]", first)]
    else:
        tables = [_floats("@n_B[@N_RANK][@N_FEATURES]", first), _floats("@n_A[@N_OUTPUTS][@N_RANK]", second)]
    body = _FLOAT_LINEAR if second is None else _FLOAT_LOW_RANK
    return "\n".join([*tables, _floats("@n_bias[@N_OUTPUTS]", bias), _FLOAT_DOT, body])


def _user_code(series: SeriesFormat, *, saturates: bool) -> str:
    """What is around the model: the user's numbers, scaled in double."""
    inputs, outputs = series.input_scale, series.output_scale
    tables = [
        f"/* inputs: {_text(', '.join(series.input_names))} */",
        _doubles("@n_input_zero[@N_CHANNELS]", inputs.zero),
        _doubles("@n_input_gain[@N_CHANNELS]", inputs.gain),
        f"/* outputs: {_text(', '.join(series.output_names))} */",
    ]
    if series.classes:
        tables.append(_table("static const char *const @n_classes[@N_OUTPUTS]", map(_c_string, series.classes)))
    else:
        tables += [
            _doubles("@n_output_zero[@N_OUTPUTS]", outputs.zero),
            _doubles("@n_output_gain[@N_OUTPUTS]", outputs.gain),
        ]
    marks = {
        "@float": "float" if series.classes else "double",
        "@value": "scores[o]" if series.classes else "(double)scores[o] / @n_output_gain[o] + @n_output_zero[o]",
        "@type": "unsigned int" if saturates else "void",
        "    @kept\n": "    unsigned int saturated;\n" if saturates else "",
        "@keep": "saturated = " if saturates else "",
        "    @return\n": "    return saturated;\n" if saturates else "",
    }
    body = _USER_DRIVE + _USER_PREDICT
    for mark, text in marks.items():
        body = body.replace(mark, text)
    return "\n" + "\n".join(tables) + body


def _c_string(text: str) -> str:
    """A literal of UTF-8 bytes; octal, so that no letter ends it or goes on with an escape."""
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(plain)}"'


def _int8_code(readout: Int8Readout) -> str:
    if readout.second is None:
        tables = _int8_tables(readout.first, "weights", "@N_OUTPUTS", "@N_FEATURES")
    else:
        tables = _int8_tables(readout.first, "B", "@N_RANK", "@N_FEATURES")
        tables += _int8_tables(readout.second, "A", "@N_OUTPUTS", "@N_RANK")
    parts = [
        "#include <stdint.h>\n",
        _coding("STATE", readout.states),
        *([] if readout.inputs is None else [_coding("INPUT", readout.inputs)]),
        *tables,
        _floats("@n_bias[@N_OUTPUTS]", readout.bias),
        _INT8_SHARED,
        _INT8_LINEAR if readout.second is None else _INT8_LOW_RANK,
        _INT8_PREDICT,
    ]
    return "\n".join(parts)


def _coding(what: str, coding: Coding) -> str:
    return (
        f"/* q = round((x - {what}_CENTRE) * {what}_PER_UNIT), -127 to 127 */\n"
        f"#define @N_{what}_CENTRE {_number(coding.centre)}\n"
        f"#define @N_{what}_PER_UNIT {_number(coding.per_unit)}\n"
    )


def _int8_tables(matrix: Int8Matrix, table: str, rows: str, columns: str) -> list[str]:
    counts = _table(
        f"static const int8_t @n_{table}[{rows}][{columns}]", [map(str, row) for row in matrix.weights.tolist()]
    )
    return [counts, _floats(f"@n_{table}_scale[{rows}]", matrix.row_scale)]


def _number(value: np.float32) -> str:
    # The shortest decimal that rounds to this float32.
    text = f"{value!s}f"
    return f"({text})" if text.startswith("-") else text


def _floats(declared: str, values: npt.NDArray) -> str:
    rows = values.astype(np.float32).reshape(-1, values.shape[-1])
    texts = [[f"{value!s}f" for value in row] for row in rows]
    return _table(f"static const float {declared}", texts if values.ndim == 2 else texts[0])


def _doubles(declared: str, values: npt.NDArray) -> str:
    return _table(f"static const double {declared}", [repr(float(value)) for value in values])


def _table(declaration: str, values: Iterable[Any]) -> str:
    lines = [f"{declaration} = {{"]
    row_of_numbers: list[str] = []
    for value in values:
        if isinstance(value, str):
            row_of_numbers.append(value)
        else:
            lines += ["    {", *_wrapped(value, 8), "    },"]
    return "\n".join([*lines, *_wrapped(row_of_numbers, 4), "};", ""])


def _wrapped(numbers: Iterable[str], indent: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for number in numbers:
        if line and len(line) + len(number) + 2 > _WIDTH - indent:
            lines.append(" " * indent + line)
            line = ""
        line += f"{' ' if line else ''}{number},"
    return [*lines, " " * indent + line] if line else lines


def _filled(name: str, widths: Widths, code: str) -> str:
    """Put in the name, and keep what is for readouts with inputs, or for those without."""
    code = re.sub(r"@\{(.*?)@\}", r"\1" if widths.inputs else "", code, flags=re.DOTALL)
    keep, drop = ("@+", "@-") if widths.inputs else ("@-", "@+")
    lines = [line.removeprefix(keep) for line in code.split("\n") if not line.startswith(drop)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).replace("@N", name.upper()).replace("@n", name)


# In the texts below @n is the name, @N the name in capitals; lines with @+, and what is between @{ and @}, are for
# readouts that take the inputs too, lines with @- for the others. @predict is predict, or model where predict is around
# it, in the user's numbers.

_ARGMAX = """
/* The number of the largest of the @N_OUTPUTS outputs, the first of equals. */
static inline int @n_argmax(const float *outputs)
{
    unsigned int best = 0u;
    unsigned int o;
    for (o = 1u; o < @N_OUTPUTS; ++o) {
        if (outputs[o] > outputs[best]) {
            best = o;
        }
    }
    return (int)best;
}
"""

_CLASS = """
/* The class with the largest score. A series is decided by @decide. */
static inline const char *@n_class(const float *outputs)
{
    return @n_classes[@n_argmax(outputs)];
}
"""

_USER_DRIVE = """
/* inputs (@N_CHANNELS), in the user's numbers -> what the reservoir is to be driven with (@N_CHANNELS). */
static inline void @n_drive(const double *inputs, float *drive)
{
    unsigned int i;
    for (i = 0u; i < @N_CHANNELS; ++i) {
        drive[i] = (float)((inputs[i] - @n_input_zero[i]) * @n_input_gain[i]);
    }
}
"""

# @float is that of the outputs: double where they are scaled, float for scores.
_USER_PREDICT = """
@-/* states (@N_NODES) -> outputs (@N_OUTPUTS), in the user's numbers. Returns what @n_model returns. */
@+/*
@+ * states (@N_NODES), inputs (@N_INPUTS) -> outputs (@N_OUTPUTS), both in the user's numbers. Returns what @n_model
@+ * returns.
@+ */
static inline @type @n_predict(const float *states, @{const double *inputs, @}@float *outputs)
{
    float scores[@N_OUTPUTS];
@+    float drive[@N_INPUTS];
    @kept
    unsigned int o;
@+    @n_drive(inputs, drive);
    @keep@n_model(states, @{drive, @}scores);
    for (o = 0u; o < @N_OUTPUTS; ++o) {
        outputs[o] = @value;
    }
    @return
}
"""

_FLOAT_DOT = """
/* Four sums side by side: smaller rounding errors, and no addition waits for the one before. */
static inline float @n_dot(const float *weights, const float *values, unsigned int count)
{
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    const unsigned int fours = count - count % 4u;
    unsigned int i;
    for (i = 0u; i < fours; i += 4u) {
        a += weights[i] * values[i];
        b += weights[i + 1u] * values[i + 1u];
        c += weights[i + 2u] * values[i + 2u];
        d += weights[i + 3u] * values[i + 3u];
    }
    /* Begins at a number that is known when this is inlined: a compiler sees where nothing is left to add. */
    for (i = fours; i < count; ++i) {
        a += weights[i] * values[i];
    }
    return (a + b) + (c + d);
}
"""

_FLOAT_LINEAR = """
/* states (@N_NODES)@{, inputs (@N_INPUTS)@} -> outputs (@N_OUTPUTS), which must not overlap them. */
static inline void @n_@predict(const float *states, @{const float *inputs, @}float *outputs)
{
    unsigned int o;
    for (o = 0u; o < @N_OUTPUTS; ++o) {
        outputs[o] = @n_bias[o] + @n_dot(@n_weights[o], states, @N_NODES)@{
                     + @n_dot(@n_weights[o] + @N_NODES, inputs, @N_INPUTS)@};
    }
}
"""

_FLOAT_LOW_RANK = """
/* states (@N_NODES) -> outputs (@N_OUTPUTS), which must not overlap them: A (B states) + bias. */
static inline void @n_@predict(const float *states, float *outputs)
{
    float middle[@N_RANK];
    unsigned int o;
    for (o = 0u; o < @N_RANK; ++o) {
        middle[o] = @n_dot(@n_B[o], states, @N_NODES);
    }
    for (o = 0u; o < @N_OUTPUTS; ++o) {
        outputs[o] = @n_bias[o] + @n_dot(@n_A[o], middle, @N_RANK);
    }
}
"""

_INT8_SHARED = """
/* Never overflows: there are so few features that even the largest products add up to less than 2^31. */
static inline int32_t @n_dot(const int8_t *weights, const int8_t *values, unsigned int count)
{
    int32_t sum = 0;
    unsigned int i;
    for (i = 0u; i < count; ++i) {
        sum += (int32_t)weights[i] * (int32_t)values[i];
    }
    return sum;
}

/* Codes values; those out of range become -127 or 127, NaN becomes 0. Returns how many of these there were. */
static inline unsigned int @n_quantise(const float *values, unsigned int count, float centre, float per_unit,
    int8_t *coded)
{
    unsigned int saturated = 0u;
    unsigned int i;
    for (i = 0u; i < count; ++i) {
        const float q = (values[i] - centre) * per_unit;
        if (q > -127.5f && q < 127.5f) {
            coded[i] = (int8_t)(int)(q < 0.0f ? q - 0.5f : q + 0.5f);
        } else {
            coded[i] = (int8_t)(q >= 127.5f ? 127 : (q <= -127.5f ? -127 : 0));
            ++saturated;
        }
    }
    return saturated;
}
"""

_INT8_LINEAR = """
/* states_q (@N_NODES)@{, inputs_q (@N_INPUTS)@} -> outputs (@N_OUTPUTS). */
static inline void @n_@predict_q(const int8_t *states_q, @{const int8_t *inputs_q, @}float *outputs)
{
    unsigned int o;
    for (o = 0u; o < @N_OUTPUTS; ++o) {
        const int32_t sum = @n_dot(@n_weights[o], states_q, @N_NODES)@{
                            + @n_dot(@n_weights[o] + @N_NODES, inputs_q, @N_INPUTS)@};
        outputs[o] = (float)sum * @n_weights_scale[o] + @n_bias[o];
    }
}
"""

_INT8_LOW_RANK = f"""
/*
 * states_q (@N_NODES) -> outputs (@N_OUTPUTS): A (B states) + bias. What B gives is coded by its largest entry, anew
 * each time: no range need be known for it, nothing saturates, and the products with A stay in integers.
 */
static inline void @n_@predict_q(const int8_t *states_q, float *outputs)
{{
    float middle[@N_RANK];
    int8_t middle_q[@N_RANK];
    float peak = 0.0f;
    float step = 0.0f;
    unsigned int o;
    for (o = 0u; o < @N_RANK; ++o) {{
        const int32_t sum = @n_dot(@n_B[o], states_q, @N_NODES);
        const float value = (float)sum * @n_B_scale[o];
        const float size = value < 0.0f ? -value : value;
        middle[o] = value;
        peak = size > peak ? size : peak;
    }}
    if (peak > {SMALLEST_PEAK!s}f) {{
        (void)@n_quantise(middle, @N_RANK, 0.0f, 127.0f / peak, middle_q);
        step = peak / 127.0f;
    }} else {{
        for (o = 0u; o < @N_RANK; ++o) {{
            middle_q[o] = 0;
        }}
    }}
    for (o = 0u; o < @N_OUTPUTS; ++o) {{
        const int32_t sum = @n_dot(@n_A[o], middle_q, @N_RANK);
        outputs[o] = (float)sum * (@n_A_scale[o] * step) + @n_bias[o];
    }}
}}
"""

_INT8_PREDICT = """
@-/* states (@N_NODES) -> outputs (@N_OUTPUTS). Returns the number of states out of range, which were saturated. */
@+/*
@+ * states (@N_NODES), inputs (@N_INPUTS) -> outputs (@N_OUTPUTS).
@+ * Returns the number of states and inputs out of range, which were saturated.
@+ */
static inline unsigned int @n_@predict(const float *states, @{const float *inputs, @}float *outputs)
{
    int8_t coded[@N_FEATURES];
    const unsigned int saturated =
        @n_quantise(states, @N_NODES, @N_STATE_CENTRE, @N_STATE_PER_UNIT, coded)@{
        + @n_quantise(inputs, @N_INPUTS, @N_INPUT_CENTRE, @N_INPUT_PER_UNIT, coded + @N_NODES)@};
    @n_@predict_q(coded, @{coded + @N_NODES, @}outputs);
    return saturated;
}
"""
