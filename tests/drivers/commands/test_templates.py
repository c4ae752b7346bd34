"""Lines with places for numbers, and the answers to them."""

from __future__ import annotations

import pytest

from reservoir_hw.core.errors import DeviceFault, ProtocolError
from reservoir_hw.drivers.commands import Floats, Pattern, Template

WIDTHS = {"u": 2, "n": None, "k": None}
VALUES = {"u": [-0.12345, 1.5], "n": 7, "k": 1}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("SOUR:VOLT {u[0]:.4f}", "SOUR:VOLT -0.1235"),
        ("DAC {u[1]:d} {u[0]:d}", "DAC 2 0"),
        ("{u[0]} {u[k]}", "-0.12345 1.5"),
        ("S {u[0]:+.3e} {n:04d}", "S -1.235e-01 0007"),
        ('{"set": {u[0]:.2f}, "n": [{n}]}', '{"set": -0.12, "n": [7]}'),
        ("{{led}} {n}", "{led} 7"),
        ("(@{k})", "(@1)"),
        ("*IDN?", "*IDN?"),
    ],
)
def test_what_is_written(text: str, line: str) -> None:
    template = Template(text, WIDTHS)
    assert template.filled(VALUES) == line
    assert template.bound({"k": 1}).filled({"u": VALUES["u"], "n": 7}) == line


def test_lists_are_joined() -> None:
    assert Template("LIST {u[1]:.1f}", WIDTHS).filled({"u": [[1], [0.1, 0.25]]}) == "LIST 0.1,0.2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{u[2]:.3f}", r"there is no u\[2\], they are u\[0\] to u\[1\]"),
        ("{u:.3f}", r"u needs an index: u\[0\]"),
        ("{n[0]}", "n has no index"),
        ("{v}", r"there is no v \(but u\[0\], n, k\); for braces as they are write \{\{v\}\}"),
        ("{u[0].real}", "is no place for a number"),
        ("{u.__class__}", "is no place for a number"),
        ("{u[0]!r}", "is no place for a number"),
        ("{u[0]:>10}", "'>10' is no format of a number"),
        ("{u[0]:{n}}", "is not closed"),
        ("{u[0]:.3f", "is not closed"),
        ("{u[v]}", "needs a number, or the name of a loop"),
        ("VOLT 1\nOUTP ON", "must be one line"),
    ],
)
def test_what_names_nothing(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Template(text, WIDTHS)


def test_an_index_of_a_loop_that_goes_too_far() -> None:
    with pytest.raises(ValueError, match=r"there is no u\[5\]"):
        Template("{u[k]}", WIDTHS).bound({"k": 5})


def test_numbers_by_their_places() -> None:
    reading = Floats(("state", "_", "status")).read("+1.5E+00, junk,+8;2 x 1", {}, "READ?")
    assert (reading.states, reading.named) == ([1.5, 2.0], {"status": [8.0, 1.0]})
    assert Floats().read(" 1\t-.5 ", {}, "READ?").states == [1.0, -0.5]


@pytest.mark.parametrize(
    ("names", "answer", "error", "said"),
    [
        ((), "1,two", ProtocolError, "READ[?] was answered by '1,two': 'two' is no number"),
        ((), "1,nan", ProtocolError, "'nan' is no number"),
        ((), "1_0", ProtocolError, "'1_0' is no number"),
        ((), "", ProtocolError, "0 numbers where 1 are read"),
        (("state", "status"), "1,2,3", ProtocolError, r"3 numbers where 2 are read \(state, status\)"),
        ((), "1,+9.910000E+37", DeviceFault, "9.91e[+]37 is no number but a word of instruments"),
        ((), "1,-9.9E+37", DeviceFault, "-9.9e[+]37 is no number"),
    ],
)
def test_what_is_no_answer(names: tuple[str, ...], answer: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Floats(names).read(answer, {}, "READ?")


def test_what_is_not_read_may_be_no_number() -> None:
    reading = Floats(("state", "status")).read("1,9.91e37", {}, "READ?")
    assert reading.named == {"status": [9.91e37]}


def test_a_pattern_knows_the_whole_line() -> None:
    pattern = Pattern(Template(r"A(?P<state>[^;]*);T=(?P<temperature>[\d.]{1,5}) #{n}", WIDTHS))
    reading = pattern.read("A1,2;T=22.5 #7\r", VALUES, "S")
    assert (reading.states, reading.named) == ([1.0, 2.0], {"temperature": [22.5]})
    for wrong in ("A1,2;T=22.5 #8", "A1,2;T=22.5 #77", "xA1,2;T=22.5 #7", ""):
        with pytest.raises(ProtocolError, match="which is not"):
            pattern.read(wrong, VALUES, "S")
    assert Pattern(Template("v{u[1]}", WIDTHS)).read("v1.5", VALUES, "S").states == []
    with pytest.raises(ProtocolError):
        Pattern(Template("v{u[1]}", WIDTHS)).read("v1x5", VALUES, "S")
