"""Advantages against values worked by hand, an independent reference, and invariances."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from markbook.advantage import (
    generalized_advantages,
    group_advantages,
    pass_at_k_advantages,
    process_advantages,
    teaches_nothing,
)

rewards_lists = st.lists(
    st.floats(-100, 100, allow_nan=False, allow_infinity=False), min_size=2, max_size=20
)


@pytest.mark.parametrize(
    ("normalize", "right", "wrong"),
    [
        ("population", 1.7320508, -0.5773503),
        ("sample", 1.5, -0.5),
        ("leave_one_out", 1.0, -1 / 3),
        ("none", 0.75, -0.25),
    ],
)
def test_one_right_of_four(normalize: str, right: float, wrong: float) -> None:
    advantages = group_advantages(torch.tensor([1.0, 0, 0, 0]), normalize)  # type: ignore[arg-type]
    assert advantages.tolist() == pytest.approx([right, wrong, wrong, wrong], abs=1e-6)
    assert advantages.dtype == torch.float64


def test_one_right_of_sixteen() -> None:
    rewards = torch.zeros(16)
    rewards[3] = 1
    advantages = group_advantages(rewards)
    assert advantages[3].item() == pytest.approx(3.8730, abs=5e-5)
    assert advantages[0].item() == pytest.approx(-0.2582, abs=5e-5)


@given(rewards_lists)
def test_agrees_with_the_statistics_module(rewards: list[float]) -> None:
    if max(rewards) - min(rewards) < 1e-3:
        return
    mean = statistics.fmean(rewards)
    for normalize, deviation in (
        ("population", statistics.pstdev(rewards)),
        ("sample", statistics.stdev(rewards)),
        ("none", 1.0),
    ):
        expected = [(r - mean) / deviation for r in rewards]
        got = group_advantages(torch.tensor(rewards, dtype=torch.float64), normalize)  # type: ignore[arg-type]
        assert got.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(rewards_lists)
def test_leave_one_out_is_the_distance_from_the_mean_of_the_others(rewards: list[float]) -> None:
    if max(rewards) - min(rewards) < 1e-3:
        return
    got = group_advantages(torch.tensor(rewards, dtype=torch.float64), "leave_one_out").tolist()
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        assert got[i] == pytest.approx(reward - statistics.fmean(others), rel=1e-9, abs=1e-9)


def test_a_shift_and_a_scale_of_the_rewards_change_nothing_when_divided() -> None:
    rewards = torch.tensor([2.0, 0.5, 0, 1])
    torch.testing.assert_close(group_advantages(rewards * 3 + 7), group_advantages(rewards))


@pytest.mark.parametrize("normalize", ["population", "sample", "none", "leave_one_out"])
def test_equal_rewards_teach_nothing(normalize: str) -> None:
    rewards = torch.tensor([0.3, 0.1 + 0.2, 0.3], dtype=torch.float64)
    assert rewards[0] != rewards[1]
    advantages = group_advantages(rewards, normalize)  # type: ignore[arg-type]
    assert advantages.tolist() == [0, 0, 0]
    assert not advantages.signbit().any()  # it is written down as 0.0, not as -0.0


def test_teaches_nothing_has_a_threshold_relative_to_large_rewards() -> None:
    assert teaches_nothing(torch.tensor([1e9, 1e9 + 0.5], dtype=torch.float64))
    assert teaches_nothing(torch.tensor([-1e9, -1e9 - 0.5], dtype=torch.float64))
    assert not teaches_nothing(torch.tensor([1e9, 1e9 + 2], dtype=torch.float64))
    assert not teaches_nothing(torch.tensor([0.0, 2e-9], dtype=torch.float64))
    assert teaches_nothing(torch.tensor([0.0, 1e-9], dtype=torch.float64)) is True
    # It is relative to the largest: here the difference is exactly 1e-9 of it.
    assert teaches_nothing(torch.tensor([1e9 - 1, 1e9], dtype=torch.float64)) is True


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 rewards to compare, got 1"):
        group_advantages(torch.tensor([1.0]))


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rewards must be finite, got \[1.0, nan\]"):
        group_advantages(torch.tensor([1.0, float("nan")]))


def test_process_supervision_worked_example() -> None:
    first, second = process_advantages([[0.2, 0.8, 0.5], [0.9, 0.1]], [[2, 5, 7], [3, 6]])
    assert first.tolist() == pytest.approx([0, 0, 0.9487, 0.9487, 0.9487, 0, 0], abs=5e-5)
    assert second.tolist() == pytest.approx([0, 0, 0, -1.2649, -1.2649, -1.2649], abs=5e-5)


def test_process_supervision_with_one_step_each_is_outcome_supervision() -> None:
    first, second = process_advantages([[1.0], [0.0]], [[2], [3]])
    assert first.tolist() == [1, 1]
    assert second.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("rewards", "ends", "says"),
    [
        ([[1.0], [0.0]], [[2, 3], [3]], "1 step rewards but 2 step ends"),
        ([[1.0, 0.5], [0.0]], [[3, 3], [3]], r"step ends must rise from 1 on, got \[3, 3\]"),
        ([[1.0], [0.0]], [[0], [3]], r"step ends must rise from 1 on, got \[0\]"),
        ([[1.0], []], [[1], []], "at least 2 rewards"),
    ],
)
def test_process_supervision_refuses(
    rewards: list[list[float]], ends: list[list[int]], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        process_advantages(rewards, ends)


def test_process_supervision_refuses_another_number_of_completions() -> None:
    with pytest.raises(ValueError, match="zip"):
        process_advantages([[1.0], [0.0]], [[2]])


def test_process_supervision_gives_a_completion_without_steps_no_tokens() -> None:
    _, empty = process_advantages([[1.0, 0.0], []], [[1, 2], []])
    assert empty.shape == (0,)


def test_pass_at_k_worked_example() -> None:
    right, wrong = pass_at_k_advantages(8, 2, 4)
    assert right == pytest.approx(0.522233, abs=5e-7)
    assert wrong == pytest.approx(-0.174078, abs=5e-7)


def test_pass_at_1_is_the_z_score() -> None:
    right, wrong = pass_at_k_advantages(16, 1, 1)
    assert right == pytest.approx(3.8730, abs=5e-5)
    assert wrong == pytest.approx(-0.2582, abs=5e-5)


@pytest.mark.parametrize("correct", [0, 8])
def test_pass_at_k_without_contrast_teaches_nothing(correct: int) -> None:
    assert pass_at_k_advantages(8, correct, 4) == (0, 0)


def test_pass_at_k_that_always_passes_teaches_nothing() -> None:
    assert pass_at_k_advantages(8, 6, 4) == (0, 0)  # 2 wrong ones can't fill a group of 4


@pytest.mark.parametrize(("n", "c", "k"), [(8, -1, 4), (8, 9, 4), (8, 2, 0), (8, 2, 9)])
def test_pass_at_k_refuses(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"no such case: {c} of {n} correct at k = {k}"):
        pass_at_k_advantages(n, c, k)


def test_pass_at_k_accepts_the_bounds() -> None:
    assert pass_at_k_advantages(8, 1, 8) == (0, 0)
    assert pass_at_k_advantages(1, 1, 1) == (0, 0)


@pytest.mark.parametrize(("lam", "expected"), [(0.95, [0.4705, 0.39, 0.2]), (1, [0.5, 0.4, 0.2])])
def test_generalized_advantages_worked_example(lam: float, expected: list[float]) -> None:
    rewards, values = torch.tensor([0.0, 0, 1]), torch.tensor([0.5, 0.6, 0.8])
    got = generalized_advantages(rewards, values, gamma=1.0, lam=lam)
    assert got.tolist() == pytest.approx(expected, abs=1e-6)


def test_generalized_advantages_by_their_sum() -> None:
    rewards = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64)
    values = torch.tensor([0.1, 0.7, -0.2, 0.4], dtype=torch.float64)
    gamma, lam = 0.9, 0.8
    deltas = [rewards[t] + gamma * (values[t + 1] if t < 3 else 0) - values[t] for t in range(4)]
    expected = [sum((gamma * lam) ** (u - t) * deltas[u] for u in range(t, 4)) for t in range(4)]
    got = generalized_advantages(rewards, values, gamma, lam)
    assert got.tolist() == pytest.approx([float(e) for e in expected], abs=1e-12)
    default = generalized_advantages(rewards, values)
    torch.testing.assert_close(default, generalized_advantages(rewards, values, 1.0, 0.95))


def test_generalized_advantages_of_float32_are_worked_in_float64() -> None:
    rewards, values = torch.tensor([0.1, -0.7, 0.3]), torch.tensor([0.3, 0.6, 0.9])
    got = generalized_advantages(rewards, values, 0.9, 0.8)
    assert (
        got.tolist() == generalized_advantages(rewards.double(), values.double(), 0.9, 0.8).tolist()
    )
