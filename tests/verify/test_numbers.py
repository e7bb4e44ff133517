from fractions import Fraction
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.verify.numbers import MAX_ANSWER_CHARS, answer_fault, equal_answers, parse_number


def equal(prediction: str, gold: str) -> bool:
    return equal_answers(prediction, gold)[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", Fraction(7)),
        ("-007", Fraction(-7)),
        ("+7", Fraction(7)),
        ("- 7", Fraction(-7)),
        ("1,234", Fraction(1234)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("-3 / 4", Fraction(-3, 4)),
        ("1.5/2", Fraction(3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"-\frac{-3}{4}", Fraction(3, 4)),
        (r"\frac{1,000}{4}", Fraction(250)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"-2 \frac{1}{2}", Fraction(-5, 2)),
        ("1 1/4", Fraction(5, 4)),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r".1\overline{6}", Fraction(1, 6)),
        (r".\overline{3}", Fraction(1, 3)),
        ("1,234 1/2", Fraction(2469, 2)),
        (r"2.\overline{142857}", Fraction(15, 7)),
        ("6.02e23", Fraction(602 * 10**21)),
        ("1e-3", Fraction(1, 1000)),
        (r"3\times 10^{8}", Fraction(3 * 10**8)),
        (r"1.5 \cdot 10^-2", Fraction(3, 200)),
        ("10^3", Fraction(1000)),
    ],
)
def test_numbers_are_read_exactly(text: str, value: Fraction) -> None:
    number = parse_number(text)
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", ".", "x", "5x", "1 2", "1,2", "12,34", "0,123", "1,2345", ",123", "1,234,5"),
        *("1/0", r"\frac{1}{0}", "--5", "1/2/3", "5 6/7 8", "1e", "e5", "1e1000", "10^{1000}"),
        *(
            "10^{10^{10}}",
            r"\frac{1}{x}",
            r"2\frac{5}{2}",
            r"2\frac{0}{2}",
            r"2\frac{2}{2}",
            r"0.\overline{3}5",
            "10^3 x",
            "1 5/4",
            "5!",
            "5 or 6",
        ),
        *("\u0663", "\u00b2", "1_000", "0x10", "nan", "inf", "1.2.3", "3 .5", "(5)", "5-6", "1..2"),
    ],
)
def test_the_rest_is_no_number(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "step", "decimal_digits"),
    [
        ("7", Fraction(1), 0),
        ("7/2", Fraction(0), 0),
        (r"1\frac{1}{2}", Fraction(0), 0),
        ("007.50", Fraction(1, 100), 3),
        ("0.05", Fraction(1, 100), 1),
        ("6.02e23", Fraction(10**21), 3),
    ],
)
def test_how_exactly_a_number_was_written(text: str, step: Fraction, decimal_digits: int) -> None:
    number = parse_number(text)
    assert number is not None
    assert (number.step, number.decimal_digits) == (step, decimal_digits)


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("72", "72"),
        ("016", "16"),
        ("15.", "15"),
        ("$15$", "15"),
        (r"\(15\)", "15"),
        (r"\[15\]", "15"),
        (r"\text{13}", "13"),
        ("4{,}050", "4050"),
        (r"4,\!050", "4050"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        (r"1\,234", "1234"),
        ("1\u2009234\u202f567", "1234567"),
        ("0.5", r"\frac{1}{2}"),
        (r"\dfrac12", "0.5"),
        (r"\frac 34", ".75"),
        (r"-\frac{3}{7}", r"\frac{-3}{7}"),
        (r"-\frac{3}{7}", r"\frac{3}{-7}"),
        ("\u22125", "-5"),
        ("5.0", "5"),
        (r"\$18.90", "18.9"),
        ("$18", "18"),
        (r"-\$5", "-5"),
        (r"\$32,\!348", "32348"),
        (r"5 \text{ dollars}", r"\$5"),
        ("7.5", r"7.5 \text{ dollars}"),
        ("120", r"120 \mbox{ cm}^2"),
        (r"5 \text{ cm}", r"5 \mathrm{centimeters}"),
        ("12 hours", "12"),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"),
        (r"15^{\text{th}}", "15"),
        (r"45^{\circ}", r"45^\circ"),
        ("45\u00b0", "45"),
        ("x=7", "7"),
        ("7", "x = 7"),
        ("x=7", "x=7.0"),
        (r"\theta = 7", "7"),
        ("x_1 = 7", "7"),
        ("2x+1", "f(x)=2x+1"),
        ("[1,4)", r"x \in [1,4)"),
        (r"\text{The answer is } 15", "15"),
        (r"\boxed{7}", "7"),
        ("0.25", r"25\%"),
        (r"25\%", "25"),
        ("25", "25%"),
        ("25 percent", r"25\%"),
        (r"25\%", "0.25"),
        (r"2\%", "2"),
        (r"-25\%", "-25"),
        ("25 percent", "0.25"),
        (r"x \text{ percent}", "x"),
        (r"\sqrt{2} \text{ cm}", r"\sqrt{2}"),
        ("$5$", r"5 \text{ cents}"),
        (r"$5 \text{ cm}", r"5 \text{ cm}"),
        ("x = 2/4", "x = 0.5"),
        (r"\text{yes}", "Yes"),
        ("(b)", "B"),
        ("p-q", "p - q"),
        (r"1\pm\sqrt{19}", r"1 \pm \sqrt{19}"),
    ],
)
def test_equal(prediction: str, gold: str) -> None:
    assert equal(prediction, gold)


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("5 or 6", "5"),
        ("5, 6", "5"),
        ("5, 6", "6"),
        ("5 6", "56"),
        ("1,2", "12"),
        ("3,14", "3.14"),
        (r"3 \text{ or } 5", "5"),
        (r"x=5 \text{ or } x=6", "5"),
        ("x=5, 6", "5"),
        (r"\text{either } \boxed{5} \text{ or } \boxed{6}", "6"),
        ("[4,6]", "5"),
        ("0.4 < x < 0.6", "0.5"),
        (r"\neq 5", "5"),
        (r"\not= 5", "5"),
        ("x != 5", "5"),
        (r"\text{not } 5", "5"),
        ("5!", "5"),
        ("5^2", "52"),
        ("5\u00b2", "52"),
        ("5 million", "5"),
        (r"5 \text{ thousand}", "5"),
        (r"5 \text{ or more}", "5"),
        ("5x", "5"),
        ("5m", "5"),
        ("no hours", "no"),
        ("x th", "x"),
        (r"5 \text{ m}", r"5 \text{ cm}"),
        (r"5 \text{ cents}", r"\$5"),
        (r"5 \text{ cents}", r"$\$5$"),
        (r"5 \text{ cents}", "$5"),
        (r"25\%", "30"),
        (r"\frac{\pi}{3}", r"60^\circ"),
        ("2x+1=7", "x=3"),
        ("2x+1=7", "7"),
        ("11=12", "12"),
        ("n=3k", "3"),
        ("3", "n=3k"),
        ("y=5", "x=5"),
        ("x=2,y=1", "x=1,y=2"),
        ("1,y=2", "x=1,y=2"),
        ("12 hours", "12 days"),
        (r"\frac{1}{0}", "0"),
        (r"17 \cdot 23", "391"),
        (r"\sum_{k=1}^{100} k", "5050"),
        ("50", "0.5"),
        (r"0.5\%", "0.5"),
        (r"1\%", "1"),
        ("5000", "50"),
        ("100001", "100000"),
        ("0.0000002", "0.0000001"),
        ("-5", "5"),
        (r"\infty", r"-\infty"),
        ("101_3", "101_2"),
        ("(2,1)", "(1,2)"),
        ("cat", "act"),
        ("A, B", "B"),
        ("x", "X+0"),
        ("2a", "2A"),
        ("10^{10^{10}}", "1"),
        ("{.5}", "5"),
    ],
)
def test_not_equal(prediction: str, gold: str) -> None:
    assert not equal(prediction, gold)


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("2/3", "0.6667", True),
        ("0.66667", "0.6667", True),
        ("0.6666", "0.6667", False),
        ("0.66675", "0.6667", True),
        ("0.66678", "0.6667", False),
        ("0.01234", "0.0123", False),  # zeros in front are not significant
        ("0.667", "0.6667", False),  # less was given than asked for
        ("2/3", "0.67", False),  # two digits could be exact
        ("12.46", "12.5", False),
        ("3.1416", "3.14", False),
        ("0.333", r"\frac{1}{3}", False),  # the gold is exact
        ("3", "3.0001", False),
        ("1000.04", "1000.0", True),
        ("12345", "12345.0", True),
        ("1234.5", "1234", False),
        ("6.02214e23", "6.022e23", True),
        ("6.03e23", "6.022e23", False),
    ],
)
def test_only_a_long_decimal_gold_counts_as_rounded(
    prediction: str, gold: str, expected: bool
) -> None:
    assert equal(prediction, gold) is expected


