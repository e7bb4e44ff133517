"""Statistics of marks: pure functions, an equation and a source each."""

from collections.abc import Sequence
from math import comb, sqrt

import numpy as np

from markbook.seeding import uniforms


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate that at least one of k samples is right.

    `1 - C(n - c, k) / C(n, k)` (arXiv 2107.03374, eq. 1).

    For (n, c, k) = (10, 3, 5), (4, 1, 2), (128, 2, 64): 0.916667, 0.5, 0.751969.

    Raises `ValueError` unless `0 <= num_correct <= num_samples` and `1 <= k <= num_samples`.
    """
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"no such case: {num_correct} of {num_samples} correct at k = {k}")
    return 1 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def optimal_group_size(problem_variance: float, pair_variance: float) -> float:
    """Return the group size that makes the gradient's error least at a fixed sampling budget.

    With `c1 / B + c2 / (B G) + c3 / (B G^2)` for B problems of G samples and B G fixed, the least
    is at `G = sqrt(c3 / c1)`. For c1 = 2, c3 = 2048: 32.

    Raises `ValueError` unless both are positive.
    """
    if not (problem_variance > 0 and pair_variance > 0):
        raise ValueError(f"variances must be positive: {problem_variance}, {pair_variance}")
    return sqrt(pair_variance / problem_variance)


def bootstrap_interval(
    values: Sequence[float], seed: int, level: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of independent values.

    Resample r takes value `floor(n u)` for each of n draws u from `uniforms(seed, r n + i)`; the
    interval is the central `level` of the resampled means. Values are one number a problem, so
    samples of one problem, which are not independent, count as one.

    Raises `ValueError` for no values.
    """
    size = len(values)
    if size == 0:
        raise ValueError("no values to take the mean of")
    array = np.asarray(values, dtype=np.float64)
    means = np.empty(resamples)
    for r in range(resamples):
        positions = np.arange(r * size, (r + 1) * size, dtype=np.uint64)
        means[r] = array[(uniforms(np.uint64(seed), positions) * size).astype(np.int64)].mean()
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
