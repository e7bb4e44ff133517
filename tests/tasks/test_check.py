from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from markbook.errors import MarkbookError
from markbook.records import Completion, Problem, Prompt, Verdict
from markbook.tasks.base import Task
from markbook.tasks.chains import Chains
from markbook.tasks.check import check_marks, check_problems, check_task
from markbook.verify import MarkingRules

PROBLEM = Problem("p", "1+1?", "2")


class Sums(Task):
    """A task whose parts the tests replace one by one."""

    name = "sums"
    splits_: Mapping[str, Any] = {"train": [PROBLEM], "test": [Problem("q", "1+2?", "3")]}

    def problems(self, split: str) -> Sequence[Problem]:
        found: Sequence[Problem] = self.splits_.get(split, [])
        return found

    def splits(self) -> tuple[str, ...]:
        return tuple(self.splits_)


def with_splits(**splits: Any) -> Task:
    task = Sums()
    task.splits_ = splits
    return task


class Marked(Sums):
    """Gives the same verdict to every text that is not empty, and another to empty ones."""

    def __init__(self, full: Any, empty: Any = None) -> None:
        super().__init__()
        self.full = full
        self.empty = empty if empty is not None else verdict("no_answer", accuracy=0, format=0)

    def mark(self, problem: Problem, completion: Completion) -> Verdict:
        found: Verdict = self.full if completion.text else self.empty
        return found


def verdict(status: Any, **components: float) -> Verdict:
    return Verdict(status, None, "because", components)


FULL = verdict("correct", accuracy=1, format=1)


@pytest.mark.parametrize("tags", [(), ("think", "answer"), ("answer",), ("plan", "work", "result")])
@pytest.mark.parametrize("answer", ["2", "-1/3", r"\\frac{1}{2}", "the cat", "0.50"])
def test_the_default_rules_pass(tags: tuple[str, ...], answer: str) -> None:
    task = Sums(MarkingRules(tags=tags))
    check_task(task, [Problem("p", "?", answer)])


def test_chains_pass() -> None:
    task = Chains(MarkingRules())
    check_problems(task)
    check_task(task, [p for split in task.splits() for p in task.problems(split)[::40]])


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Marked(verdict("incorrect", accuracy=1, format=1)), "incorrect, accuracy 1, format 1"),
        (Marked(verdict("correct", accuracy=1, format=0)), "correct, accuracy 1, format 0"),
        (Marked(verdict("correct", accuracy=1, format=0.999)), "format 0.999"),
        (Marked(verdict("correct", accuracy=1, format=1.5)), "format 1.5"),
        (Marked(verdict("correct", accuracy=float("nan"), format=1)), "accuracy nan"),
        (Marked(verdict("unscorable")), "marked unscorable (because)"),
        (Marked(verdict("correct", accuracy=1)), "has accuracy; name the same in both"),
        (Marked(verdict("correct")), "has none; name the same in both"),
        (Marked(verdict("correct", accuracy=1, format=1, extra=1)), "accuracy, format, extra"),
        (Marked(1.0), "mark must return a Verdict, but for problem 'p' it returned 1.0"),
        (Marked(FULL, FULL), "an answer to problem 'p' that says nothing must score 0, but ''"),
        (Marked(FULL, verdict("correct", accuracy=0, format=0)), "that says nothing"),
        (Marked(FULL, verdict("no_answer", accuracy=0, format=0.1)), "no_answer, accuracy 0"),
        (Marked(FULL, verdict("no_answer", accuracy=0)), "has accuracy; name the same"),
    ],
)
def test_marks_that_are_wrong(task: Task, words: str) -> None:
    with pytest.raises(MarkbookError) as raised:
        check_task(task, [PROBLEM])
    assert words in str(raised.value)
    assert "task sums" in str(raised.value)
    assert "'p'" in str(raised.value)


def test_an_unscorable_empty_text_is_no_pass() -> None:
    with pytest.raises(MarkbookError, match="unscorable"):
        check_task(Marked(FULL, verdict("unscorable")), [PROBLEM])


def test_check_marks_names_the_texts_it_was_given() -> None:
    task = Sums()
    full = task.model_answer(PROBLEM)
    check_marks(task, PROBLEM, full, "<think>")
    with pytest.raises(MarkbookError, match="but 'lost in the template' is marked no_answer"):
        check_marks(task, PROBLEM, "lost in the template", "")
    with pytest.raises(MarkbookError, match="that says nothing must score 0"):
        check_marks(task, PROBLEM, full, full)


