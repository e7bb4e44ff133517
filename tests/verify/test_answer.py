from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.errors import MarkbookError
from markbook.verify import MarkingRules, can_mark, mark_answer, write_answer

R1_ZERO = MarkingRules()
BOX_ONLY = MarkingRules(tags=())
RULES = [R1_ZERO, BOX_ONLY, MarkingRules(tags=("answer",)), MarkingRules(tags=("a", "b", "c"))]


@pytest.mark.parametrize(
    ("text", "status", "accuracy", "format_score"),
    [
        (r"<think>4+1</think><answer>\boxed{5}</answer>", "correct", 1, 1),
        (r"<think>4+1</think><answer>So \boxed{5}, I think.</answer>", "correct", 1, 1),
        (r"<think>4+1</think><answer>\boxed{6}</answer>", "incorrect", 0, 1),
        (r"<think>4+1</think><answer>5</answer>", "no_answer", 0, 1),
        (r"<think>4+1</think><answer>\boxed{5}</answer> Bye", "correct", 1, 0),
        (r"<think>\boxed{5}</think>", "no_answer", 0, 0),
        (r"<think>\boxed{5}</think><answer>\boxed{5", "no_answer", 0, 0),
        (r"<think>a</think><answer>\boxed{5 or 6}</answer>", "incorrect", 0, 1),
        (r"<think>a</think><answer>\boxed{5, 6}</answer>", "incorrect", 0, 1),
        (r"<think>a</think><answer>\boxed{6}\boxed{5}</answer>", "incorrect", 0, 1),
        (r"\boxed{5}", "no_answer", 0, 0),
        ("", "no_answer", 0, 0),
    ],
)
def test_marks_by_r1_zeros_rules(
    text: str, status: str, accuracy: float, format_score: float
) -> None:
    verdict = mark_answer(text, "5", R1_ZERO)
    assert verdict.status == status
    assert verdict.components == {"accuracy": accuracy, "format": format_score}
    assert {type(score) for score in verdict.components.values()} == {float}
    assert 0 < verdict.seconds < 10


def test_a_verdict_tells_what_and_why() -> None:
    verdict = mark_answer(r"<think>a</think><answer>\boxed{ 6 }</answer>.", "5", R1_ZERO)
    assert verdict.extracted == "6"
    assert verdict.reason == "as numbers, 6 is not 5; there is text after </answer>"
    missing = mark_answer("hello", "5", R1_ZERO)
    assert missing.extracted is None
    assert missing.reason == "there is no <answer>; there is no <think>"


@pytest.mark.parametrize("gold", ["", "  ", "$$", "9" * 1001])
def test_a_gold_that_cannot_be_read_makes_it_unscorable(gold: str) -> None:
    verdict = mark_answer(write_answer(gold, R1_ZERO), gold, R1_ZERO)
    assert verdict.status == "unscorable"
    assert verdict.components == {}
    assert verdict.reason.startswith("the gold answer ")


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    "gold",
    [
        *("5", "-5", "1,234", "0.5", r"\frac{1}{2}", r"\$36", r"25\%", r"\text{(C)}", "yes"),
        *(r"\{1\pm\sqrt{5},-2\}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "see the proof"),
        *("a\nb", " 5 ", r"\boxed{5}", "{odd}", "<i>", r"\left( 3, \frac{\pi}{2} \right)", "10:30"),
    ],
)
def test_a_written_answer_gets_full_marks(gold: str, rules: MarkingRules) -> None:
    assert can_mark(gold, rules) is None
    verdict = mark_answer(write_answer(gold, rules), gold, rules)
    assert verdict.status == "correct"
    assert verdict.components == {"accuracy": 1, "format": 1}
    assert verdict.extracted == gold.strip()


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("", "the gold answer is empty"),
        (" \n", "the gold answer is empty"),
        (r"\text{ }", "the gold answer is empty"),
        ("9" * 1001, "the gold answer has 1,001 characters, more than the 1,000 that are read"),
        ("5\x00", "the gold answer has the control character U+0000"),
        ("5\x1b[0m", "the gold answer has the control character U+001B"),
        ("5\ud800", "the gold answer has the control character U+D800"),
        ("<answer>5", "the gold answer has the tag <answer> in it"),
        ("5</answer>", "the gold answer has the tag </answer> in it"),
        ("<think>5", "the gold answer has the tag <think> in it"),
        ("{5", "the braces of the gold answer don't match"),
        ("5}", "the braces of the gold answer don't match"),
        ("}5{", "the braces of the gold answer don't match"),
        (r"\frac{1}{2", "the braces of the gold answer don't match"),
        ("5\\", "the braces of the gold answer don't match"),
    ],
)
def test_a_gold_that_cannot_be_marked_says_why(gold: str, reason: str) -> None:
    found = can_mark(gold, R1_ZERO)
    assert found is not None
    assert found.startswith(reason)


