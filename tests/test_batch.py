"""Packing: the shift, the mask, the weights, and that nothing is lost."""

import math

import pytest
import torch

from markbook.batch import Sample, minibatches, pack, samples_of
from markbook.records import Completion, Group, Problem, Verdict

A = Sample((5, 6, 7), (1, 2), (-0.5, -0.25), 2.0)
B = Sample((8,), (3, 4, 9), (-1.0, -2.0, -3.0), -1.0)


def test_one_micro_batch_laid_out_by_hand() -> None:
    (batch,) = pack([A, B], 100, "sequence_mean")
    # The longest comes first; the shortest prompt has 1 token, so logits are kept from place 0.
    assert batch.samples == (0, 1)
    assert batch.input_ids.tolist() == [[5, 6, 7, 1, 2], [8, 3, 4, 9, 0]]
    assert batch.num_logits == 5
    assert batch.targets.tolist() == [[6, 7, 1, 2], [3, 4, 9, 0]]
    assert batch.completion_mask.tolist() == [
        [False, False, True, True],
        [True, True, True, False],
    ]
    assert batch.advantages.tolist() == [[0, 0, 2, 2], [-1, -1, -1, 0]]
    assert batch.old_logprobs.tolist() == [[0, 0, -0.5, -0.25], [-1, -2, -3, 0]]
    sixth = pytest.approx(1 / 6)
    assert batch.weights.tolist() == [[0, 0, 0.25, 0.25], [sixth, sixth, sixth, 0]]


def test_prompts_that_all_are_long_keep_fewer_logits() -> None:
    (batch,) = pack([A, Sample((8, 8, 8, 8), (3,), (-1.0,), 1.0)], 100, "token_mean")
    assert batch.samples == (0, 1)
    assert batch.num_logits == 3
    assert batch.targets.tolist() == [[1, 2], [8, 3]]
    assert batch.completion_mask.tolist() == [[True, True], [False, True]]


def test_the_split_respects_the_budget_and_loses_nothing() -> None:
    samples = [Sample((1,) * (i % 3 + 1), (2,) * (i % 5 + 1), (0.0,) * (i % 5 + 1), float(i))
               for i in range(20)]  # fmt: skip
    batches = pack(samples, 16, "token_mean")
    assert len(batches) > 3
    for batch in batches:
        assert batch.input_ids.numel() <= 16
    assert sorted(i for b in batches for i in b.samples) == list(range(20))
    total = sum(float(b.weights.double().sum()) for b in batches)
    assert total == pytest.approx(1, abs=1e-6)
    for batch in batches:
        for row, index in enumerate(batch.samples):
            mask = batch.completion_mask[row]
            assert tuple(batch.targets[row][mask].tolist()) == samples[index].completion_ids
            assert set(batch.advantages[row][mask].tolist()) == {samples[index].advantage}


def test_the_budget_is_reached_exactly() -> None:
    same = [Sample((1, 1), (2, 2), (0.0, 0.0), 1.0)] * 4
    assert [len(b.samples) for b in pack(same, 8, "token_mean")] == [2, 2]
    assert [len(b.samples) for b in pack(same, 7, "token_mean")] == [1, 1, 1, 1]


def test_a_sample_over_the_budget_gets_a_micro_batch_of_its_own() -> None:
    assert [b.samples for b in pack([A, B, A], 2, "token_mean")] == [(0,), (2,), (1,)]


def test_the_constant_reaches_the_weights() -> None:
    (batch,) = pack([A], 100, "constant", 8)
    assert batch.weights.tolist() == [[0.125, 0.125]]
    (batch,) = pack([A], 100, "constant")
    assert batch.weights.tolist() == [[1, 1]]


def test_moving_keeps_everything() -> None:
    (batch,) = pack([A, B], 100, "token_mean")
    moved = batch.to(torch.device("cpu"))
    assert moved.samples == batch.samples
    assert torch.equal(moved.targets, batch.targets)


@pytest.mark.parametrize(("size", "number"), [(8, 4), (10, 4), (3, 4), (0, 2), (5, 1)])
def test_minibatches_divide_evenly_and_lose_nothing(size: int, number: int) -> None:
    samples = [Sample((1,), (i,), (0.0,), 0.0) for i in range(size)]
    parts = minibatches(samples, number, seed=3)
    assert len(parts) == min(number, size)
    sizes = [len(part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert sorted(s.completion_ids[0] for part in parts for s in part) == list(range(size))


def test_minibatches_are_shuffled_by_the_seed() -> None:
    samples = [Sample((1,), (i,), (0.0,), 0.0) for i in range(20)]
    assert minibatches(samples, 2, 1) == minibatches(samples, 2, 1)
    assert minibatches(samples, 2, 1) != minibatches(samples, 2, 2)


def group(ids: list[tuple[int, ...]]) -> Group:
    completions = tuple(
        Completion(i, (-1.0,) * len(i), "stopped", 0, n, "") for n, i in enumerate(ids)
    )
    verdicts = (Verdict("correct", "1", ""),) * len(ids)
    return Group(Problem("p", "q", "1"), (7, 8), completions, verdicts, (1.0,) * len(ids))


def test_samples_leave_out_groups_and_unscorable_completions() -> None:
    groups = [group([(1,), (2, 3)]), group([(4,), (5,)]), group([(6,), (9,)])]
    samples = samples_of(groups, [[1.0, math.nan], None, [0.0, -1.0]])
    assert [s.completion_ids for s in samples] == [(1,), (6,), (9,)]
    assert [s.advantage for s in samples] == [1.0, 0.0, -1.0]
    assert samples[0] == Sample((7, 8), (1,), (-1.0,), 1.0)


def test_samples_refuse_advantages_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="zip"):
        samples_of([group([(1,), (2,)])], [[1.0]])
    with pytest.raises(ValueError, match="zip"):
        samples_of([group([(1,), (2,)])], [])
