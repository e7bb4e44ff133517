"""Logits -> the distribution that is sampled. Sampler and scorer both call this, so they agree.

A token's log-prob always means the one under temperature, top-k, top-p and min-p together.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """The one sampling specification of a run; see the recipe's `[rollout]` table."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def filters(self) -> bool:
        """Whether some tokens can be left out, which costs a sort of the vocabulary."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


def log_distribution(
    logits: Float[Tensor, "*rows vocab"],
    spec: SamplingSpec,
    always: Int[Tensor, "*rows"] | None = None,
) -> Float[Tensor, "*rows vocab"]:
    """Return natural log-probabilities in float32 (float64 for float64 logits).

    The logits are divided by the temperature; then only tokens stay that are among the `top_k`
    likeliest, in the smallest set of the likeliest whose probability reaches `top_p`, and at
    least `min_p` times as likely as the likeliest; the rest becomes -inf and what stays sums to
    1. `always` names one token a row that stays in any case: a scorer passes the token that was
    sampled, which rounding or a changed policy may have pushed over the edge of the set.
    """
    scaled = (logits if logits.dtype == torch.float64 else logits.float()) / spec.temperature
    logprobs = torch.log_softmax(scaled, dim=-1)
    if not spec.filters:
        return logprobs
    keep = torch.ones_like(logprobs, dtype=torch.bool)
    if spec.min_p > 0:
        best = logprobs.amax(dim=-1, keepdim=True)
        keep &= logprobs.exp() >= spec.min_p * best.exp()
    if spec.top_k > 0 or spec.top_p < 1:
        sorted_logprobs, order = logprobs.sort(dim=-1, descending=True, stable=True)
        sorted_probs = sorted_logprobs.exp()
        before = sorted_probs.cumsum(dim=-1) - sorted_probs
        stays = before < spec.top_p
        if spec.top_k > 0:
            stays[..., spec.top_k :] = False
        keep &= torch.zeros_like(keep).scatter(-1, order, stays)
    if always is not None:
        keep = keep.scatter(-1, always.unsqueeze(-1), True)
    return torch.log_softmax(logprobs.masked_fill(~keep, -torch.inf), dim=-1)


def draw(
    logprobs: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Draw one token a row by inverting the cumulative distribution at `uniforms` in [0, 1).

    Returns the tokens and their log-probs. One pass over the vocabulary; the cumulative sum is
    float64, so that a large vocabulary's tail keeps its share. A token of probability 0 is never
    drawn.
    """
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    tokens = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    # A product that rounds up to the total lies behind the last token that has probability.
    last = torch.searchsorted(cumulative, total, right=False)
    tokens = torch.minimum(tokens, last)
    return tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1)


def entropy(logprobs: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows"]:
    """Return `-sum p log p` in nats, tokens of probability 0 counting nothing."""
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0.0)).sum(dim=-1)
