import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.verify.latex import clean, plain, strip_group, tokens


def canonical(text: str) -> tuple[str, ...]:
    return tokens(plain(clean(text)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"$\left( 3, \frac{\pi}{2} \right)$", r"(3,\dfrac{\pi}{2})"),
        (r"\(x^{2}+1\)", "x\u00b2+1"),
        (r"x\le 3", "x \u2264 3"),
        (r"\sqrt{3}", "\u221a3"),
        (r"x \leq 3", r"x\le3"),
        (r"\frac12x", r"\frac{1}{2}x"),
        (r"\frac9{19}\pi", r"\tfrac{9}{19}\pi"),
        (r"\frac{18}{38}\pi", r"\frac{9}{19}\pi"),
        (r"(1,4.50)", r"(1,\frac{9}{2})"),
        (r"\text{Tuesday}", "tuesday"),
        (r"\mathrm{(C)}", "C"),
        (r"C)", "(C)"),
        (r"{\text{ yes }}.", "Yes"),
        (r"\text{The answer is } \pi", r"\pi"),
        (r"\emptyset", r"\varnothing"),
        (r"+\infty", r"\infty"),
        ("\uff08\uff11\uff0c\uff12\uff09", "(1,2)"),
        (r"\textbf{north\ east}", "north east"),
        (r"\boxed{\boxed{x}}", "x"),
        (r"1 \\ -2", r"1\\-2"),
        ("(.50, x)", "(0.5, x)"),
        ("1\uff5e2", "1~2"),
    ],
)
def test_one_meaning_has_one_spelling(one: str, other: str) -> None:
    assert canonical(one) == canonical(other) != ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1 2", "12"),
        (r"1\;2", "12"),
        ("1$2", "12"),
        ("5^2", "52"),
        ("5\u00b2", "52"),
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        (r"x^{ab}", r"x^{a}b"),
        (r"\sqrt{ab}", r"\sqrt{a}b"),
        (r"\frac{ab}{c}", r"\frac{a}{bc}"),
        ("act", "cat"),
        ("(1,2)", "1,2"),
        (r"\{1,2\}", "1,2"),
        ("[1,4)", "(1,4)"),
        ("-5", "5"),
        ("xY", "xy+0"),
        (r"2X+1", "2x+1"),
        (r"1 \\ -2", "1-2"),
        ("{.5}", "5"),
        ("{{}x", "{x"),
        ("(b)+1", "b"),
        ("\uff5fx", "\x7fx"),
        (r"\neq 5", "5"),
        (r"\text{not } 5", "5"),
    ],
)
def test_different_meanings_stay_different(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x^{ab}", ("x", "^", "{", "a", "b", "}")),
        ("{a}b", ("a", "b")),
        ("x^{a}", ("x", "^", "a")),
        ("{}", ("{", "}")),
    ],
)
def test_braces_go_around_one_token_only(text: str, expected: tuple[str, ...]) -> None:
    assert tokens(text) == expected


def test_eight_groups_are_opened() -> None:
    assert strip_group("{" * 8 + "x" + "}" * 8) == "x"
    assert strip_group("{" * 9 + "x" + "}" * 9) == "{x}"


@given(st.text(alphabet="\\{}$^_ fractextboxd12.,-", max_size=60))
def test_any_text_has_tokens_without_space(text: str) -> None:
    assert all(token and not token.isspace() for token in canonical(text))
