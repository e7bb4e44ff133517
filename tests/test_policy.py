"""The policy: scores agree with the sampler, and the gradient does not depend on the split."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from markbook.batch import Sample, pack
from markbook.policy import NonFinite, Policy, UpdateReport
from markbook.recipe import ObjectiveRecipe, OptimizerRecipe
from markbook.sampling import Request, SamplingSpec
from markbook.sampling.local import LocalSampler
from markbook.seeding import seed_of

OPTIMIZER = OptimizerRecipe(learning_rate=1e-2, max_grad_norm=0.0)
NO_KL = ObjectiveRecipe(kl_coefficient=0.0)


def load(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    return model


def make(
    path: Path,
    dtype: torch.dtype = torch.float32,
    optimizer: OptimizerRecipe = OPTIMIZER,
    spec: SamplingSpec = SamplingSpec(),  # noqa: B008
) -> Policy:
    return Policy(load(path, dtype), optimizer, spec)


def sampled(policy: Policy, spec: SamplingSpec = SamplingSpec()) -> list[Sample]:  # noqa: B008
    sampler = LocalSampler(policy.model, None, frozenset({1}))  # type: ignore[arg-type]
    asked = [
        Request(tuple(range(5, 5 + n)), tuple(seed_of(n, i) for i in range(4)), 20)
        for n in (2, 6, 4)
    ]
    found = sorted(sampler.sample(asked, spec), key=lambda s: (s.request_index, s.sample_index))
    return [
        Sample(asked[s.request_index].prompt_ids, s.token_ids, s.logprobs, (-1.0, 0.5, 2.0)[i % 3])
        for i, s in enumerate(found)
    ]


def weights(policy: Policy) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in policy.trained.items()}


def gradient(
    policy: Policy, samples: Sequence[Sample], tokens: int, objective: ObjectiveRecipe
) -> Tensor:
    """The gradient of one optimiser step, as one vector."""
    policy.model.zero_grad()
    for batch in pack(samples, tokens, objective.aggregation):
        loss, _, _ = policy._loss(batch, objective)
        loss.backward()
    grads = [p.grad.flatten() for p in policy.trained.values() if p.grad is not None]
    assert len(grads) == len(policy.trained)
    return torch.cat(grads)


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
@pytest.mark.parametrize(
    "spec", [SamplingSpec(), SamplingSpec(temperature=0.8, top_p=0.9, top_k=30, min_p=0.01)]
)
def test_the_ratio_is_1_and_the_divergence_0_at_the_first_update(
    name: str, spec: SamplingSpec, request: pytest.FixtureRequest
) -> None:
    policy = make(request.getfixturevalue(name), spec=spec)
    policy.refresh_reference()
    report = UpdateReport()
    batches = pack(sampled(policy, spec), 64, "sequence_mean")
    policy.update(batches, ObjectiveRecipe(), 1e-3, report, compare=True)
    assert float(torch.cat(report.differences).max()) < 1e-4
    for losses in report.losses:
        assert losses.ratio_min == pytest.approx(1, abs=1e-4)
        assert losses.ratio_max == pytest.approx(1, abs=1e-4)
        assert losses.kl_sum == 0
        assert losses.clipped_tokens == 0


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_the_gradient_is_the_same_for_every_split_and_order(
    tiny_qwen2: Path, aggregation: str
) -> None:
    policy = make(tiny_qwen2, torch.float64)
    policy.refresh_reference()
    with torch.no_grad():  # move away from the reference, so that the KL has a gradient
        for parameter in policy.trained.values():
            parameter.add_(0.01 * torch.randn_like(parameter))
    objective = ObjectiveRecipe(aggregation=aggregation, kl_coefficient=0.1)  # type: ignore[arg-type]
    samples = sampled(policy)
    whole = gradient(policy, samples, 10**6, objective)
    assert float(whole.abs().max()) > 1e-6
    for tokens in (1, 50, 90):
        split = gradient(policy, samples, tokens, objective)
        torch.testing.assert_close(split, whole, atol=1e-10, rtol=1e-7)
    backwards = gradient(policy, samples[::-1], 90, objective)
    torch.testing.assert_close(backwards, whole, atol=1e-10, rtol=1e-7)


def test_scores_do_not_depend_on_padding(tiny_llama: Path) -> None:
    policy = make(tiny_llama, torch.float64)
    samples = sampled(policy)
    report = UpdateReport()
    together = policy.rescore(samples, 10**6, report)
    alone = [policy.rescore([sample], 1, UpdateReport())[0] for sample in samples]
    for a, b, original in zip(together, alone, samples, strict=True):
        assert a.completion_ids == b.completion_ids == original.completion_ids
        assert a.old_logprobs == pytest.approx(b.old_logprobs, abs=1e-10)
        assert a.old_logprobs == pytest.approx(original.old_logprobs, abs=1e-5)
    gaps = torch.cat(report.differences)
    assert gaps.shape == (sum(len(s.completion_ids) for s in samples),)
    assert float(gaps.max()) < 1e-5


def test_rescoring_with_other_weights_measures_the_gap(tiny_llama: Path) -> None:
    policy = make(tiny_llama)
    samples = sampled(policy)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.5)  # type: ignore[operator]
    report = UpdateReport()
    policy.rescore(samples, 64, report)
    assert float(torch.cat(report.differences).mean()) > 0.01


def test_an_update_moves_the_policy_the_right_way(tiny_llama: Path) -> None:
    policy = make(tiny_llama)
    samples = sampled(policy)
    before = sum(s.advantage * sum(s.old_logprobs) / len(s.old_logprobs) for s in samples)
    policy.update(pack(samples, 64, "sequence_mean"), NO_KL, 1e-3, UpdateReport())
    after = policy.rescore(samples, 64, UpdateReport())
    assert sum(s.advantage * sum(s.old_logprobs) / len(s.old_logprobs) for s in after) > before
    assert policy.updates == 1


def test_a_reference_stays_where_it_was(tiny_qwen2: Path) -> None:
    """With tied embeddings too: the reference's scores do not move with the policy."""
    policy = make(tiny_qwen2)
    policy.refresh_reference()
    (batch,) = pack(sampled(policy), 10**6, "token_mean")
    with torch.no_grad():
        before, _ = policy.score(batch)
        policy_report = UpdateReport()
    policy.update([batch], ObjectiveRecipe(), 1e-2, policy_report)
    with torch.no_grad():
        reference, _ = policy.score(batch, policy.reference)
        now, _ = policy.score(batch)
    torch.testing.assert_close(reference, before)
    assert float((now - before).abs().max()) > 1e-3
    report = UpdateReport()
    policy.update([batch], ObjectiveRecipe(), 0.0, report)
    kl = report.losses[0].kl_sum
    assert kl is not None
    assert kl > 0
    policy.refresh_reference()
    policy.update([batch], ObjectiveRecipe(), 0.0, report)
    assert report.losses[1].kl_sum == 0


