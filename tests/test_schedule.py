import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.recipe import OptimizerRecipe
from markbook.schedule import learning_rate_at, max_tokens_at, refresh_due


def rates(num_updates: int, **choices: object) -> list[float]:
    optimizer = OptimizerRecipe(learning_rate=8.0, **choices)  # type: ignore[arg-type]
    return [learning_rate_at(u, optimizer, num_updates) for u in range(num_updates)]


@pytest.mark.parametrize(
    ("num_updates", "choices", "expected"),
    [
        (3, {}, [8, 8, 8]),
        (4, {"warmup_updates": 1}, [8, 8, 8, 8]),
        (4, {"warmup_updates": 2}, [4, 8, 8, 8]),
        (6, {"warmup_updates": 4}, [2, 4, 6, 8, 8, 8]),
        (5, {"decay": "linear"}, [8, 6, 4, 2, 0]),
        (5, {"decay": "linear", "final_fraction": 0.5}, [8, 7, 6, 5, 4]),
        (7, {"decay": "linear", "warmup_updates": 3}, [8 / 3, 16 / 3, 8, 6, 4, 2, 0]),
        (3, {"decay": "cosine"}, [8, 4, 0]),
        # cos(pi / 3) = 1/2, so that a third of the way three quarters are left.
        (4, {"decay": "cosine"}, [8, 6, 2, 0]),
        (3, {"decay": "cosine", "final_fraction": 0.1}, [8, 4.4, 0.8]),
        (1, {"decay": "cosine"}, [8]),
        (1, {"decay": "linear", "warmup_updates": 1}, [8]),
        (4, {"decay": "linear", "warmup_updates": 4}, [2, 4, 6, 8]),
        (2, {"decay": "cosine", "warmup_updates": 4}, [2, 4]),
    ],
)
def test_learning_rates_by_hand(
    num_updates: int, choices: dict[str, object], expected: list[float]
) -> None:
    assert rates(num_updates, **choices) == pytest.approx(expected, abs=1e-12)


def test_an_update_past_the_end_stays_at_the_end() -> None:
    optimizer = OptimizerRecipe(learning_rate=8.0, decay="cosine", final_fraction=0.25)
    assert learning_rate_at(99, optimizer, 10) == pytest.approx(2.0)


@given(
    num_updates=st.integers(1, 60),
    warmup=st.integers(0, 70),
    decay=st.sampled_from(["constant", "linear", "cosine"]),
    final=st.floats(0, 1),
)
def test_rate_climbs_then_falls_within_its_bounds(
    num_updates: int, warmup: int, decay: str, final: float
) -> None:
    values = rates(num_updates, warmup_updates=warmup, decay=decay, final_fraction=final)
    peak = min(max(0, warmup - 1), num_updates - 1)
    assert all(a < b for a, b in pairwise(values[: peak + 1]))
    assert all(a >= b - 1e-12 for a, b in pairwise(values[peak:]))
    assert all(0 <= v <= 8 + 1e-12 for v in values)
    if warmup <= num_updates:
        assert max(values) == pytest.approx(8)
    if decay != "constant" and warmup < num_updates and num_updates > 1:
        assert values[-1] == pytest.approx(8 * final)


def test_max_tokens_by_hand() -> None:
    pairs = ((0, 32_768), (8_200, 65_536))
    updates = (0, 8_199, 8_200, 10_399)
    assert [max_tokens_at(u, pairs) for u in updates] == [32_768, 32_768, 65_536, 65_536]
    assert max_tokens_at(5, ((0, 7),)) == 7
    assert [max_tokens_at(u, ((0, 1), (1, 3), (2, 2))) for u in range(4)] == [1, 3, 2, 2]


def test_refreshes_by_hand() -> None:
    assert [u for u in range(1, 1001) if refresh_due(u - 1, u, 400)] == [400, 800]
    assert refresh_due(0, 16, 16)
    assert not refresh_due(16, 31, 16)
    assert not refresh_due(0, 10**9, 0)
    assert not refresh_due(400, 400, 400)


@given(st.integers(1, 50), st.lists(st.integers(1, 20), max_size=20))
def test_refreshes_never_get_lost_in_strides(every: int, strides: list[int]) -> None:
    """However updates are strided, a stride refreshes exactly if a multiple lies in it."""
    before = 0
    for stride in strides:
        after = before + stride
        inside = any(u % every == 0 for u in range(before + 1, after + 1))
        assert refresh_due(before, after, every) == inside
        before = after


def test_cosine_is_the_formula() -> None:
    value = rates(11, decay="cosine", final_fraction=0.2)[3]
    assert value == pytest.approx(8 * (0.2 + 0.8 * (1 + math.cos(0.3 * math.pi)) / 2))
