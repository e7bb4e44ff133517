"""The nouns of markbook: what a rollout is made of, documented field by field.

Every record is frozen. Nothing in here computes anything beyond what its own fields say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Message: TypeAlias = Mapping[str, str]
"""One chat message: `role` (system, user, assistant) and `content`."""

Prompt: TypeAlias = str | Sequence[Message]
"""What a problem asks: plain text, or chat messages in order."""

FinishReason: TypeAlias = Literal["stopped", "truncated"]
"""Why a completion ended: `stopped`, an end token or stop string was sampled; `truncated`, the
token budget ran out. The sampler says so; it is never guessed from padding."""

Status: TypeAlias = Literal["correct", "incorrect", "no_answer", "unscorable"]
"""`correct` and `incorrect` compare an answer that was found; `no_answer`: none was found;
`unscorable`: the marking itself failed, so nothing is known about the completion."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to solve, with the answer that marks are made against."""

    id: str
    """Unique within its task; every random draw for this problem is seeded with it."""
    prompt: Prompt
    """The question itself, before any template is put around it."""
    answer: str
    """The gold answer, as text. A task's `mark` decides what counts as equal to it."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that is known: `level`, `split`, `source`, a file's other columns."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer, as the sampler produced it."""

    token_ids: tuple[int, ...]
    """The sampled ids, the end token included when one was sampled. These very ids are trained
    on; nothing is tokenised again."""
    sampler_logprobs: tuple[float, ...]
    """Natural log-probability of each id under the distribution it was drawn from (temperature,
    top-p, top-k and min-p included); as long as `token_ids`."""
    finish_reason: FinishReason
    policy_version: int
    """Number of optimiser steps behind the weights that sampled this."""
    sample_index: int
    """Which of its group's samples this is, from 0; part of the seed of its draws."""
    text: str
    """The ids decoded without the end token. Where the prompt's template opens a tag for the
    model (a prefilled `<think>`), that opening is put in front, so that a mark sees the whole."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What marking one completion found out. Correctness, not reward."""

    status: Status
    extracted: str | None
    """The answer that was compared, or None where there was none."""
    reason: str
    """Why this status, in words for a person."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Named scores that rewards are weighted sums of, e.g. `accuracy` and `format`."""
    step_verdicts: tuple[bool, ...] = ()
    """For tasks with checkable steps: is each step right, in order."""
    seconds: float = 0.0
    """Wall-clock that marking took. Kept out of the ledger, which repeats bit for bit."""


@dataclass(frozen=True, slots=True)
class Group:
    """A problem and its marked completions: all that advantages are computed from."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    """The rendered and tokenised prompt that every completion of the group continues."""
    completions: tuple[Completion, ...]
    verdicts: tuple[Verdict, ...]
    """One per completion, in order."""
    rewards: tuple[float, ...]
    """One per completion, in order; NaN where the verdict is `unscorable`."""
    draw: int = 0
    """In which sampling round of its step the group was drawn: 0, or more when resampled."""
    index: int = 0
    """The group's place among all groups of its step; a small task may repeat a problem."""