def test_a_gold_with_odd_braces_says_what_becomes_of_its_box() -> None:
    odd = "the braces of the gold answer don't match, so "
    assert can_mark("{5", R1_ZERO) == odd + r"the last \boxed{} in <answer> is never closed"
    assert can_mark("5}", R1_ZERO) == odd + "its box ends early"


def test_a_gold_that_would_not_be_marked_correct_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No such gold is known; if the rules ever make one, this catches it."""
    monkeypatch.setattr("markbook.verify.answer.equal_answers", lambda *_: (False, "5 is not 5"))
    assert can_mark("5", R1_ZERO) == (
        "the gold answer does not get full marks itself: 5 is not 5; the format is kept"
    )


def test_the_tags_that_spoil_a_gold_are_those_of_the_rules() -> None:
    assert can_mark("<answer>5", BOX_ONLY) is None
    assert can_mark("5</think>", BOX_ONLY) == "the gold answer has the tag </think> in it"
    assert can_mark("<b>5</b>", RULES[3]) == "the gold answer has the tag <b> in it"


@given(st.text(max_size=40), st.sampled_from(RULES))
def test_whatever_can_be_marked_gets_full_marks(gold: str, rules: MarkingRules) -> None:
    if can_mark(gold, rules) is None:
        assert mark_answer(write_answer(gold, rules), gold, rules).status == "correct"
        assert mark_answer("", gold, rules).components == {"accuracy": 0, "format": 0}


@given(st.text(max_size=300), st.text(max_size=20), st.sampled_from(RULES))
def test_any_text_gets_a_verdict(text: str, gold: str, rules: MarkingRules) -> None:
    verdict = mark_answer(text, gold, rules)
    assert verdict.reason
    assert set(verdict.components.values()) <= {0, 1}
    assert (verdict.status == "unscorable") == (not verdict.components)


@pytest.mark.parametrize("tag", ["", "<think>", "thi nk", "a|b", "1a", "think\n"])
def test_a_tag_is_a_plain_word(tag: str) -> None:
    with pytest.raises(MarkbookError, match=r"marking\.tags has .*plain word"):
        MarkingRules(tags=("think", tag))


def test_a_tag_is_named_once() -> None:
    with pytest.raises(MarkbookError, match="only once"):
        MarkingRules(tags=("think", "think"))


@pytest.mark.parametrize(
    "unit",
    [
        *("\\boxed{", "\\boxed{5} ", "\\boxed{{}", "\\boxed ", "\\boxed", "\\", "{", "}", " ", "a"),
        *("<think>", "</think>", "<answer>", "<think><answer>", "<answer></answer>", "</answer>"),
        *("<think>x</think><answer>\\boxed{5}</answer>", "\x00", "$"),
    ],
)
@pytest.mark.parametrize("rules", [R1_ZERO, BOX_ONLY])
def test_a_megabyte_takes_no_time_to_speak_of(unit: str, rules: MarkingRules) -> None:
    body = unit * (1_000_000 // len(unit))
    for text in (body, rf"<answer>\boxed{{{body}"):
        started = process_time()
        mark_answer(text, "5", rules)
        assert process_time() - started < 1.0
