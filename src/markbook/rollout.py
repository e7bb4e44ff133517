"""(2) Problems -> groups of marked completions."""

import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import get_args

import torch
from transformers import PreTrainedTokenizerBase

from markbook.advantage import Normalization, group_advantages, teaches_nothing
from markbook.errors import MarkbookError, RunStopped
from markbook.recipe import RolloutRecipe
from markbook.records import Completion, Group, Problem, Status, Verdict
from markbook.sampling import Request, Sampled, Sampler, SamplingSpec
from markbook.seeding import permutation, seed_of
from markbook.tasks import Task
from markbook.template import Template, decode

Progress = Callable[[int, int], None]
"""Called with (completions finished, completions asked for)."""


@dataclass
class Clock:
    """Wall-clock of a step by phase, in seconds, and the tokens of each."""

    sampling_s: float = 0.0
    marking_s: float = 0.0
    training_s: float = 0.0
    sampled_tokens: int = 0
    trained_tokens: int = 0

    def timings(self) -> dict[str, float]:
        """Return seconds and rates by name; a phase that took no time has no rate."""
        values = {
            "seconds_sampling": self.sampling_s,
            "seconds_marking": self.marking_s,
            "seconds_training": self.training_s,
        }
        rates = {
            "tokens_per_s_sampling": (self.sampled_tokens, self.sampling_s),
            "tokens_per_s_marking": (self.sampled_tokens, self.marking_s),
            "tokens_per_s_training": (self.trained_tokens, self.training_s),
        }
        return values | {name: n / s for name, (n, s) in rates.items() if s > 0}


@dataclass(frozen=True)
class Classroom:
    """All that turns problems into marked completions, whatever the step."""

    task: Task
    template: Template
    tokenizer: PreTrainedTokenizerBase
    end_token_ids: frozenset[int]
    sampler: Sampler
    spec: SamplingSpec
    weights: dict[str, float]
    """Reward weights by component."""

    def sample_groups(
        self,
        problems: Sequence[Problem],
        seeds: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        policy_version: int,
        clock: Clock,
        progress: Progress | None = None,
        draw: int = 0,
        first_index: int = 0,
    ) -> list[Group]:
        """Sample and mark one group a problem; `seeds` has one seed a completion.

        Each completion is marked as soon as it is finished. Groups come in the problems' order
        and completions in the seeds', however the sampler was scheduled.
        """
        prompts = [self.template.render(self.task.prompt(problem))[1] for problem in problems]
        requests = [
            Request(ids, tuple(own), max_tokens) for ids, own in zip(prompts, seeds, strict=True)
        ]
        total = sum(map(len, seeds))
        marked: dict[tuple[int, int], tuple[Completion, Verdict]] = {}
        begun, marking_before = time.perf_counter(), clock.marking_s
        for sampled in self.sampler.sample(requests, self.spec):
            problem = problems[sampled.request_index]
            completion = self._completion(sampled, policy_version)
            verdict = mark_safely(self.task, problem, completion)
            clock.marking_s += verdict.seconds
            clock.sampled_tokens += len(completion.token_ids)
            marked[sampled.request_index, sampled.sample_index] = (completion, verdict)
            if progress is not None:
                progress(len(marked), total)
        clock.sampling_s += time.perf_counter() - begun - (clock.marking_s - marking_before)
        if len(marked) != total:
            raise RunStopped(f"the sampler gave {len(marked)} of {total} completions back")
        groups = []
        for index, problem in enumerate(problems):
            pairs = [marked[index, sample] for sample in range(len(seeds[index]))]
            verdicts = tuple(verdict for _, verdict in pairs)
            groups.append(
                Group(
                    problem=problem,
                    prompt_ids=prompts[index],
                    completions=tuple(completion for completion, _ in pairs),
                    verdicts=verdicts,
                    rewards=tuple(reward_of(verdict, self.weights) for verdict in verdicts),
                    draw=draw,
                    index=first_index + index,
                )
            )
        return groups

    def _completion(self, sampled: Sampled, policy_version: int) -> Completion:
        text = decode(self.tokenizer, sampled.token_ids, self.end_token_ids)
        return Completion(
            token_ids=sampled.token_ids,
            sampler_logprobs=sampled.logprobs,
            finish_reason=sampled.finish_reason,
            policy_version=policy_version,
            sample_index=sampled.sample_index,
            text=self.template.prefill + text,
        )


def mark_safely(task: Task, problem: Problem, completion: Completion) -> Verdict:
    """Mark a completion; a task that raises makes it unscorable, with the exception as reason.

    Nothing is known about such a completion, so it gets no reward at all, not a reward of 0. It
    is counted, and too many of them stop the run.
    """
    begun = time.perf_counter()
    try:
        verdict = task.mark(problem, completion)
    except Exception as error:  # a user's rule may raise anything; it is told, never hidden
        frame = traceback.extract_tb(error.__traceback__)[-1]
        verdict = Verdict(
            status="unscorable",
            extracted=None,
            reason=f"marking raised {type(error).__name__}: {error} "
            f"({Path(frame.filename).name}:{frame.lineno})",
            seconds=time.perf_counter() - begun,
        )
    if not is_well_formed(verdict):
        raise MarkbookError(
            f"task {task.name}: mark() returned {verdict!r:.300} for problem {problem.id}; it must "
            "return a Verdict with a known status, texts, and components that are numbers."
        )
    return verdict


