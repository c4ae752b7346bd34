"""Numbers in words."""

import pytest

from reservoir_hw.core.words import counted, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.234, "1.23 s"),
        (60, "1 min"),
        (90, "1.5 min"),
        (3600, "1 h"),
        (86400, "1 d"),
        (4e5, "4.63 d"),
    ],
)
def test_a_duration_has_three_digits_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_count_goes_with_its_noun() -> None:
    assert [counted(number, "input") for number in (0, 1, 2, 1000)] == [
        "0 inputs",
        "1 input",
        "2 inputs",
        "1,000 inputs",
    ]
