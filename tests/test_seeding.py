"""Seeds: fixed values, independence, and no pattern."""

import numpy as np

from markbook.seeding import permutation, seed_of, uniforms


def test_values_that_must_never_change() -> None:
    """A run of an earlier version must resume with the same draws."""
    assert seed_of(0, "sample", 3, "p-1", 2) == SEED
    draws = uniforms(np.array([1, 2], dtype=np.uint64), np.array([0, 5], dtype=np.uint64))
    assert draws.tolist() == DRAWS
    assert permutation(7, 8) == ORDER


SEED = 7627595139365160881
DRAWS = [0.5665615751722809, 0.346622270411699]
ORDER = [1, 5, 7, 0, 4, 6, 3, 2]


def splitmix64(state: int, number: int) -> int:
    """The published generator by plain integers: the number-th output from a state."""
    mask = 2**64 - 1
    for _ in range(number):
        state = (state + 0x9E3779B97F4A7C15) & mask
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_uniforms_are_splitmix64() -> None:
    assert splitmix64(1234567, 1) == 6457827717110365317  # the generator's published first output
    for seed in (0, 1, 1234567, 2**63 - 1):
        for position in (0, 1, 2, 100):
            got = uniforms(np.uint64(seed), np.array([position], dtype=np.uint64))[0]
            assert got == (splitmix64(seed, position + 1) >> 11) / 2**53


def test_addresses_do_not_collide() -> None:
    addresses = [("a", "bc"), ("ab", "c"), ("abc",), (1, "1"), ("1", 1), (11,), ("11",), (1, 1)]
    assert len({seed_of(*address) for address in addresses}) == len(addresses)
    assert all(0 <= seed_of("x", i) < 2**63 for i in range(1000))
    assert max(seed_of("x", i) for i in range(1000)) > 2**62


def test_neighbouring_seeds_are_unrelated() -> None:
    seeds = np.arange(2000, dtype=np.uint64)
    draws = uniforms(seeds[:, None], np.arange(50, dtype=np.uint64)[None, :])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.005
    assert abs(draws.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.08
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.08


def test_permutation_is_one() -> None:
    assert sorted(permutation(3, 1000)) == list(range(1000))
    assert permutation(3, 1000) != permutation(4, 1000)
    assert permutation(3, 0) == []
    assert {type(index) for index in permutation(3, 10)} == {int}
