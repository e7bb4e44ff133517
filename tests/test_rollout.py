"""Groups: order, seeds, rewards, what leaves a group, and dynamic sampling."""

import math
from collections.abc import Iterator, Sequence

import pytest
from transformers import PreTrainedTokenizerBase

from markbook.errors import MarkbookError, RunStopped
from markbook.recipe import RolloutRecipe
from markbook.records import Completion, Group, Problem, Verdict
from markbook.rollout import (
    Classroom,
    Clock,
    Rollout,
    advantages_of,
    collect,
    mark_safely,
    problem_at,
    reward_of,
)
from markbook.sampling import Request, Sampled, SamplingSpec
from markbook.tasks import Task


class Echo:
    """A sampler whose completion is its seed in digits, last asked for first."""

    def __init__(self, lose: int = 0) -> None:
        self.lose = lose

    def sample(self, requests: Sequence[Request], spec: SamplingSpec) -> Iterator[Sampled]:
        every = [
            Sampled(r, i, tuple(40 + int(d) for d in str(seed)[:5]), (-0.5,) * 5, "stopped")
            for r, request in enumerate(requests)
            for i, seed in enumerate(request.seeds)
        ]
        yield from every[: len(every) - self.lose][::-1]


class Plain:
    """A template that adds nothing but an opening for the marks to see."""

    prefill = "<think>"

    def render(self, prompt: object) -> tuple[str, tuple[int, ...]]:
        return str(prompt), (5, 6)


class Digits(Task):
    """Right where the text's third digit is under the problem's answer."""

    name = "digits"
    components = ("accuracy",)

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"p{i}", f"q{i}", str(i)) for i in range(10)]

    def mark(self, problem: Problem, completion: Completion) -> Verdict:
        digit = completion.token_ids[2] - 40
        if problem.id == "p9":
            raise ZeroDivisionError("nine")
        right = digit < int(problem.answer)
        return Verdict(
            "correct" if right else "incorrect", str(digit), "", {"accuracy": float(right)}
        )


@pytest.fixture
def classroom(tiny_tokenizer: PreTrainedTokenizerBase) -> Classroom:
    return make(tiny_tokenizer, Echo())


def make(tokenizer: PreTrainedTokenizerBase, sampler: Echo) -> Classroom:
    return Classroom(
        Digits(), Plain(), tokenizer, frozenset({1}), sampler, SamplingSpec(), {"accuracy": 2.0}  # type: ignore[arg-type]
    )  # fmt: skip


def gather(
    classroom: Classroom, recipe: RolloutRecipe, step: int = 3, position: int = 0, skip: int = 9
) -> Rollout:
    problems = [p for p in Digits().problems("train") if p.id != f"p{skip}"]
    empty = Rollout(step, 7, 5, position, position)
    return collect(classroom, problems, recipe, "population", empty, seed=1, clock=Clock())


def test_groups_come_in_order_whatever_the_sampler_does(classroom: Classroom) -> None:
    rollout = gather(classroom, RolloutRecipe(problems_per_step=4, group_size=3))
    assert rollout.draws == 1
    assert rollout.next_position == 4
    assert [g.index for g in rollout.groups] == [0, 1, 2, 3]
    expected = [
        problem_at([p for p in Digits().problems("") if p.id != "p9"], i, 1)[1] for i in range(4)
    ]
    assert [g.problem for g in rollout.groups] == expected
    for group in rollout.groups:
        assert [c.sample_index for c in group.completions] == [0, 1, 2]
        assert {c.policy_version for c in group.completions} == {7}
        assert group.completions[0].text.startswith("<think>")
        assert group.rewards == tuple(2.0 * v.components["accuracy"] for v in group.verdicts)


