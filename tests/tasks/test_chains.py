"""The demo's task: honest splits, exact marks, and every written step checked."""

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.records import Completion
from markbook.tasks.chains import (
    LEVELS,
    Chains,
    Step,
    find_steps,
    parse_terms,
    problem_of,
    solution_mode,
    step_verdicts,
)


def completion(text: str) -> Completion:
    return Completion((), (), "stopped", 0, 0, text)


def reordered(split: str) -> set[tuple[int, ...]]:
    return {tuple(sorted(parse_terms(p.id))) for p in Chains().problems(split)}


@pytest.mark.parametrize("split", ["train", "test", "longer"])
def test_splits_hold_what_their_table_says(split: str) -> None:
    problems = Chains().problems(split)
    assert Counter(p.metadata["level"] for p in problems) == LEVELS[split]
    assert len({p.id for p in problems}) == len(problems)
    assert list(problems) == list(Chains().problems(split))
    for problem in problems:
        terms = parse_terms(problem.id)
        assert len(terms) == problem.metadata["level"]
        assert set(terms) <= set(range(10))
        assert problem.answer == str(sum(terms))[-1]
        assert problem.metadata["split"] == split
        assert problem.prompt == f"{problem.id} mod 10"


def test_no_held_out_problem_is_trained_on_in_any_order() -> None:
    assert not reordered("train") & reordered("test")
    assert {p.metadata["level"] for p in Chains().problems("longer")} == {6, 7, 8}
    assert Chains().problems("nothing") == []
    assert Chains().splits() == ("train", "test", "longer")


@pytest.mark.parametrize(
    ("text", "status", "accuracy", "form", "steps"),
    [
        (r"<think>7+4=1, 1+8=9</think><answer>\boxed{9}</answer>", "correct", 1, 1, (True, True)),
        (
            r"<think>7+4=2, 2+8=0</think><answer>\boxed{0}</answer>",
            "incorrect",
            0,
            1,
            (False, True),
        ),
        (r"<think>it is 9<answer>\boxed{9}</answer>", "correct", 1, 0, ()),
        (r"<think>7+4+8=9</think><answer>9</answer>", "no_answer", 0, 1, (True,)),
        ("", "no_answer", 0, 0, ()),
    ],
)
def test_marks(
    text: str, status: str, accuracy: float, form: float, steps: tuple[bool, ...]
) -> None:
    verdict = Chains().mark(problem_of((7, 4, 8), "train"), completion(text))
    assert (verdict.status, verdict.step_verdicts) == (status, steps)
    assert verdict.components == {"accuracy": accuracy, "format": form}


def test_model_answers_score_full_marks() -> None:
    task = Chains()
    for problem in task.problems("test"):
        verdict = task.mark(problem, completion(task.model_answer(problem)))
        assert verdict.components == {"accuracy": 1, "format": 1}


def test_steps_are_found_where_a_result_is_written() -> None:
    assert find_steps("7+4=1, then 1 + 8 = 9 and 9+5") == [
        Step((7, 4), 1, 5),
        Step((1, 8), 9, 21),
    ]
    assert find_steps("7+4+8=9")[0].terms == (7, 4, 8)
    assert find_steps("7 plus 4 is 1, 7=7, +4=4") == []
    assert find_steps("1234567890+1=1, 1+1=1234567890") == []


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("7+4=2, 2+8=0", (False, True)),
        ("7+4=1, 1+1=2", (True, False)),
        ("7+4=2, wait, 7+4=1, 1+8=9", (False, True, True)),
        ("7+4=11, 1+8=9", (True, True)),
        ("7+4=1, 11+8=19", (True, True)),
        ("7+4+8=9", (True,)),
        ("7+4+8=8", (False,)),
        ("7+4=1, 1+8=9, wait, check: 7+4=1, 1+8=9", (True, True, True, True)),
        ("2+2=4", (False,)),
        ("7+4=1, 1+8=9, 9+5=4", (True, True, False)),
    ],
)
def test_a_step_is_right_if_its_sum_is_and_it_belongs_there(
    text: str, verdicts: tuple[bool, ...]
) -> None:
    assert step_verdicts((7, 4, 8), find_steps(text)) == verdicts


def test_a_step_that_fits_two_places_is_followed_to_both() -> None:
    steps = find_steps("7+6=7, wait, 7+6=3, 3+6=9, 9+1=1, wait, 9+1=0")
    assert step_verdicts((7, 6, 6, 1), steps) == (False, True, True, False, True)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("7+4=1, 1+8=9", "1-1"),
        ("7+4+8=9, 9+5=4", "2-1"),
        ("7+4=2, wait, 7+4=1, 1+8=9", "1|1-1"),
        ("It is 4.", "direct"),
        ("wait, check", "direct"),
    ],
)
def test_modes(text: str, mode: str) -> None:
    assert solution_mode(text) == mode


@given(st.text(alphabet="0123456789+= ,wait", max_size=200))
def test_any_text_gets_a_mark(text: str) -> None:
    verdict = Chains().mark(problem_of((7, 4, 8), "train"), completion(text))
    assert verdict.status in ("correct", "incorrect", "no_answer")
    assert len(verdict.step_verdicts) == len(find_steps(text))


@pytest.mark.parametrize("piece", ["1+", "1+1=", "9" * 20 + "+", "1 + ", "=+"])
def test_a_megabyte_takes_no_time_to_speak_of(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    begun = time.process_time()
    find_steps(text)
    solution_mode(text)
    assert time.process_time() - begun < 5
