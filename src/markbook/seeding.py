"""Seeds and uniform draws as pure functions: every random number has an address.

A seed is a hash of what the draw is for, e.g. (run seed, "sample", step, problem id, sample
index); a sampled token's draw is then a function of that seed and the token's position alone.
So no draw depends on scheduling, batching or what was drawn before it.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def seed_of(*parts: int | str) -> int:
    """Return a 63-bit seed from the parts of a draw's address.

    Parts are joined with their types and lengths, so ("a", "bc") and ("ab", "c"), or 1 and "1",
    give different seeds.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = str(part).encode()
        digest.update(f"{type(part).__name__}:{len(raw)}:".encode() + raw)
    return int.from_bytes(digest.digest(), "big") >> 1


def uniforms(
    seeds: NDArray[np.uint64] | np.uint64, positions: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return one draw from [0, 1) for each (seed, position) pair.

    The SplitMix64 output function (Steele, Lea and Flood, 2014, fig. 17) of
    `seed + (position + 1) * golden`; its upper 53 bits are the fraction, so 1 never occurs.
    `seeds` and `positions` broadcast against each other.
    """
    with np.errstate(over="ignore"):
        z = seeds + (positions + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def permutation(seed: int, size: int) -> list[int]:
    """Return a random order of `range(size)`, the same for the same seed on every machine.

    Sorts by the draws at positions 0 to size - 1, ties by index.
    """
    draws = uniforms(np.uint64(seed), np.arange(size, dtype=np.uint64))
    return [int(index) for index in np.argsort(draws, kind="stable")]