def test_seeds_differ_by_step_problem_and_sample(classroom: Classroom) -> None:
    recipe = RolloutRecipe(problems_per_step=9, group_size=4)
    one, two = gather(classroom, recipe, step=3), gather(classroom, recipe, step=4)
    ids = [c.token_ids for r in (one, two) for g in r.groups for c in g.completions]
    assert len(set(ids)) == len(ids)
    again = gather(classroom, recipe, step=3)
    assert again.groups == [*one.groups] or _same(again, one)


def _same(a: Rollout, b: Rollout) -> bool:
    return [g.completions for g in a.groups] == [g.completions for g in b.groups]


def test_a_problem_met_twice_in_a_step_draws_anew(classroom: Classroom) -> None:
    """At the turn of an epoch the same problem may come again; its samples must not repeat."""
    rollout = gather(classroom, RolloutRecipe(problems_per_step=18, group_size=2))
    ids = [c.token_ids for g in rollout.groups for c in g.completions]
    assert len(set(ids)) == len(ids) == 36
    assert sorted(g.problem.id for g in rollout.groups) == sorted(
        2 * [p.id for p in Digits().problems("") if p.id != "p9"]
    )


def test_every_epoch_holds_every_problem_once_in_another_order() -> None:
    problems = Digits().problems("train")
    epochs = [[problem_at(problems, e * 10 + i, 5) for i in range(10)] for e in range(3)]
    for number, epoch in enumerate(epochs):
        assert {e for e, _ in epoch} == {number}
        assert sorted(p.id for _, p in epoch) == sorted(p.id for p in problems)
    assert epochs[0] != epochs[1]


def test_uninformative_groups_are_kept_dropped_or_replaced(classroom: Classroom) -> None:
    # p0 can't be right, so its group teaches nothing.
    keep = gather(classroom, RolloutRecipe(problems_per_step=9, group_size=8))
    flat = [g.problem.id for g in keep.groups if len(set(g.rewards)) == 1]
    assert "p0" in flat
    assert all(values is not None for values in keep.advantages)
    drop = gather(classroom, RolloutRecipe(problems_per_step=9, group_size=8, uninformative="drop"))
    left_out = [
        g.problem.id for g, a in zip(drop.groups, drop.advantages, strict=True) if a is None
    ]
    assert left_out == flat
    assert drop.draws == 1
    again = gather(
        classroom, RolloutRecipe(problems_per_step=9, group_size=8, uninformative="resample")
    )
    assert again.draws > 1
    assert sum(values is not None for values in again.advantages) == 9
    assert again.next_position == len(again.groups) == 9 + sum(a is None for a in again.advantages)
    assert {g.draw for g in again.groups} == set(range(again.draws))
    assert [g.index for g in again.groups] == list(range(len(again.groups)))