def is_well_formed(verdict: object) -> bool:
    """Say whether what a user's `mark` returned is a verdict with fields of the right types."""
    return (
        isinstance(verdict, Verdict)
        and verdict.status in get_args(Status)
        and isinstance(verdict.extracted, str | None)
        and isinstance(verdict.reason, str)
        and all(
            isinstance(name, str) and isinstance(value, int | float)
            for name, value in verdict.components.items()
        )
        and all(isinstance(step, bool) for step in verdict.step_verdicts)
    )


def reward_of(verdict: Verdict, weights: dict[str, float]) -> float:
    """Return the weighted sum of a verdict's components; NaN where it is unscorable.

    Raises `MarkbookError` where a component that has a weight is missing or not finite.
    """
    if verdict.status == "unscorable":
        return math.nan
    total = 0.0
    for name, weight in weights.items():
        value = verdict.components.get(name, math.nan)
        if not math.isfinite(value):
            raise MarkbookError(
                f"the verdict {dict(verdict.components)} has no finite component {name!r}, which "
                "reward.weights asks for; mend the task's mark() or the weights."
            )
        total += weight * value
    return total


@dataclass
class Rollout:
    """What one step sampled."""

    step: int
    policy_version: int
    max_tokens: int
    position: int
    """Place in the stream of shuffled epochs of the first problem drawn."""
    next_position: int
    """Place of the next one to draw."""
    groups: list[Group] = field(default_factory=list)
    advantages: list[list[float] | None] = field(default_factory=list)
    """One list a group, aligned with its completions, NaN for an unscorable one; None where the
    group is left out of the update."""
    draws: int = 0
    """How many times problems were drawn; over 1 only where groups were resampled."""


def problem_at(problems: Sequence[Problem], position: int, seed: int) -> tuple[int, Problem]:
    """Return (epoch, problem) at a position of the endless stream of shuffled epochs."""
    epoch, place = divmod(position, len(problems))
    return epoch, problems[_epoch_order(seed, epoch, len(problems))[place]]


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, size: int) -> list[int]:
    return permutation(seed_of(seed, "order", epoch), size)


def collect(
    classroom: Classroom,
    problems: Sequence[Problem],
    recipe: RolloutRecipe,
    normalize: Normalization,
    rollout: Rollout,
    *,
    seed: int,
    clock: Clock,
    progress: Progress | None = None,
) -> Rollout:
    """Fill an empty rollout with the groups of its step and their advantages; return it.

    With `uninformative = "resample"`, further problems are drawn until `problems_per_step` groups
    teach something or `max_draws` is reached; all groups stay in the rollout, the ones left out
    with advantages None, so that the ledger shows them and the metrics count them.

    Raises `RunStopped` where too many completions were unscorable.
    """
    wanted = recipe.problems_per_step
    while wanted > 0 and rollout.draws < recipe.max_draws:
        places = range(rollout.next_position, rollout.next_position + wanted)
        drawn = [problem_at(problems, place, seed) for place in places]
        groups = classroom.sample_groups(
            [problem for _, problem in drawn],
            [
                [
                    seed_of(seed, "sample", rollout.step, epoch, problem.id, i)
                    for i in range(recipe.group_size)
                ]
                for epoch, problem in drawn
            ],
            max_tokens=rollout.max_tokens,
            policy_version=rollout.policy_version,
            clock=clock,
            progress=progress,
            draw=rollout.draws,
            first_index=len(rollout.groups),
        )
        keep = recipe.uninformative == "keep"
        rollout.groups += groups
        rollout.advantages += [advantages_of(g, normalize, keep_uninformative=keep) for g in groups]
        rollout.draws += 1
        rollout.next_position += wanted
        wanted = 0
        if recipe.uninformative == "resample":
            used = sum(values is not None for values in rollout.advantages)
            wanted = recipe.problems_per_step - used
    _check_unscorable(rollout.groups, recipe.max_unscorable_share, rollout.step)
    return rollout


def advantages_of(
    group: Group, normalize: Normalization, *, keep_uninformative: bool
) -> list[float] | None:
    """Return a group's advantages, NaN where a completion is unscorable.

    None leaves the group out: it has fewer than two scorable completions to compare, or it
    teaches nothing and such groups are not kept.
    """
    scorable = [i for i, reward in enumerate(group.rewards) if not math.isnan(reward)]
    if len(scorable) < 2:
        return None
    rewards = torch.tensor([group.rewards[i] for i in scorable], dtype=torch.float64)
    if not keep_uninformative and teaches_nothing(rewards):
        return None
    values = [math.nan] * len(group.rewards)
    for i, value in zip(scorable, group_advantages(rewards, normalize).tolist(), strict=True):
        values[i] = value
    return values


def _check_unscorable(groups: Sequence[Group], budget: float, step: int) -> None:
    verdicts = [verdict for group in groups for verdict in group.verdicts]
    reasons = [verdict.reason for verdict in verdicts if verdict.status == "unscorable"]
    if len(reasons) > budget * len(verdicts):
        raise RunStopped(
            f"step {step}: {len(reasons)} of {len(verdicts)} completions could not be marked, over "
            f"rollout.max_unscorable_share = {budget:g}; the first: {reasons[0]}"
        )
