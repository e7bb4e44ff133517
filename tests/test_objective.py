"""The loss against values worked by hand, analytic gradients, and exact enumeration."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from markbook.advantage import group_advantages
from markbook.objective import clipped_surrogate, k3, loss_report, policy_loss, token_weights


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.5, 1, 1.2),
        (1.5, -1, -1.5),
        (0.5, 1, 0.5),
        (0.5, -1, -0.8),
        (1.1, 2, 2.2),
        (0.9, -2, -1.8),
    ],
)
def test_clip(ratio: float, advantage: float, expected: float) -> None:
    got = clipped_surrogate(torch.tensor(ratio), torch.tensor(float(advantage)), 0.2, 0.2)
    assert got.item() == pytest.approx(expected, abs=1e-6)


def test_clip_bounds_are_separate() -> None:
    high = clipped_surrogate(torch.tensor(1.5), torch.tensor(1.0), 0.2, 0.28)
    low = clipped_surrogate(torch.tensor(0.5), torch.tensor(-1.0), 0.1, 0.28)
    assert high.item() == pytest.approx(1.28)
    assert low.item() == pytest.approx(-0.9)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(5, -1, -3), (2, -1, -2), (5, -2, -6), (5, 1, 1.2), (5, 0.5, 0.6), (0.5, -1, -0.8)],
)
def test_dual_clip_of_3(ratio: float, advantage: float, expected: float) -> None:
    got = clipped_surrogate(
        torch.tensor(float(ratio)), torch.tensor(float(advantage)), 0.2, 0.2, dual_clip=3.0
    )
    assert got.item() == pytest.approx(expected, abs=1e-6)


def test_dual_clip_of_1_is_the_tightest() -> None:
    got = clipped_surrogate(torch.tensor(5.0), torch.tensor(-1.0), 0.2, 0.2, dual_clip=1.0)
    assert got.item() == -1


def test_dual_clip_off_does_not_bound() -> None:
    got = clipped_surrogate(torch.tensor(5.0), torch.tensor(-1.0), 0.2, 0.2, dual_clip=0.0)
    assert got.item() == -5


@pytest.mark.parametrize(("ratio", "expected"), [(1, 0), (2, 0.306853), (0.5, 0.193147)])
def test_k3(ratio: float, expected: float) -> None:
    policy = torch.tensor(-1.3, dtype=torch.float64)
    assert k3(policy, policy + math.log(ratio)).item() == pytest.approx(expected, abs=5e-7)


def test_k3_of_samples_from_the_policy_is_the_divergence() -> None:
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).log()
    expectation = (policy.exp() * k3(policy, reference)).sum()
    divergence = (policy.exp() * (policy - reference)).sum()
    torch.testing.assert_close(expectation, divergence)


def test_gradient_of_k3_with_samples_held_fixed_is_that_of_the_reversed_divergence() -> None:
    logits = torch.tensor([0.4, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).log()
    policy = torch.log_softmax(logits, -1)
    (fixed,) = torch.autograd.grad(
        (policy.detach().exp() * k3(policy, reference)).sum(), logits, retain_graph=True
    )
    (reversed_,) = torch.autograd.grad((reference.exp() * (reference - policy)).sum(), logits)
    torch.testing.assert_close(fixed, reversed_)


@pytest.mark.parametrize(
    ("aggregation", "constant", "expected"),
    [("sequence_mean", 1, 0.0), ("token_mean", 1, -1 / 3), ("constant", 8, -0.125)],
)
def test_aggregation(aggregation: str, constant: int, expected: float) -> None:
    weights = token_weights([2, 4], aggregation, constant)  # type: ignore[arg-type]
    assert 2 * weights[0] * 1 + 4 * weights[1] * -1 == pytest.approx(expected)


@pytest.mark.parametrize(("lengths", "constant"), [([], 1), ([2, 0], 1), ([2], 0)])
def test_aggregation_refuses(lengths: list[int], constant: int) -> None:
    with pytest.raises(ValueError, match="no weights for lengths"):
        token_weights(lengths, "constant", constant)


def test_aggregation_defaults_and_accepts_single_tokens() -> None:
    assert token_weights([1], "constant") == [1]
    assert token_weights([1, 3], "token_mean") == [0.25, 0.25]


MASK = torch.tensor([[True, True, False], [True, True, True]])


def example(shape: tuple[int, int] = (2, 3)) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def logprobs() -> Tensor:
        return -torch.rand(shape, generator=generator, dtype=torch.float64) * 3

    return {
        "policy_logprobs": logprobs(),
        "old_logprobs": logprobs(),
        "reference_logprobs": logprobs(),
        "advantages": torch.randn(shape, generator=generator, dtype=torch.float64),
        "weights": torch.rand(shape, generator=generator, dtype=torch.float64),
        "completion_mask": MASK,
    }


def by_hand(t: dict[str, Tensor], low: float, high: float, beta: float) -> float:
    """The loss by plain Python, token by token (an independent reference)."""
    total = 0.0
    for i, j in itertools.product(range(2), range(3)):
        if not MASK[i, j]:
            continue
        new, old, ref, a, w = (
            float(t[n][i, j])
            for n in (
                "policy_logprobs",
                "old_logprobs",
                "reference_logprobs",
                "advantages",
                "weights",
            )
        )
        rho = math.exp(new - old)
        gain = min(rho * a, min(max(rho, 1 - low), 1 + high) * a)
        total -= w * (gain - beta * (math.exp(ref - new) - (ref - new) - 1))
    return total


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_policy_loss_against_plain_python(beta: float) -> None:
    tensors = example()
    loss = policy_loss(**tensors, clip_low=0.2, clip_high=0.3, kl_coefficient=beta)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(by_hand(tensors, 0.2, 0.3, beta), abs=1e-12)


def test_policy_loss_ignores_what_the_mask_leaves_out() -> None:
    tensors = example()
    before = policy_loss(**tensors, clip_low=0.2, clip_high=0.2, kl_coefficient=0.1)  # type: ignore[arg-type]
    for name in ("policy_logprobs", "old_logprobs", "reference_logprobs", "advantages", "weights"):
        tensors[name] = tensors[name].masked_fill(~MASK, float("nan"))
    policy = tensors["policy_logprobs"].requires_grad_()
    after = policy_loss(**tensors, clip_low=0.2, clip_high=0.2, kl_coefficient=0.1)  # type: ignore[arg-type]
    assert after.item() == before.item()
    after.backward()
    assert policy.grad is not None
    assert bool(torch.isfinite(policy.grad).all())
    assert policy.grad[0, 2] == 0


def test_policy_loss_passes_the_dual_clip_on() -> None:
    one = torch.ones(1, 1)
    loss = policy_loss(
        one * math.log(5.0), one * 0, None, -one, one, one.bool(),
        clip_low=0.2, clip_high=0.2, dual_clip=3.0,
    )  # fmt: skip
    assert loss.item() == pytest.approx(3)


def test_policy_loss_needs_a_reference_for_a_kl() -> None:
    tensors = {**example(), "reference_logprobs": None}
    with pytest.raises(ValueError, match="needs the reference's log-probs"):
        policy_loss(**tensors, clip_low=0.2, clip_high=0.2, kl_coefficient=0.1)  # type: ignore[arg-type]


def test_gradient_is_right_by_finite_differences() -> None:
    tensors = example()
    policy = tensors.pop("policy_logprobs").requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return policy_loss(x, **tensors, clip_low=0.2, clip_high=0.2, kl_coefficient=0.05)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(loss, (policy,))


def test_first_gradient_is_that_of_reinforce() -> None:
    """At ratio 1 the gradient with respect to a token's log-prob is -w A."""
    tensors = example()
    policy = tensors["policy_logprobs"].clone().requires_grad_()
    tensors |= {"policy_logprobs": policy, "old_logprobs": policy.detach()}
    policy_loss(**tensors, clip_low=0.2, clip_high=0.2).backward()  # type: ignore[arg-type]
    expected = torch.where(MASK, -tensors["weights"] * tensors["advantages"], 0.0)
    torch.testing.assert_close(policy.grad, expected)


