"""Metrics of a small rollout, every number by hand."""

import math

import pytest
import torch

from markbook.metrics import (
    REFLECTIVE_WORDS,
    count_words,
    known,
    mark_metrics,
    rollout_metrics,
    update_metrics,
)
from markbook.objective import LossReport
from markbook.policy import UpdateReport
from markbook.records import Completion, FinishReason, Group, Problem, Status, Verdict
from markbook.rollout import Rollout

PROBLEM = Problem("p", "q", "1")


def completion(tokens: int, reason: FinishReason = "stopped", text: str = "") -> Completion:
    return Completion((1,) * tokens, (-1.0,) * tokens, reason, 0, 0, text)


def verdict(status: Status, form: float = 1.0) -> Verdict:
    components = {"accuracy": float(status == "correct"), "format": form}
    return Verdict(status, None, "", {} if status == "unscorable" else components)


GROUPS = [
    Group(
        PROBLEM,
        (1,),
        (
            completion(4, text="Wait, check: wait"),
            completion(8, "truncated"),
            completion(6),
            completion(90),
        ),
        (
            verdict("correct"),
            verdict("no_answer", 0.0),
            verdict("incorrect", 0.5),
            verdict("unscorable"),
        ),
        (2.0, 0.0, 0.5, math.nan),
    ),
    Group(
        PROBLEM,
        (1,),
        (completion(2), completion(10)),
        (verdict("correct"), verdict("correct")),
        (2.0, 2.0),
    ),
    Group(
        PROBLEM,
        (1,),
        (completion(5), completion(5)),
        (verdict("unscorable"), verdict("incorrect")),
        (math.nan, 1.0),
    ),
]


def test_mark_metrics_by_hand() -> None:
    metrics = mark_metrics(GROUPS, ("wait", "check"))
    expected = {
        "num_groups": 3,
        "num_completions": 8,
        "correct_share": 3 / 6,
        "no_answer_share": 1 / 6,
        "truncated_share": 1 / 6,
        "unscorable_share": 2 / 8,
        "reward_mean": 7.5 / 6,
        "accuracy_mean": 3 / 6,
        "format_mean": 4.5 / 6,
        "format_share": 4 / 6,
        "all_correct_share": 1 / 3,
        "all_wrong_share": 1 / 3,
        "uninformative_share": 2 / 3,
        "completion_tokens_mean": 35 / 6,
        "completion_tokens_max": 10,
        "completion_tokens_correct_mean": 16 / 3,
        "completion_tokens_incorrect_mean": 19 / 3,
        "completion_tokens_stopped_mean": 27 / 5,
        "reflective_words_mean": 3 / 6,
        "reflective_word_wait": 2,
        "reflective_word_check": 1,
    }
    deviation = math.sqrt(sum((r - 7.5 / 6) ** 2 for r in (2, 0, 0.5, 2, 2, 1)) / 6)
    assert metrics.pop("reward_std") == pytest.approx(deviation)
    assert metrics == pytest.approx(expected)


def test_groups_teach_nothing_by_the_same_rule_as_in_training() -> None:
    marks = (verdict("correct"), verdict("incorrect"))
    pair = (completion(1), completion(1))
    groups = [
        Group(PROBLEM, (1,), pair, marks, rewards)
        for rewards in ((1e9, 1e9 + 0.5), (0.0, 1e-9), (0.0, 2e-9), (0.3, 0.1 + 0.2))
    ]
    assert mark_metrics(groups, ())["uninformative_share"] == 3 / 4


def test_components_are_in_order_and_averaged_over_the_verdicts_that_have_them() -> None:
    names = [*"zyxwvutsr", "language"]
    some = Verdict("correct", "1", "", dict.fromkeys(names, 0.5))
    rest = Verdict("incorrect", "2", "", dict.fromkeys("zyxwvutsr", 0.0))
    group = Group(PROBLEM, (1,), (completion(1), completion(1)), (some, rest), (1.0, 0.0))
    metrics = mark_metrics([group], ())
    means = [f"{name}_mean" for name in sorted(names)]
    assert [name for name in metrics if name in means] == means
    assert metrics["language_mean"] == 0.5
    assert metrics["z_mean"] == 0.25