def test_a_divergence_without_a_reference_is_an_error(tiny_llama: Path) -> None:
    policy = make(tiny_llama)
    with pytest.raises(ValueError, match="needs a reference"):
        policy.update(
            pack(sampled(policy), 64, "token_mean"), ObjectiveRecipe(), 0.1, UpdateReport()
        )


def test_the_gradient_is_clipped_to_its_norm(tiny_llama: Path) -> None:
    free, bound = (
        make(tiny_llama),
        make(tiny_llama, optimizer=replace(OPTIMIZER, max_grad_norm=1e-3)),
    )
    for policy in (free, bound):
        for group in policy.optimizer.param_groups:
            group["betas"], group["eps"] = (0.0, 0.0), 1.0  # then a step is about lr x gradient
    samples = sampled(free)
    start = weights(free)
    reports = [UpdateReport(), UpdateReport()]
    free.update(pack(samples, 64, "token_mean"), NO_KL, 0.1, reports[0])
    bound.update(pack(samples, 64, "token_mean"), NO_KL, 0.1, reports[1])
    assert reports[0].grad_norm == reports[1].grad_norm  # reported before clipping
    assert reports[0].grad_norm[0] > 1e-2

    def moved(policy: Policy) -> float:
        return float(sum((p - start[n]).square().sum() for n, p in weights(policy).items()) ** 0.5)

    assert moved(bound) == pytest.approx(0.1 * 1e-3, rel=0.01)
    assert moved(free) > 10 * moved(bound)


@pytest.mark.parametrize("what", ["loss", "grad_norm"])
def test_what_is_not_finite_stops_with_the_weights_untouched(tiny_llama: Path, what: str) -> None:
    policy = make(tiny_llama)
    samples = sampled(policy)
    before = weights(policy)
    if what == "loss":
        samples[2] = replace(samples[2], advantage=float("inf"))
    else:
        parameter = next(iter(policy.trained.values()))
        parameter.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(NonFinite, match=f"{what} = (inf|-inf|nan) is not finite") as caught:
        policy.update(pack(samples, 64, "token_mean"), NO_KL, 0.1, UpdateReport())
    assert caught.value.metric == what
    assert caught.value.batches
    assert policy.updates == 0
    for name, value in weights(policy).items():
        assert torch.equal(value, before[name])


def test_small_steps_are_not_lost_in_bfloat16(tiny_llama: Path) -> None:
    """Steps of a millionth of the weights: each vanishes in bfloat16, a hundred must not."""
    policy = make(tiny_llama, torch.bfloat16)
    start = {n: m.clone() for n, m in policy.masters.items()}
    samples = sampled(policy)
    for _ in range(40):
        policy.update(pack(samples, 64, "token_mean"), NO_KL, 1e-5, UpdateReport())
    name = "model.layers.0.mlp.up_proj.weight"
    travelled = (policy.masters[name] - start[name]).abs().mean()
    assert float(travelled) > 1e-4
    assert policy.trained[name].dtype == torch.bfloat16
    torch.testing.assert_close(policy.trained[name], policy.masters[name].bfloat16())
    assert float((policy.trained[name] != start[name].bfloat16()).float().mean()) > 0.1


def test_state_goes_round(tiny_llama: Path) -> None:
    """A restored policy goes on bit for bit."""
    first, second = make(tiny_llama), make(tiny_llama)
    samples = sampled(first)
    first.refresh_reference()
    for _ in range(2):
        first.update(pack(samples, 64, "token_mean"), ObjectiveRecipe(), 1e-2, UpdateReport())
    state = {name: {n: t.clone() for n, t in tensors.items()} for name, tensors in first.state()}
    import copy

    optimizer = copy.deepcopy(first.optimizer.state_dict())
    second.restore(state["weights"], state["reference"], optimizer, 2)
    reports = [UpdateReport(), UpdateReport()]
    for policy, report in zip((first, second), reports, strict=True):
        policy.update(pack(samples, 64, "token_mean"), ObjectiveRecipe(), 1e-2, report)
    assert reports[0].loss == reports[1].loss
    for (name, a), (_, b) in zip(weights(first).items(), weights(second).items(), strict=True):
        assert torch.equal(a, b), name
    assert second.updates == 3