def test_exceptions_name_the_file_the_line_and_the_problem() -> None:
    class Broken(Sums):
        def mark(self, problem: Problem, completion: Completion) -> Verdict:
            raise KeyError("level")

    with pytest.raises(MarkbookError) as raised:
        check_task(Broken(), [PROBLEM])
    line = Broken.mark.__code__.co_firstlineno + 1
    assert str(raised.value).startswith(f"{__file__}:{line}: mark of problem 'p' and the text ")
    assert str(raised.value).endswith("failed with KeyError: 'level'")


def test_problems_that_are_right() -> None:
    other = Problem("o", "2+2?", "4")
    check_problems(with_splits(train=[PROBLEM], test=(other,), hard=[other]))


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"train": []}, "problems('train') is empty"),
        ({"test": [PROBLEM]}, "problems('train') is empty"),
        ({"train": None}, "must return a list or tuple of Problem, not NoneType"),
        ({"train": iter([PROBLEM])}, "not list_iterator"),
        ({"train": "p"}, "not str"),
        ({"train": [PROBLEM, {"id": "q"}]}, "item 1 is {'id': 'q'}, not a Problem"),
        ({"train": [Problem(1, "?", "2")]}, "item 0 has the id 1, not a text"),  # type: ignore[arg-type]
        ({"train": [Problem("", "?", "2")]}, "item 0 has the id ''"),
        ({"train": [Problem("p", "?", 2)]}, "'p' has the answer 2, not a text"),  # type: ignore[arg-type]
        ({"train": [PROBLEM, PROBLEM]}, "gives the id 'p' to more than one problem"),
        ({"train": [PROBLEM], "test": [PROBLEM]}, "'p', which is in 'train' too"),
        (
            {
                "train": [PROBLEM],
                "a": [Problem("q", "1+2?", "3")],
                "b": [Problem("q", "1+3?", "4")],
            },
            "problems('b') gives the id 'q' to another problem than 'a' does",
        ),
        ({"train": [Problem("p", " ", "2")]}, "the prompt of problem 'p' is ' '"),
        ({"train": [Problem("p", [], "2")]}, "the prompt of problem 'p' is []"),
        ({"train": [Problem("p", [{"role": "user"}], "2")]}, "role and content is needed"),
    ],
)
def test_problems_that_are_wrong(splits: Mapping[str, Any], words: str) -> None:
    with pytest.raises(MarkbookError) as raised:
        check_problems(with_splits(**splits))
    assert words in str(raised.value)


def test_problems_must_repeat() -> None:
    class Shuffled(Sums):
        calls = 0

        def problems(self, split: str) -> Sequence[Problem]:
            self.calls += 1
            order = [PROBLEM, Problem("q", "1+2?", "3")]
            return order if self.calls % 2 else order[::-1]

    with pytest.raises(MarkbookError, match="another order, at a second call"):
        check_problems(Shuffled())


def test_components_must_be_names() -> None:
    task = Sums()
    for wrong in ("accuracy", (), ("accuracy", 1), ["accuracy"]):
        task.components = wrong  # type: ignore[assignment]
        with pytest.raises(MarkbookError, match="must be a tuple of names"):
            check_problems(task)


def test_prompts_that_do_not_fit_are_counted_and_listed() -> None:
    def fits(prompt: Prompt) -> str | None:
        return f"{prompt!s} is over 512 tokens" if prompt != PROBLEM.prompt else None

    long = [Problem(f"n{k}", f"long {k}", "1") for k in range(23)]
    with pytest.raises(MarkbookError) as raised:
        check_problems(with_splits(train=[PROBLEM], test=long), fits)
    lines = str(raised.value).splitlines()
    assert "and 23 do not" in lines[0]
    assert lines[1] == "  test, problem 'n0': long 0 is over 512 tokens"
    assert lines[20].startswith("  test, problem 'n19'")
    assert lines[21:] == ["  and 3 more"]
    with pytest.raises(MarkbookError) as raised:
        check_problems(with_splits(train=[PROBLEM], test=long[:20]), fits)
    assert str(raised.value).splitlines()[20:] == [lines[20]]
    check_problems(with_splits(train=[PROBLEM], test=long))
