"""The sampled distribution: worked filters, agreement, and draws that follow it."""

import math

import pytest
import torch

from markbook.sampling.distribution import SamplingSpec, draw, entropy, log_distribution

PROBS = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
LOGITS = PROBS.log() + 5


def probs(spec: SamplingSpec, always: torch.Tensor | None = None) -> list[float]:
    return log_distribution(LOGITS, spec, always).exp().tolist()


def test_plain() -> None:
    assert probs(SamplingSpec()) == pytest.approx(PROBS.tolist())


def test_temperature_divides_the_logits() -> None:
    powers = PROBS**2
    assert probs(SamplingSpec(temperature=0.5)) == pytest.approx((powers / powers.sum()).tolist())


def test_top_k_keeps_the_likeliest() -> None:
    assert probs(SamplingSpec(top_k=2)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert probs(SamplingSpec(top_k=9)) == pytest.approx(PROBS.tolist())
    assert probs(SamplingSpec(top_k=1)) == pytest.approx([0, 1, 0, 0])


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert probs(SamplingSpec(top_p=0.65)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert probs(SamplingSpec(top_p=0.75)) == pytest.approx([0, 4 / 9, 3 / 9, 2 / 9])
    assert probs(SamplingSpec(top_p=1e-6)) == pytest.approx([0, 1, 0, 0])


def test_top_p_that_is_reached_exactly_takes_no_more() -> None:
    ordered = log_distribution(LOGITS, SamplingSpec()).exp().sort(descending=True).values
    before = (ordered.cumsum(-1) - ordered).tolist()
    assert probs(SamplingSpec(top_p=before[2])) == pytest.approx([0, 4 / 7, 3 / 7, 0])


def test_min_p_is_relative_to_the_likeliest() -> None:
    assert probs(SamplingSpec(min_p=0.6)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert probs(SamplingSpec(min_p=1)) == pytest.approx([0, 1, 0, 0])


def test_filters_see_the_temperature() -> None:
    hot = SamplingSpec(temperature=100.0, top_p=0.6)
    assert sum(p > 0 for p in probs(hot)) == 3


def test_filters_meet() -> None:
    assert probs(SamplingSpec(top_k=3, top_p=0.65)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert probs(SamplingSpec(top_k=1, top_p=0.95)) == pytest.approx([0, 1, 0, 0])
    assert probs(SamplingSpec(top_k=3, min_p=0.7)) == pytest.approx([0, 4 / 7, 3 / 7, 0])


def test_ties_keep_no_more_than_k() -> None:
    equal = torch.zeros(4)
    kept = log_distribution(equal, SamplingSpec(top_k=2)).exp()
    assert kept.tolist() == pytest.approx([0.5, 0.5, 0, 0])
    many = log_distribution(torch.zeros(1000), SamplingSpec(top_k=10)).exp()
    assert many[:10].tolist() == pytest.approx([0.1] * 10)


def test_a_filter_that_is_off_leaves_the_tail_alone() -> None:
    # In float32 the first token's probability alone is 1, all that a top-p of 1 asks for.
    kept = log_distribution(torch.tensor([0.0, -40.0]), SamplingSpec(min_p=1e-30))
    assert kept[1].item() == pytest.approx(-40)


def test_the_sampled_token_stays_in_the_scorers_set() -> None:
    kept = probs(SamplingSpec(top_k=1), always=torch.tensor(0))
    assert kept == pytest.approx([0.2, 0.8, 0, 0])


def test_rows_are_independent() -> None:
    rows = torch.stack([LOGITS, LOGITS.flip(0)])
    both = log_distribution(rows, SamplingSpec(top_p=0.65), torch.tensor([1, 3]))
    assert both.exp()[0].tolist() == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert both.exp()[1].tolist() == pytest.approx([0, 0.3 / 0.8, 0.4 / 0.8, 0.1 / 0.8])
    rows = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.25, 0.65]], dtype=torch.float64).log()
    relative = log_distribution(rows, SamplingSpec(min_p=0.5)).exp()
    assert relative.tolist()[0] == pytest.approx([0.625, 0.375, 0])
    assert relative.tolist()[1] == pytest.approx([0, 0, 1])


def test_half_precision_logits_are_worked_in_float32() -> None:
    assert log_distribution(LOGITS.bfloat16(), SamplingSpec()).dtype == torch.float32
    assert log_distribution(LOGITS, SamplingSpec()).dtype == torch.float64


def test_whether_a_spec_filters() -> None:
    assert SamplingSpec() == SamplingSpec(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    assert not SamplingSpec(temperature=0.7).filters
    assert SamplingSpec(top_p=0.99).filters
    assert SamplingSpec(top_k=1).filters
    assert SamplingSpec(min_p=0.01).filters


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.09, 0), (0.11, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.999999, 3)],
)
def test_draw_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    tokens, logprobs = draw(PROBS.log()[None], torch.tensor([uniform], dtype=torch.float64))
    assert tokens.tolist() == [token]
    assert logprobs.item() == pytest.approx(math.log(PROBS[token]))


def test_draw_never_takes_a_token_of_probability_zero() -> None:
    logprobs = torch.tensor([[-math.inf, 0.0, -math.inf]]).expand(3, 3)
    uniforms = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(logprobs, uniforms)[0].tolist() == [1, 1, 1]
    # Even a draw that rounding has pushed to 1 stays on a token that can be sampled.
    assert draw(logprobs[:1], torch.tensor([1.0], dtype=torch.float64))[0].tolist() == [1]


def test_draw_gives_each_row_a_token_and_its_logprob() -> None:
    rows = torch.stack([PROBS, PROBS.flip(0), PROBS]).log()
    tokens, logprobs = draw(rows, torch.tensor([0.05, 0.05, 0.95], dtype=torch.float64))
    assert tokens.tolist() == [0, 0, 3]
    assert logprobs.tolist() == pytest.approx([math.log(0.1), math.log(0.2), math.log(0.2)])


def test_draw_does_not_need_a_sum_of_1() -> None:
    uniforms = torch.arange(0.05, 1, 0.1, dtype=torch.float64)
    whole, _ = draw(PROBS.log().expand(10, 4), uniforms)
    half, _ = draw((PROBS / 2).log().expand(10, 4), uniforms)
    assert half.tolist() == whole.tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 3, 3]


def test_draw_keeps_the_share_of_a_tail_that_float32_would_lose() -> None:
    logprobs = torch.tensor([[-1e-8, math.log(1e-8)]])
    assert logprobs.dtype == torch.float32
    assert draw(logprobs, torch.tensor([1 - 5e-9], dtype=torch.float64))[0].tolist() == [1]


def test_draws_follow_the_distribution() -> None:
    uniforms = (torch.arange(10000, dtype=torch.float64) + 0.5) / 10000
    tokens, _ = draw(PROBS.log().float().expand(10000, 4), uniforms)
    counts = torch.bincount(tokens, minlength=4) / 10000
    torch.testing.assert_close(counts.double(), PROBS, atol=2e-4, rtol=0)


def test_entropy() -> None:
    assert entropy(torch.full((4,), 0.25).log()).item() == pytest.approx(math.log(4))
    assert entropy(torch.tensor([0.0, -math.inf])).item() == 0
    expected = -sum(p * math.log(p) for p in PROBS.tolist())
    assert entropy(PROBS.log()).item() == pytest.approx(expected)
    rows = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()
    assert entropy(rows).tolist() == pytest.approx([math.log(2), 0])
