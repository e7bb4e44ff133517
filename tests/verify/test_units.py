import pytest

from markbook.verify.units import canonical_unit, split_unit


@pytest.mark.parametrize(
    ("text", "rest", "unit"),
    [
        (r"7.5 \text{ dollars}", "7.5", "dollar"),
        (r"120 \text{ cm}^2", "120", "cm^2"),
        (r"120 \text{square centimetres}", "120", "cm^2"),
        (r"3 \text{ ft}^{3}", "3", "ft^3"),
        (r"45^\circ", "45", "degree"),
        (r"45^{\circ}", "45", "degree"),
        (r"15^{\text{th}}", "15", "th"),
        ("15th", "15", "th"),
        (r"60\text{ mph}", "60", "mi/h"),
        (r"60\text{ miles per hour}", "60", "mi/h"),
        ("12 hours", "12", "h"),
        ("12 sq. ft", "12", "ft^2"),
        (r"\frac{270}{7}\text{ degrees}", r"\frac{270}{7}", "degree"),
    ],
)
def test_units_are_taken_off(text: str, rest: str, unit: str) -> None:
    assert split_unit(text)[:2] == (rest, unit)


def test_the_unit_is_the_last_of_several_texts_and_latex_marks_it() -> None:
    assert split_unit(r"\text{about } 5 \text{ cm}") == (r"\text{about } 5", "cm", True)
    assert split_unit(r"45^\circ") == ("45", "degree", True)
    assert split_unit("15th") == ("15", "th", True)


@pytest.mark.parametrize(
    "text",
    [
        "5 million",
        "5 or so",
        r"5 \text{ or more}",
        "5 thirds",
        "5 squared",
        "5m",
        r"\text{m}",
        "km",
        r"\text{east}",
        "",
    ],
)
def test_anything_else_stays(text: str) -> None:
    assert split_unit(text) == (text, None, False)


def test_an_unknown_word_spoils_a_unit() -> None:
    assert canonical_unit("cm apples") is None
    assert canonical_unit("squared") is None
    assert canonical_unit("cmx") is None
    assert canonical_unit("hourly") is None
    assert canonical_unit("") is None