def test_the_reason_is_in_words() -> None:
    assert equal_answers("6", "5") == (False, "as numbers, 6 is not 5")
    assert equal_answers("b", "a") == (False, "b is not a")
    assert equal_answers("9" * 2000, "5") == (
        False,
        "the given answer has 2,000 characters, more than the 1,000 that are read",
    )
    assert len(equal_answers("9" * 900, "5")[1]) < 200
    assert equal_answers("a", "a") == (True, "a is written like a")
    assert equal_answers("a" * 60, "b")[1] == "a" * 60 + " is not b"
    assert equal_answers("a" * 61, "b")[1] == "a" * 57 + "... is not b"
    assert answer_fault("9" * 1000) is None


@pytest.mark.parametrize("answer", ["", " ", "$$", r"\text{}", ".", r"\,", "\u200b", "{}"])
def test_an_empty_answer_equals_nothing(answer: str) -> None:
    assert answer_fault(answer) == "is empty"
    assert not equal(answer, answer)


@given(st.integers())
def test_every_way_to_write_an_integer(value: int) -> None:
    for form in (
        f"{value}",
        f"{value:,}",
        f"{value}.0",
        f"${value}$",
        rf"\frac{{{2 * value}}}{{2}}",
    ):
        assert equal(form, str(value))
    assert not equal(str(value + 1), str(value))
    assert not equal(f"{value} or {value + 1}", str(value))
    assert not equal(f"{value}, {value + 1}", str(value))


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_equal_as_rationals_are(one: Fraction, other: Fraction) -> None:
    written = rf"\frac{{{3 * one.numerator}}}{{{3 * one.denominator}}}"
    assert equal(written, str(one))
    assert equal(written, f"{other.numerator}/{other.denominator}") == (one == other)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3))