def test_resampling_is_bounded(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    classroom = make(tiny_tokenizer, Echo())
    problems = [p for p in Digits().problems("train") if p.id == "p0"]
    recipe = RolloutRecipe(problems_per_step=1, group_size=4, uninformative="resample", max_draws=3)
    rollout = collect(
        classroom, problems, recipe, "population", Rollout(0, 0, 5, 0, 0), seed=1, clock=Clock()
    )
    assert rollout.draws == 3
    assert rollout.advantages == [None] * 3


def test_a_mark_that_raises_is_unscorable_and_says_why(classroom: Classroom) -> None:
    completion = Completion((40, 40, 40), (0.0,) * 3, "stopped", 0, 0, "")
    verdict = mark_safely(Digits(), Problem("p9", "q", "9"), completion)
    assert verdict.status == "unscorable"
    assert verdict.reason.startswith("marking raised ZeroDivisionError: nine (test_rollout.py:")
    assert math.isnan(reward_of(verdict, {"accuracy": 1.0}))


def test_too_many_unscorable_completions_stop_the_run(classroom: Classroom) -> None:
    recipe = RolloutRecipe(problems_per_step=9, group_size=2, max_unscorable_share=0.1)
    with pytest.raises(
        RunStopped, match=r"step 3: 2 of 18 .* could not be marked.*ZeroDivisionError"
    ):
        gather(classroom, recipe, skip=0)
    allowed = gather(
        classroom,
        RolloutRecipe(problems_per_step=9, group_size=2, max_unscorable_share=0.12),
        skip=0,
    )
    (lost,) = [i for i, g in enumerate(allowed.groups) if g.problem.id == "p9"]
    assert allowed.advantages[lost] is None
    assert all(math.isnan(r) for r in allowed.groups[lost].rewards)


def group(rewards: list[float]) -> Group:
    n = len(rewards)
    completions = tuple(Completion((1,), (0.0,), "stopped", 0, i, "") for i in range(n))
    return Group(
        Problem("p", "q", "1"), (1,), completions, (Verdict("correct", "", ""),) * n, tuple(rewards)
    )


def test_an_unscorable_completion_leaves_its_group() -> None:
    values = advantages_of(group([1.0, math.nan, 0.0]), "population", keep_uninformative=True)
    assert values is not None
    assert values[0] == 1
    assert math.isnan(values[1])
    assert values[2] == -1


def test_a_group_with_one_scorable_completion_is_left_out() -> None:
    """It would get mean 0 in silence: there is nothing to compare it with."""
    assert advantages_of(group([1.0, math.nan]), "population", keep_uninformative=True) is None


def test_a_sampler_that_loses_completions_is_noticed(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(RunStopped, match="the sampler gave 7 of 8 completions back"):
        gather(make(tiny_tokenizer, Echo(lose=1)), RolloutRecipe(problems_per_step=4, group_size=2))


def test_a_reward_needs_its_components() -> None:
    verdict = Verdict("correct", "1", "", {"accuracy": 1.0, "format": 0.5})
    assert reward_of(verdict, {"accuracy": 2.0, "format": -1.0}) == 1.5
    with pytest.raises(MarkbookError, match="has no finite component 'style'"):
        reward_of(verdict, {"style": 1.0})
    with pytest.raises(MarkbookError, match="has no finite component 'accuracy'"):
        reward_of(Verdict("correct", "1", "", {"accuracy": math.inf}), {"accuracy": 1.0})


def test_a_task_that_returns_no_verdict_is_told_so() -> None:
    wrong: list[object] = [
        1.0,
        Verdict("right", None, ""),  # type: ignore[arg-type]
        Verdict("correct", 5, ""),  # type: ignore[arg-type]
        Verdict("correct", None, None),  # type: ignore[arg-type]
        Verdict("correct", None, "", {"accuracy": "1"}),  # type: ignore[dict-item]
        Verdict("correct", None, "", {1: 1.0}),  # type: ignore[dict-item]
        Verdict("correct", None, "", {}, (1,)),  # type: ignore[arg-type]
    ]

    class Wrong(Digits):
        def mark(self, problem: Problem, completion: Completion) -> Verdict:
            return wrong[len(completion.token_ids)]  # type: ignore[return-value]

    for number in range(len(wrong)):
        completion = Completion((1,) * number, (0.0,) * number, "stopped", 0, 0, "")
        with pytest.raises(MarkbookError, match=r"mark\(\) returned .* for problem p1; it must"):
            mark_safely(Wrong(), Problem("p1", "q", "1"), completion)


def test_the_clock_counts_each_phase(classroom: Classroom) -> None:
    clock = Clock()
    told: list[tuple[int, int]] = []
    classroom.sample_groups(
        Digits().problems("train")[:3],
        [[11111, 22222]] * 3,
        max_tokens=5,
        policy_version=0,
        clock=clock,
        progress=lambda done, total: told.append((done, total)),
    )
    assert clock.sampled_tokens == 30
    assert clock.sampling_s > 0
    assert told == [(i, 6) for i in range(1, 7)]
    assert Clock().timings() == {"seconds_sampling": 0, "seconds_marking": 0, "seconds_training": 0}
    assert clock.timings()["tokens_per_s_sampling"] == 30 / clock.sampling_s
