"""Marks on held-out problems: is the policy better, and how sure is that."""

from collections.abc import Sequence

from markbook.metrics import Metrics, mark_metrics, mean
from markbook.records import Group, Problem
from markbook.rollout import Classroom, Clock, Progress
from markbook.seeding import permutation, seed_of
from markbook.stats import bootstrap_interval


def choose(problems: Sequence[Problem], number: int, seed: int) -> list[Problem]:
    """Return `number` of the problems, the same for the same seed; -1 takes all."""
    if number < 0 or number >= len(problems):
        return list(problems)
    return [problems[i] for i in permutation(seed_of(seed, "evaluation"), len(problems))[:number]]


def evaluate(
    classroom: Classroom,
    problems: Sequence[Problem],
    *,
    seed: int,
    samples: int,
    max_tokens: int,
    policy_version: int,
    clock: Clock,
    progress: Progress | None = None,
) -> list[Group]:
    """Sample and mark `samples` completions of each problem, with the run's sampling.

    The seeds do not depend on the policy's version: two evaluations of one run draw with the same
    random numbers, so that what differs between them is the policy.
    """
    seeds = [[seed_of(seed, "evaluate", p.id, i) for i in range(samples)] for p in problems]
    return classroom.sample_groups(
        problems,
        seeds,
        max_tokens=max_tokens,
        policy_version=policy_version,
        clock=clock,
        progress=progress,
    )


def evaluation_metrics(groups: Sequence[Group], words: Sequence[str], seed: int) -> Metrics:
    """Return pass@1 with its 95 % interval over problems, by level where problems have one.

    pass@1 is the mean over problems of the share of correct completions; unscorable completions
    are left out of it, and a problem that has no others.
    """
    scores = [(group, _share_correct(group)) for group in groups]
    known = [score for _, score in scores if score is not None]
    low, high = bootstrap_interval(known, seed) if known else (None, None)
    metrics: Metrics = {
        "num_problems": len(known),
        "pass_at_1": mean(known),
        "pass_at_1_low": low,
        "pass_at_1_high": high,
    }
    levels = sorted({str(group.problem.metadata.get("level", "")) for group in groups} - {""})
    for level in levels:
        metrics[f"pass_at_1_level_{level}"] = mean(
            score
            for group, score in scores
            if score is not None and str(group.problem.metadata.get("level", "")) == level
        )
    return metrics | mark_metrics(groups, words)


def _share_correct(group: Group) -> float | None:
    return mean(float(v.status == "correct") for v in group.verdicts if v.status != "unscorable")