def test_report_counts() -> None:
    log = torch.tensor([[1.5, 0.5, 9.0], [1.5, 0.5, 1.0]], dtype=torch.float64).log()
    advantages = torch.tensor([[1.0, 1, 1], [-1, -1, 1]], dtype=torch.float64)
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    report = loss_report(
        log, zeros, log + math.log(2), advantages, zeros + 0.5, MASK, clip_low=0.2, clip_high=0.2
    )
    assert report.num_tokens == 5
    assert report.clipped_tokens == 2  # (1.5, +1) and (0.5, -1)
    assert report.kl_sum == pytest.approx(5 * 0.306853, abs=5e-6)
    assert report.entropy_sum == 2.5
    assert (report.ratio_min, report.ratio_max) == pytest.approx((0.5, 1.5))
    dual = loss_report(
        log, zeros, None, advantages, zeros, MASK, clip_low=0.2, clip_high=0.2, dual_clip=1.4
    )
    assert dual.clipped_tokens == 3  # and (1.5, -1)
    assert dual.kl_sum is None


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [(1.2, 1.0, 0), (1.21, 1.0, 1), (1.21, 0.0, 0), (0.8, -1.0, 0), (0.79, -1.0, 1), (0.79, 0, 0)],
)
def test_report_knows_when_the_gradient_is_zero(
    ratio: float, advantage: float, clipped: int
) -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    policy = (one * math.log(ratio)).requires_grad_()
    mask = one.bool()
    report = loss_report(
        policy, one * 0, None, one * advantage, one, mask, clip_low=0.2, clip_high=0.2
    )
    assert report.clipped_tokens == clipped
    if advantage:
        policy_loss(
            policy, one * 0, None, one * advantage, one, mask, clip_low=0.2, clip_high=0.2
        ).backward()
        assert policy.grad is not None
        assert (policy.grad.item() == 0) == bool(clipped)


