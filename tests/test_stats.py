"""Statistics against worked numbers, enumeration and simulation."""

import itertools
import statistics

import numpy as np
import pytest

from markbook.stats import bootstrap_interval, optimal_group_size, pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(10, 3, 5, 0.916667), (4, 1, 2, 0.5), (128, 2, 64, 0.751969)]
)
def test_pass_at_k(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=5e-7)


def test_pass_at_k_by_enumeration() -> None:
    for n, c, k in [(5, 0, 2), (5, 2, 1), (5, 2, 3), (5, 5, 5), (6, 1, 6)]:
        marks = [True] * c + [False] * (n - c)
        subsets = list(itertools.combinations(marks, k))
        assert pass_at_k(n, c, k) == pytest.approx(statistics.fmean(map(any, subsets)))


@pytest.mark.parametrize(("n", "c", "k"), [(8, -1, 4), (8, 9, 4), (8, 2, 0), (8, 2, 9)])
def test_pass_at_k_refuses(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"no such case: {c} of {n} correct at k = {k}"):
        pass_at_k(n, c, k)


def test_optimal_group_size() -> None:
    assert optimal_group_size(2, 2048) == 32
    assert optimal_group_size(0.5, 8) == 4
    assert optimal_group_size(1, 0.25) == 0.5
    for bad in [(0, 1), (1, 0), (-1, 1)]:
        with pytest.raises(ValueError, match="variances must be positive"):
            optimal_group_size(*bad)


def test_bootstrap_of_a_constant_is_a_point() -> None:
    assert bootstrap_interval([0.5] * 10, seed=1) == (0.5, 0.5)


def test_bootstrap_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([], seed=1)


def test_bootstrap_is_close_to_the_normal_interval_of_many_values() -> None:
    values = [float(i % 4 == 0) for i in range(400)]
    low, high = bootstrap_interval(values, seed=5)
    error = statistics.pstdev(values) / 20
    assert low == pytest.approx(0.25 - 1.96 * error, abs=0.006)
    assert high == pytest.approx(0.25 + 1.96 * error, abs=0.006)
    narrow = bootstrap_interval(values, seed=5, level=0.5)
    assert narrow[0] == pytest.approx(0.25 - 0.674 * error, abs=0.006)
    assert narrow[1] == pytest.approx(0.25 + 0.674 * error, abs=0.006)


def test_bootstrap_repeats_with_its_seed() -> None:
    values = [0.0, 0.25, 1.0, 0.5]
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, 1, resamples=50) != bootstrap_interval(
        values, 2, resamples=50
    )


def test_bootstrap_defaults_and_plain_numbers() -> None:
    values = np.random.default_rng(1).random(30).tolist()
    interval = bootstrap_interval(values, seed=1)
    assert interval == bootstrap_interval(values, seed=1, level=0.95, resamples=2000)
    assert [type(bound) for bound in interval] == [float, float]


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        low, high = bootstrap_interval(
            generator.random(40).tolist(), seed=trial, level=0.9, resamples=300
        )
        hits += low <= 0.5 <= high
    assert 0.84 < hits / 300 < 0.95
