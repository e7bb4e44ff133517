"""(4) Rewards of a group -> advantages: pure functions, an equation each.

An advantage says how much better a completion did than its siblings. It is a plain number: no
gradient flows through it. All arithmetic is float64.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import comb, sqrt
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Normalization: TypeAlias = Literal["population", "sample", "none", "leave_one_out"]

EQUAL_REWARDS = 1e-9
"""Rewards that differ by no more than this (relative to the largest, at least absolutely) are
equal: the difference is rounding, and dividing by its deviation would blow it up to +-1."""


def teaches_nothing(rewards: Float[Tensor, " group"]) -> bool:
    """Say whether all rewards of a group are equal, so that every advantage is 0.

    >>> teaches_nothing(torch.tensor([0.3, 0.1 + 0.2], dtype=torch.float64))
    True
    """
    spread = float(rewards.max() - rewards.min())
    return spread <= EQUAL_REWARDS * max(1.0, float(rewards.abs().max()))


def group_advantages(
    rewards: Float[Tensor, " group"], normalize: Normalization = "population"
) -> Float[Tensor, " group"]:
    """Compare each reward with its group's.

    population, sample: `A_i = (r_i - mean(r)) / std(r)`, GRPO's outcome supervision (arXiv
    2402.03300, section 4.1.2), with the deviation over G or over G - 1. none: `A_i = r_i -
    mean(r)` (Dr. GRPO, arXiv 2503.20783). leave_one_out: `A_i = r_i - mean of the others` (RLOO,
    arXiv 2402.14740). Where all rewards are equal, every advantage is 0.

    For rewards [1, 0, 0, 0]: population 1.7321 and -0.5774, sample 1.5 and -0.5, none 0.75 and
    -0.25, leave_one_out 1 and -1/3.

    Raises `ValueError` for fewer than two rewards, which have nothing to be compared with, and
    for rewards that are not finite.
    """
    size = rewards.shape[0]
    if size < 2:
        raise ValueError(f"a group needs at least 2 rewards to compare, got {size}")
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    rewards = rewards.double()
    if teaches_nothing(rewards):
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean()
    if normalize == "none":
        return centred
    if normalize == "leave_one_out":
        return centred * size / (size - 1)
    return centred / rewards.std(correction=0 if normalize == "population" else 1)


def process_advantages(
    step_rewards: Sequence[Sequence[float]], step_ends: Sequence[Sequence[int]]
) -> list[Float[Tensor, " tokens"]]:
    """Turn step rewards into one advantage per token: GRPO's process supervision.

    Source: arXiv 2402.03300, section 4.1.3. All step rewards of the group are normalised
    together, `r~ = (r - mean) / std` (population); a token's advantage is the sum of the
    normalised rewards of the steps that end at it or later. `step_ends` gives the 1-based
    position of each step's last token, rising; a completion's last step ends at its last token.

    For step rewards [.2, .8, .5] ending at 2, 5, 7 and [.9, .1] ending at 3, 6: the first has 0
    for tokens 1 to 2, .9487 for 3 to 5 and 0 for 6 to 7; the second 0 for 1 to 3, -1.2649 after.

    Raises `ValueError` where a completion's rewards and ends differ in number, ends do not rise,
    or the group has fewer than two step rewards in all.
    """
    for rewards, ends in zip(step_rewards, step_ends, strict=True):
        if len(rewards) != len(ends):
            raise ValueError(f"{len(rewards)} step rewards but {len(ends)} step ends")
        if any(later <= earlier for earlier, later in pairwise([0, *ends])):
            raise ValueError(f"step ends must rise from 1 on, got {list(ends)}")
    flat = torch.tensor([r for rewards in step_rewards for r in rewards], dtype=torch.float64)
    normalized = iter(group_advantages(flat, "population").tolist())
    advantages = []
    for ends in step_ends:
        tokens = torch.zeros(ends[-1] if ends else 0, dtype=torch.float64)
        for end in ends:
            tokens[:end] += next(normalized)
        advantages.append(tokens)
    return advantages


def pass_at_k_advantages(num_samples: int, num_correct: int, k: int) -> tuple[float, float]:
    """Return the advantage of a correct and of an incorrect sample when pass@k is the reward.

    Source: pass@k training (arXiv 2508.10751, section 2.4), over all groups of k out of N
    samples, c of them correct: `R = 1 - C(N-c, k) / C(N, k)`, `s = sqrt(R (1 - R))`,
    `A_correct = (1 - R) / s`, `A_incorrect = (1 - R - C(N-c-1, k-1) / C(N-1, k-1)) / s`.
    Both are 0 where every group of k passes or none does.

    >>> [round(a, 6) for a in pass_at_k_advantages(8, 2, 4)]
    [0.522233, -0.174078]

    Raises `ValueError` unless `0 <= num_correct <= num_samples` and `1 <= k <= num_samples`.
    """
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"no such case: {num_correct} of {num_samples} correct at k = {k}")
    num_wrong = num_samples - num_correct
    passes = 1 - comb(num_wrong, k) / comb(num_samples, k)
    if passes in (0.0, 1.0):
        return 0.0, 0.0
    deviation = sqrt(passes * (1 - passes))
    fails_with_it = comb(num_wrong - 1, k - 1) / comb(num_samples - 1, k - 1)
    return (1 - passes) / deviation, (1 - passes - fails_with_it) / deviation


def generalized_advantages(
    rewards: Float[Tensor, " tokens"],
    values: Float[Tensor, " tokens"],
    gamma: float = 1.0,
    lam: float = 0.95,
) -> Float[Tensor, " tokens"]:
    """Return PPO's advantages from a value model: generalised advantage estimation.

    Source: arXiv 1506.02438, eq. 16: `A_t = sum_l (gamma lam)^l d_(t+l)` with
    `d_t = r_t + gamma V_(t+1) - V_t` and `V = 0` after the last token.

    For r = (0, 0, 1), V = (.5, .6, .8), gamma 1: lam .95 gives .4705, .39, .2; lam 1 gives .5,
    .4, .2.
    """
    following = torch.cat([values[1:], values.new_zeros(1)]).double()
    deltas = rewards.double() + gamma * following - values.double()
    advantages = torch.zeros_like(deltas)
    carried = deltas.new_zeros(())
    for t in reversed(range(deltas.shape[0])):
        carried = deltas[t] + gamma * lam * carried
        advantages[t] = carried
    return advantages
