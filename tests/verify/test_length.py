import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.errors import MarkbookError
from markbook.verify import soft_overlong_penalty


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    [(0, 0), (16384, 0), (17408, -0.25), (18432, -0.5), (20480, -1), (20481, -1), (99999, -1)],
)
def test_the_setting_of_dapo(num_tokens: int, penalty: float) -> None:
    assert soft_overlong_penalty(num_tokens, 20480, 4096) == penalty


@given(st.integers(0, 200), st.integers(1, 100), st.integers(1, 100))
def test_it_never_rises_and_steps_by_one_over_the_buffer(num: int, high: int, low: int) -> None:
    maximum, buffer = max(high, low), min(high, low)
    now = soft_overlong_penalty(num, maximum, buffer)
    then = soft_overlong_penalty(num + 1, maximum, buffer)
    inside = maximum - buffer <= num < maximum
    assert now - then == pytest.approx(1 / buffer if inside else 0)


@pytest.mark.parametrize("buffer_tokens", [0, -1, 101])
def test_the_buffer_fits_into_the_maximum(buffer_tokens: int) -> None:
    with pytest.raises(MarkbookError, match="between 1 and max_tokens, 100"):
        soft_overlong_penalty(5, 100, buffer_tokens)
