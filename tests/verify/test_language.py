from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.errors import MarkbookError
from markbook.verify import language_consistency

HAN = "\u4f60\u597d\u4e16\u754c\u5427"
RUSSIAN = "\u043f\u0440\u0438\u0432\u0435\u0442"


def test_45_of_50_words() -> None:
    assert language_consistency("word " * 45 + HAN) == pytest.approx(0.9)
    assert language_consistency("word " * 45 + f"{RUSSIAN} " * 5) == pytest.approx(0.9)
    assert language_consistency("word " * 45 + HAN, "zh") == pytest.approx(0.1)


@pytest.mark.parametrize(
    "text", ["", "  \n", "12 + 3 = 15", "$x + y$", r"\(x\)", "```\nx = 1\n```"]
)
def test_no_words_is_nothing_foreign(text: str) -> None:
    assert language_consistency(text) == 1.0


@pytest.mark.parametrize(
    ("left_out"),
    [
        "```python\nprint(x)\n```",
        "`print(x)`",
        "$a+b$",
        "$$a\n+b$$",
        r"\(a+b\)",
        "\\[a\n+b\\]",
        r"\begin{align*}a&=b\end{align*}",
        r"\frac",
        "<think>",
        "</answer>",
        "```python\nnever_closed",
    ],
)
def test_code_formulas_and_tags_are_left_out(left_out: str) -> None:
    assert language_consistency(f"{RUSSIAN} {left_out}", "ru") == 1.0


def test_money_is_no_formula() -> None:
    # Three Latin words and one Russian one, none of them between dollars.
    assert language_consistency(f"costs $5 and {RUSSIAN} $6 more") == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("don\u2019t caf\u00e9 cafe\u0301 \uff57\uff49\uff44\uff45", "en"),
        ("\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8\u3002\u4eba\u3005", "ja"),
        ("\ud55c\uad6d\uc5b4 \uc2dc\ud5d8", "ko"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "hi"),
        ("\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "ar"),
        ("\u03b5\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac", "el"),
    ],
)
def test_a_text_in_its_own_script(text: str, language: str) -> None:
    assert language_consistency(text, language) == 1.0


def test_a_combining_mark_does_not_split_a_word() -> None:
    hindi = "\u0939\u093f\u0928\u094d\u0926\u0940"
    assert language_consistency(f"{hindi} one") == pytest.approx(1 / 2)
    assert language_consistency(f"don't {RUSSIAN}") == pytest.approx(1 / 2)


def test_an_unknown_language_is_an_error() -> None:
    with pytest.raises(MarkbookError, match=r"'eng'.*did you mean 'en'"):
        language_consistency("text", "eng")


@given(st.text())
def test_it_is_a_share(text: str) -> None:
    assert 0.0 <= language_consistency(text) <= 1.0


@pytest.mark.parametrize(
    "unit", ["`a", "$a ", "\\(", "\\begin{a}", "<a", "a\u0300\u0316", "$$", "`"]
)
def test_a_megabyte_takes_linear_time(unit: str) -> None:
    started = process_time()
    language_consistency(unit * (1_000_000 // len(unit)))
    assert process_time() - started < 3.0
