import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.verify.extract import MAX_SECTION_CHARS, answer_section, count_boxes, find_answer

TAGS = ("think", "answer")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"So $\boxed{ 5 }$.", "5"),
        (r"\boxed {5}", "5"),
        ("\\boxed \n {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\\boxed{5}", "5"),
        (r"x \\ \boxed{5}", "5"),
        (r"\boxed{\frac{\sqrt{3}}{2^{10}}}", r"\frac{\sqrt{3}}{2^{10}}"),
        (r"\boxed{\{2,3\}}", r"\{2,3\}"),
        (r"\boxed{\{2,3}", r"\{2,3"),
        (r"\boxed{a\\{b}}", r"a\\{b}"),
        (r"an open { and \boxed{5}", "5"),
        (r"\boxed{\boxed{7}}", r"\boxed{7}"),
        (r"First \boxed{5}. That was a slip; it is \boxed{7}.", "7"),
        (r"I put it in \boxed{}. It is \boxed{9}.", "9"),
        (r"It is \boxed{9}. I marked it with \boxed above.", "9"),
        (r"It is \boxed{9} % or 8", "9"),
        (r"\boxed{4}. Check: 7,004. So \boxed{4}", "4"),
    ],
)
def test_the_last_box_is_the_answer(text: str, answer: str) -> None:
    assert find_answer(text, ()) == (answer, "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}\boxed{7}", "5, 7"),
        (r"\boxed{1}, \boxed{2}, $\boxed{3}$", "1, 2, 3"),
        (r"\boxed{5} \text{ or } \boxed{6}", "5, 6"),
        (r"either \boxed{5} and also \boxed{6} or \boxed{7}", "6, 7"),
        (r"\boxed{5}, \boxed{5}", "5"),
        (r"\boxed{}, \boxed{5}", "5"),
        (r"\boxed{5} for \boxed{6}", "6"),
        (r"\boxed{5}x\boxed{6}", "6"),
        (r"\boxed{5}" + " " * 40 + r"\boxed{6}", "5, 6"),
        (r"\boxed{5}" + " " * 41 + r"\boxed{6}", "6"),
    ],
)
def test_boxes_side_by_side_are_one_list(text: str, answer: str) -> None:
    assert find_answer(text, ())[0] == answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"there is no \boxed{} in the text"),
        ("Answer: 5", r"there is no \boxed{} in the text"),
        (r"\boxed 5", r"there is no \boxed{} in the text"),
        (r"\boxedx{5}", r"there is no \boxed{} in the text"),
        ("boxed{5}", r"there is no \boxed{} in the text"),
        (r"\boxed{}", r"the last \boxed{} in the text is empty"),
        ("\\boxed{ \n }", r"the last \boxed{} in the text is empty"),
        (r"\boxed{5} and then \boxed{}", r"the last \boxed{} in the text is empty"),
        (r"\boxed{6", r"the last \boxed{} in the text is never closed"),
        (r"\boxed{\frac{3}{4}", r"the last \boxed{} in the text is never closed"),
        (r"\boxed{5\}", r"the last \boxed{} in the text is never closed"),
        (r"\boxed{5}, no, \boxed{6", r"the last \boxed{} in the text is never closed"),
        (r"\boxed{either \boxed{5} or", r"the last \boxed{} in the text is never closed"),
    ],
)
def test_no_answer_says_why(text: str, reason: str) -> None:
    assert find_answer(text, ()) == (None, reason)


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("<think>a</think> b <answer>c</answer>", "c"),
        ("<answer>a</answer> then <answer>b</answer> c", "b"),
        ("<think>a</think><answer>never closed", "never closed"),
        ("<think>a <answer>b</answer>", "b"),
        ("<think>a</think><answer>b</answer></think>", "b"),
        ("<think>a</think><answer>b</answer><think>c</think>", "b"),
        ("<think>a <answer>b</answer> <think>c</think>", "b"),
        ("<answer>b</answer></think>", "b"),
        ("<think>a</think><think>b</think><answer>c</answer></think>", "c"),
        ("<think>a <answer>b</answer> <think>c</think> <think>d", "b"),
    ],
)
def test_the_section_of_tagged_text(text: str, section: str) -> None:
    assert answer_section(text, TAGS) == (section, "")


def test_an_answer_within_the_reasoning_is_none() -> None:
    text = r"<think>Say <answer>\boxed{5}</answer>.</think> I don't know."
    assert find_answer(text, TAGS) == (None, "the last <answer> is inside <think>")
    assert find_answer(r"\boxed{5}", TAGS) == (None, "there is no <answer>")
    assert find_answer(r"\boxed{5}<answer>5</answer>", TAGS) == (
        None,
        r"there is no \boxed{} in <answer>",
    )


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><think>b <answer>c</answer></think>",
        "<think>a <answer>b</answer></think> <think>c</think>",
    ],
)
def test_an_answer_within_any_of_several_reasonings_is_none(text: str) -> None:
    assert answer_section(text, TAGS) == (None, "the last <answer> is inside <think>")


def test_an_answer_within_the_second_of_three_tags_is_none() -> None:
    section = answer_section("<a>1</a><b>2<c>3</c></b>", ("a", "b", "c"))
    assert section == (None, "the last <c> is inside <b>")


def test_without_tags_the_section_follows_the_last_think() -> None:
    assert find_answer(r"<think>\boxed{2}</think> So \boxed{3}.", ()) == ("3", "")
    assert find_answer(r"<think>\boxed{2}</think> So 3.", ())[0] is None
    assert find_answer(r"a</think>\boxed{2}</think>\boxed{4}", ()) == ("4", "")
    assert find_answer(r"a</think>\boxed{2}</think> So 4.", ())[0] is None


def test_only_the_end_of_a_long_section_is_searched() -> None:
    pad = "x" * MAX_SECTION_CHARS
    answer, reason = find_answer(r"\boxed{5}" + pad, ())
    assert answer is None
    assert "last 100,000 characters" in reason
    assert find_answer(pad + r"\boxed{5}", ()) == ("5", "")
    assert find_answer(pad + r"\boxed{5}" + pad, ())[0] is None
    assert find_answer(pad, ())[1] == r"there is no \boxed{} in the text"


def test_nested_boxes_are_counted() -> None:
    assert count_boxes(r"\boxed{\boxed{7}} \fbox {1} \boxed 3") == 3


@given(st.text(alphabet="\\{}boxedf <>/thinkanswer,5", max_size=200), st.sampled_from([(), TAGS]))
def test_any_text_gives_an_answer_or_a_reason(text: str, tags: tuple[str, ...]) -> None:
    answer, reason = find_answer(text, tags)
    assert (answer is None) == bool(reason)
    assert answer is None or answer.strip()


@given(st.text(alphabet=st.characters(exclude_characters="\\{}<>"), min_size=1))
def test_what_is_boxed_comes_back(content: str) -> None:
    if content.strip():
        assert find_answer(f"So \\boxed{{{content}}}.", ()) == (content.strip(), "")
