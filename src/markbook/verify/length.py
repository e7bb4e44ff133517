"""A penalty for completions that come near the longest allowed."""

from markbook.errors import MarkbookError


def soft_overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Return DAPO's soft overlong penalty, between -1 and 0.

    With L the tokens, M the maximum and B the buffer (arXiv 2503.14476 eq. 13):
    0 if L <= M - B; (M - B - L) / B if M - B < L <= M; -1 if L > M.

    M = 20480, B = 4096: 0 at 16384 tokens, -0.5 at 18432, -1 at 20480 and beyond.

    Raises `MarkbookError` unless 1 <= buffer_tokens <= max_tokens.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise MarkbookError(
            f"buffer_tokens is {buffer_tokens}; it must be between 1 and max_tokens, {max_tokens}"
        )
    return -min(max(num_tokens - (max_tokens - buffer_tokens), 0) / buffer_tokens, 1.0)
