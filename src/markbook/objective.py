"""(6) Log-probs, advantages, weights -> loss and statistics: pure functions.

The loss is a weighted sum over tokens. The weights hold the denominators of the whole optimiser
step, so a micro-batch's loss is its own share of the sum, and the gradient is the same for every
split into micro-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Aggregation: TypeAlias = Literal["sequence_mean", "token_mean", "constant"]


def token_weights(
    lengths: Sequence[int], aggregation: Aggregation, constant_tokens: int = 1
) -> list[float]:
    """Return, for each completion of an optimiser step, the weight of each of its tokens.

    sequence_mean: `1 / (N |o_i|)`, GRPO (arXiv 2402.03300, eq. 3). token_mean: `1 / sum |o_i|`,
    DAPO (arXiv 2503.14476, eq. 8). constant: `1 / (N L)`, Dr. GRPO (arXiv 2503.20783).

    With token values A = (1, -1) and lengths (2, 4), the weighted sums are: sequence_mean 0,
    token_mean -1/3, constant with L = 8 -0.125.

    Raises `ValueError` for an empty step, an empty completion, or a constant under 1.
    """
    if not lengths or min(lengths) < 1 or constant_tokens < 1:
        raise ValueError(f"no weights for lengths {list(lengths)}, constant {constant_tokens}")
    number = len(lengths)
    if aggregation == "sequence_mean":
        return [1 / (number * length) for length in lengths]
    if aggregation == "token_mean":
        return [1 / sum(lengths)] * number
    return [1 / (number * constant_tokens)] * number


def clipped_surrogate(
    ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Float[Tensor, "*shape"]:
    """Return PPO's objective per token, to be maximised.

    `min(rho A, clip(rho, 1 - low, 1 + high) A)` (arXiv 1707.06347, eq. 7; separate bounds: DAPO,
    arXiv 2503.14476, eq. 10). With a dual clip c > 1, no less than `c A` where A < 0 (arXiv
    1912.09729, eq. 5); 0 leaves it off.

    With low = high = 0.2, (rho, A) = (1.5, 1), (1.5, -1), (.5, 1), (.5, -1) give 1.2, -1.5, 0.5,
    -0.8; with c = 3, (5, -1) gives -3.
    """
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip > 0:
        bound = torch.maximum(surrogate, dual_clip * advantages)
        surrogate = torch.where(advantages < 0, bound, surrogate)
    return surrogate


def k3(
    policy_logprobs: Float[Tensor, "*shape"], reference_logprobs: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Return the k3 estimate of KL(policy, reference) at samples from the policy.

    `pi_ref / pi - log(pi_ref / pi) - 1`, never negative (arXiv 2402.03300, eq. 4). Its mean over
    samples from the policy is the KL; differentiated with the samples held fixed, as GRPO does,
    it pulls along the gradient of the reversed KL.

    At pi_ref / pi = 1, 2, 0.5: 0, 0.306853, 0.193147.
    """
    log_ratio = reference_logprobs - policy_logprobs
    return torch.expm1(log_ratio) - log_ratio


@dataclass(frozen=True)
class LossReport:
    """Sums over the tokens of a micro-batch, to be added up over a step; no gradients."""

    num_tokens: int
    kl_sum: float | None
    """Of the k3 estimate; None where there is no reference."""
    entropy_sum: float
    clipped_tokens: int
    """Tokens at which the clip is active: the surrogate's gradient there is 0."""
    ratio_min: float
    ratio_max: float


def policy_loss(
    policy_logprobs: Float[Tensor, "rows tokens"],
    old_logprobs: Float[Tensor, "rows tokens"],
    reference_logprobs: Float[Tensor, "rows tokens"] | None,
    advantages: Float[Tensor, "rows tokens"],
    weights: Float[Tensor, "rows tokens"],
    completion_mask: Bool[Tensor, "rows tokens"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
    kl_coefficient: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the loss that these tokens add to an optimiser step (to be minimised).

    `-sum_t w_t (min[rho A, clip(rho) A] - beta k3)` over tokens where the mask is True, with
    `rho = exp(policy - old)` (arXiv 2402.03300, eq. 3). What the other tensors hold where the
    mask is False does not matter, not even if it is not finite.

    Raises `ValueError` where the KL coefficient is not 0 but no reference is given.
    """
    if kl_coefficient and reference_logprobs is None:
        raise ValueError("a KL coefficient needs the reference's log-probs")
    policy = policy_logprobs[completion_mask]
    ratio = torch.exp(policy - old_logprobs[completion_mask])
    gain = clipped_surrogate(ratio, advantages[completion_mask], clip_low, clip_high, dual_clip)
    if reference_logprobs is not None:
        gain = gain - kl_coefficient * k3(policy, reference_logprobs[completion_mask])
    return -(weights[completion_mask] * gain).sum()


def loss_report(
    policy_logprobs: Float[Tensor, "rows tokens"],
    old_logprobs: Float[Tensor, "rows tokens"],
    reference_logprobs: Float[Tensor, "rows tokens"] | None,
    advantages: Float[Tensor, "rows tokens"],
    entropies: Float[Tensor, "rows tokens"],
    completion_mask: Bool[Tensor, "rows tokens"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> LossReport:
    """Count what happened at the tokens where the mask is True.

    A clip is active where `A > 0 and rho > 1 + high`, or `A < 0 and rho < 1 - low`, or, with a
    dual clip c, `A < 0 and rho > c`.
    """
    with torch.no_grad():
        policy, signs = policy_logprobs[completion_mask], advantages[completion_mask]
        ratio = torch.exp(policy - old_logprobs[completion_mask])
        clipped = ((signs > 0) & (ratio > 1 + clip_high)) | ((signs < 0) & (ratio < 1 - clip_low))
        if dual_clip > 0:
            clipped |= (signs < 0) & (ratio > dual_clip)
        divergence = None
        if reference_logprobs is not None:
            divergence = float(k3(policy, reference_logprobs[completion_mask]).double().sum())
        return LossReport(
            num_tokens=int(completion_mask.sum()),
            kl_sum=divergence,
            entropy_sum=float(entropies[completion_mask].double().sum()),
            clipped_tokens=int(clipped.sum()),
            ratio_min=float(ratio.min()),
            ratio_max=float(ratio.max()),
        )