def test_report_dual_clip_boundary() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    arguments = (one * math.log(3.0), one * 0, None, -one, one, one.bool())
    at = loss_report(*arguments, clip_low=0.2, clip_high=0.2, dual_clip=math.exp(math.log(3.0)))
    below = loss_report(*arguments, clip_low=0.2, clip_high=0.2, dual_clip=2.99)
    positive = loss_report(
        one * math.log(1.1), one * 0, None, one, one, one.bool(),
        clip_low=0.2, clip_high=0.2, dual_clip=1.05,
    )  # fmt: skip
    assert (at.clipped_tokens, below.clipped_tokens, positive.clipped_tokens) == (0, 1, 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "clipped"),
    [(1.1, -1.0, 1.0, 1), (1.1, 0.0, 1.05, 0), (1.1, 0.5, 1.05, 0)],
)
def test_report_of_a_dual_clip_looks_at_the_sign(
    ratio: float, advantage: float, clip: float, clipped: int
) -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    report = loss_report(
        one * math.log(ratio), one * 0, None, one * advantage, one, one.bool(),
        clip_low=0.2, clip_high=0.2, dual_clip=clip,
    )  # fmt: skip
    assert report.clipped_tokens == clipped


def test_report_compares_with_the_old_logprobs() -> None:
    tensors = example()
    weights = tensors.pop("weights")
    report = loss_report(**tensors, entropies=weights, clip_low=0.2, clip_high=0.2)  # type: ignore[arg-type]
    ratios = [
        math.exp(new - old)
        for new, old in zip(
            tensors["policy_logprobs"][MASK].tolist(),
            tensors["old_logprobs"][MASK].tolist(),
            strict=True,
        )
    ]
    assert report.ratio_min == pytest.approx(min(ratios))
    assert report.ratio_max == pytest.approx(max(ratios))


def test_report_holds_plain_numbers_added_up_in_float64() -> None:
    policy = torch.tensor([[-18.5, -2.0, -3.0]])
    reference = torch.tensor([[-1.0, -1.0, -1.0]])
    entropies = torch.tensor([[2.0**24, 1.0, 1.0]])
    report = loss_report(
        policy, policy, reference, entropies, entropies, torch.ones(1, 3, dtype=torch.bool),
        clip_low=0.2, clip_high=0.2,
    )  # fmt: skip
    assert {type(value) for value in vars(report).values()} == {int, float}
    assert type(report.num_tokens) is type(report.clipped_tokens) is int
    assert report.entropy_sum == 2**24 + 2  # float32 can't hold 2**24 + 1
    divergences = k3(policy, reference)
    assert report.kl_sum == sum(divergences[0].tolist()) != float(divergences.sum())


SIZE = 3
REWARD = torch.tensor([1.0, 0.2, 0.0], dtype=torch.float64)


def expected_gradient(normalize: str, group: int) -> Tensor:
    """Sum over every possible group of its probability times the gradient of -loss."""
    logits = torch.tensor([0.3, -0.5, 0.2], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, -1)
    total = torch.zeros(SIZE, dtype=torch.float64)
    for actions in itertools.product(range(SIZE), repeat=group):
        chosen = logprobs[list(actions)]
        advantages = group_advantages(REWARD[list(actions)], normalize)  # type: ignore[arg-type]
        weights = token_weights([1] * group, "sequence_mean")
        loss = policy_loss(
            chosen[:, None],
            chosen.detach()[:, None],
            None,
            advantages[:, None],
            torch.tensor(weights, dtype=torch.float64)[:, None],
            torch.ones(group, 1, dtype=torch.bool),
            clip_low=0.2,
            clip_high=0.2,
        )
        (gradient,) = torch.autograd.grad(-loss, logits, retain_graph=True)
        total += chosen.detach().sum().exp() * gradient
    return total


def true_gradient() -> Tensor:
    """Of the expected reward of one sample."""
    logits = torch.tensor([0.3, -0.5, 0.2], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad((torch.softmax(logits, -1) * REWARD).sum(), logits)
    return gradient


@pytest.mark.parametrize("group", [2, 3, 5])
def test_leave_one_out_is_unbiased_by_exact_enumeration(group: int) -> None:
    got = expected_gradient("leave_one_out", group)
    torch.testing.assert_close(got, true_gradient(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("group", [2, 3, 5])
def test_group_mean_shrinks_by_its_known_factor(group: int) -> None:
    got = expected_gradient("none", group)
    torch.testing.assert_close(got, true_gradient() * (group - 1) / group, atol=1e-12, rtol=0)


@pytest.mark.parametrize("normalize", ["population", "sample"])
def test_dividing_by_the_deviation_is_biased_but_points_uphill(normalize: str) -> None:
    got, true = expected_gradient(normalize, 3), true_gradient()
    cosine = torch.cosine_similarity(got, true, dim=0).item()
    assert 0.9 < cosine < 1 - 1e-6
