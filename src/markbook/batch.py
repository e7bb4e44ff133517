"""(5) Marked groups -> tensors: the only place that packs, shifts and masks.

A model's logits at position t are about the token at t + 1. That shift happens here once: every
per-token tensor of a `MicroBatch` is aligned with the logits that `num_logits` keeps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from markbook.objective import Aggregation, token_weights
from markbook.records import Group
from markbook.seeding import permutation


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion as training sees it."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    """Of each id under the weights that sampled it: the sampler's, or the policy's own."""
    advantage: float
    """Broadcast to every token of the completion (outcome supervision)."""


@dataclass(frozen=True)
class MicroBatch:
    """Completions that go through the model together: rows of prompt + completion, padded right.

    Right padding needs no attention mask: a causal model's real tokens never see what follows.
    `tokens` is the width of every per-token tensor: the positions whose logits are kept, from the
    last token of the shortest prompt on.
    """

    input_ids: Int[Tensor, "rows width"]
    num_logits: int
    """How many of the last positions need logits: `tokens + 1`, the very last being unused."""
    targets: Int[Tensor, "rows tokens"]
    """The token that each kept position's logits are about."""
    completion_mask: Bool[Tensor, "rows tokens"]
    """True where the target is a token of the completion: the only places that count."""
    advantages: Float[Tensor, "rows tokens"]
    weights: Float[Tensor, "rows tokens"]
    """The token's share in the loss of the whole optimiser step (`token_weights`)."""
    old_logprobs: Float[Tensor, "rows tokens"]
    """The denominator of the probability ratio."""
    samples: tuple[int, ...]
    """Which sample each row is, as an index into what was packed."""

    def to(self, device: torch.device) -> "MicroBatch":
        """Return the same batch with its tensors on a device."""
        tensors = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type]  # each value is of its own field


def samples_of(
    groups: Sequence[Group], advantages: Sequence[Sequence[float] | None]
) -> list[Sample]:
    """List the completions that are trained on, in order.

    `advantages` has one sequence a group, aligned with its completions, or None for a group that
    is left out; within a group NaN leaves out a completion (unscorable).
    """
    samples = []
    for group, values in zip(groups, advantages, strict=True):
        for completion, value in zip(group.completions, values or (), strict=values is not None):
            if not math.isnan(value):
                samples.append(
                    Sample(
                        group.prompt_ids,
                        completion.token_ids,
                        completion.sampler_logprobs,
                        value,
                    )
                )
    return samples


def minibatches(samples: Sequence[Sample], number: int, seed: int) -> list[list[Sample]]:
    """Shuffle the samples and divide them into `number` parts whose sizes differ by at most 1.

    Fewer samples than parts give that many parts of one sample; none is ever empty.
    """
    shuffled = [samples[index] for index in permutation(seed, len(samples))]
    number = min(number, len(shuffled))
    bounds = [len(shuffled) * part // number for part in range(number + 1)] if number else []
    return [shuffled[low:high] for low, high in pairwise(bounds)]


def pack(
    samples: Sequence[Sample],
    micro_batch_tokens: int,
    aggregation: Aggregation,
    constant_tokens: int = 1,
) -> list[MicroBatch]:
    """Make one optimiser step's samples into micro-batches of at most that many tokens each.

    Samples are sorted by length, so that little is padded; a single sample longer than the limit
    gets a micro-batch of its own. The weights of all tokens of the step are set here, over all
    its samples, before it is split.
    """
    weights = token_weights([len(s.completion_ids) for s in samples], aggregation, constant_tokens)
    lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in samples]
    order = sorted(range(len(samples)), key=lambda index: (-lengths[index], index))
    batches: list[MicroBatch] = []
    rows: list[int] = []
    for index in order:
        if rows and (len(rows) + 1) * lengths[rows[0]] > micro_batch_tokens:
            batches.append(_stack(samples, weights, rows))
            rows = []
        rows.append(index)
    batches.append(_stack(samples, weights, rows))
    return batches


def _stack(
    all_samples: Sequence[Sample], all_weights: Sequence[float], rows: Sequence[int]
) -> MicroBatch:
    """Pad, shift and mask the samples of one micro-batch."""
    samples, weights = [all_samples[i] for i in rows], [all_weights[i] for i in rows]
    width = max(len(s.prompt_ids) + len(s.completion_ids) for s in samples)
    first = min(len(s.prompt_ids) for s in samples) - 1
    shape = (len(samples), width - 1 - first)
    input_ids = torch.zeros((len(samples), width), dtype=torch.long)
    completion_mask = torch.zeros(shape, dtype=torch.bool)
    advantages, token_weight, logprobs = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for row, (sample, weight) in enumerate(zip(samples, weights, strict=True)):
        ids = (*sample.prompt_ids, *sample.completion_ids)
        input_ids[row, : len(ids)] = torch.tensor(ids)
        begin = len(sample.prompt_ids) - 1 - first
        end = begin + len(sample.completion_ids)
        completion_mask[row, begin:end] = True
        advantages[row, begin:end] = sample.advantage
        token_weight[row, begin:end] = weight
        logprobs[row, begin:end] = torch.tensor(sample.old_logprobs)
    return MicroBatch(
        input_ids=input_ids,
        num_logits=shape[1] + 1,
        targets=input_ids[:, first + 1 :],
        completion_mask=completion_mask,
        advantages=advantages,
        weights=token_weight,
        old_logprobs=logprobs,
        samples=tuple(rows),
    )