def test_decimals_are_exact(value: object) -> None:
    exact = Fraction(str(value))
    assert equal(str(value), f"{exact.numerator}/{exact.denominator}")


@given(st.text(max_size=50), st.text(max_size=50))
def test_any_text_is_compared(prediction: str, gold: str) -> None:
    assert equal(gold, gold) == (answer_fault(gold) is None)
    assert equal_answers(prediction, gold)[1]


@given(st.text(alphabet="\\{}^_$%/.,-+= 0123456789efracdtixo", max_size=40))
def test_text_that_looks_like_mathematics_is_compared(text: str) -> None:
    assert equal(text, text) == (answer_fault(text) is None)
    equal_answers(text, "5")
    equal_answers("5", text)


@pytest.mark.parametrize(
    "unit",
    [
        *("9", "{", "}", "{}", "\\", "\\frac", "\\frac1", "\\text{", "\\text{ a", "ab ", "1,234,"),
        *("10^", "5 ", "$", "%", "x=", "a/", "-", ".", "e9", "\\,123", "\\circ^", "the answer is "),
    ],
)
def test_no_answer_takes_long(unit: str) -> None:
    answers = [(unit * MAX_ANSWER_CHARS)[:MAX_ANSWER_CHARS], unit * 1_000_000]
    answers += ["5 " + answers[0][:900] + "1", "{" * 450 + answers[0][:50] + "}" * 450]
    for answer in answers:
        started = process_time()
        equal_answers(answer, "5")
        assert process_time() - started < 0.5