def test_a_group_has_one_reward_for_each_completion() -> None:
    short = Group(PROBLEM, (1,), (completion(1),), (verdict("correct"),), ())
    with pytest.raises(ValueError, match="zip"):
        mark_metrics([short], ())


def test_metrics_are_plain_numbers() -> None:
    marks = mark_metrics(GROUPS, ("wait",))
    report = UpdateReport(
        [0.5], [1.0], [0.1], [LossReport(1, 0.5, 2.0, 1, 0.9, 1.0)], [torch.tensor([0.1])]
    )
    for value in (marks | update_metrics(report)).values():
        assert type(value) in {int, float}
    assert {type(value) for value in known(marks).values()} == {float}


def test_what_does_not_exist_is_none_never_zero() -> None:
    wrong = Group(PROBLEM, (1,), (completion(8, "truncated"),), (verdict("incorrect"),), (0.0,))
    metrics = mark_metrics([wrong], ())
    assert metrics["completion_tokens_correct_mean"] is None
    assert metrics["completion_tokens_stopped_mean"] is None
    nothing = mark_metrics([], ())
    assert nothing["correct_share"] is None
    assert nothing["reward_std"] is None
    assert nothing["completion_tokens_max"] is None
    assert known(nothing) == {"num_groups": 0.0, "num_completions": 0.0}


def test_groups_that_are_all_unscorable_are_in_no_denominator() -> None:
    lost = Group(PROBLEM, (1,), (completion(8),), (verdict("unscorable"),), (math.nan,))
    metrics = mark_metrics([lost, GROUPS[1]], ())
    assert metrics["unscorable_share"] == 1 / 3
    assert metrics["correct_share"] == 1
    assert metrics["all_correct_share"] == 1
    assert metrics["all_wrong_share"] == 0
    assert metrics["uninformative_share"] == 1


def test_rollout_metrics_say_what_was_left_out() -> None:
    rollout = Rollout(3, 3, 9, 0, 3, GROUPS, [[1.0, -1.0, 0.0, math.nan], None, None], 2)
    metrics = rollout_metrics(rollout, ())
    assert metrics["draws"] == 2
    assert metrics["groups_left_out"] == 2
    assert metrics["completions_trained"] == 3


def test_update_metrics_weigh_by_tokens() -> None:
    report = UpdateReport(
        loss=[0.5, 1.5],
        grad_norm=[1.0, 3.0],
        learning_rate=[0.1, 0.2],
        losses=[LossReport(1, 0.5, 2.0, 1, 0.9, 1.0), LossReport(3, 1.5, 2.0, 0, 0.8, 1.3)],
        differences=[torch.tensor([0.1]), torch.tensor([0.3, 0.2])],
    )
    assert update_metrics(report) == pytest.approx(
        {
            "updates": 2,
            "loss": 1.0,
            "grad_norm": 2.0,
            "grad_norm_max": 3.0,
            "learning_rate": 0.2,
            "kl_mean": 0.5,
            "entropy_mean": 1.0,
            "clip_share": 0.25,
            "ratio_min": 0.8,
            "ratio_max": 1.3,
            "sampler_policy_gap_mean": 0.2,
            "sampler_policy_gap_max": 0.3,
        }
    )


def test_a_step_without_an_update_has_no_numbers_of_one() -> None:
    metrics = update_metrics(UpdateReport())
    assert metrics.pop("updates") == 0
    assert set(metrics.values()) == {None}


def test_without_a_reference_there_is_no_divergence() -> None:
    report = UpdateReport([0.0], [0.0], [0.1], [LossReport(2, None, 1.0, 0, 1.0, 1.0)])
    assert update_metrics(report)["kl_mean"] is None


@pytest.mark.parametrize(
    ("text", "count"),
    [("Wait, WAIT. wait", 3), ("waiting awaits wait_", 0), ("wait-wait", 2), ("", 0)],
)
def test_words_are_whole_words_whatever_their_case(text: str, count: int) -> None:
    assert count_words(text, ("wait",)) == count


def test_words_may_hold_signs_and_none_count_nothing() -> None:
    assert count_words("a (b) a.b", ("a.b",)) == 1
    assert count_words("axb", ("a.b",)) == 0
    assert count_words("wait", ()) == 0


def test_the_papers_list() -> None:
    assert len(REFLECTIVE_WORDS) == len(set(REFLECTIVE_WORDS)) == 10
