import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.verify import check_format

TAGS = ("think", "answer")
BODY = st.text(alphabet=st.characters(exclude_characters="<>"))
SPACE = st.text(alphabet=" \n\t")


@given(SPACE, BODY, SPACE, BODY, SPACE)
def test_each_tag_once_in_order_is_kept(
    before: str, think: str, between: str, answer: str, after: str
) -> None:
    text = f"{before}<think>{think}</think>{between}<answer>{answer}</answer>{after}"
    assert check_format(text, TAGS) == (True, "the format is kept")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no <think>"),
        ("a</think><answer>b</answer>", "there is no <think>"),
        ("<think>a<answer>b</answer>", "there is no </think>"),
        ("<think>a</think>b", "there is no <answer>"),
        ("<think>a</think><answer>b", "there is no </answer>"),
        ("<think>a</think><think>a</think><answer>b</answer>", "there are 2 <think>"),
        ("<think>a</think><answer>b</answer></answer>", "there are 2 </answer>"),
        (
            "<answer>b</answer><think>a</think>",
            "the tags are out of order: <answer> </answer> <think> </think>",
        ),
        (
            "<think>a<answer>b</answer></think>",
            "the tags are out of order: <think> <answer> </answer> </think>",
        ),
        (
            "</think>a<think><answer>b</answer>",
            "the tags are out of order: </think> <think> <answer> </answer>",
        ),
        ("x<think>a</think><answer>b</answer>", "there is text before <think>"),
        ("<think>a</think>x<answer>b</answer>", "there is text between </think> and <answer>"),
        ("<think>a</think><answer>b</answer>.", "there is text after </answer>"),
        ("<Think>a</Think><answer>b</answer>", "there is no <think>"),
        ("<think >a</think><answer>b</answer>", "there is no <think>"),
    ],
)
def test_every_fault_is_named(text: str, reason: str) -> None:
    assert check_format(text, TAGS) == (False, reason)


def test_text_between_any_two_of_three_tags_is_named() -> None:
    tags = ("a", "b", "c")
    first = check_format("<a>1</a>x<b>2</b><c>3</c>", tags)
    second = check_format("<a>1</a><b>2</b>x<c>3</c>", tags)
    assert first == (False, "there is text between </a> and <b>")
    assert second == (False, "there is text between </b> and <c>")


def test_other_tags_and_other_numbers_of_them() -> None:
    assert check_format("<a>1</a><b-2>2</b-2> <c>3</c>", ("a", "b-2", "c"))[0]
    assert check_format("<answer>1</answer>", ("answer",))[0]
    assert not check_format("<a>1</a> <c>3</c>", ("a", "b-2", "c"))[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"It is \boxed{5}.", "the format is kept"),
        (r"\boxed{\boxed{5}}", "the format is kept"),
        (r"<think>\boxed{1}</think>\boxed{5}", "the format is kept"),
        ("It is 5.", r"there is no \boxed{}"),
        ("\\boxed{1} or \\boxed{2}", r"there are 2 \boxed{}"),
        ("\\boxed{1", r"the \boxed{} is never closed"),
        ("\\boxed{ }", r"the \boxed{} is empty"),
        ("\\boxed{1}" + "x" * 100_000, r"there is no \boxed{} in the last 100,000 characters"),
        ("\\boxed{1}" + "x" * 100_000 + "\\boxed{1}", r"there are 2 \boxed{}"),
    ],
)
def test_without_tags_one_closed_box_is_asked_for(text: str, reason: str) -> None:
    assert check_format(text, ()) == (reason == "the format is kept", reason)
