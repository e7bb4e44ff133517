"""What changes while a run goes on: learning rate, longest completion, reference model.

Updates are optimiser steps, counted from 0: update u is the one that u others came before.
"""

import math
from collections.abc import Sequence

from markbook.recipe import OptimizerRecipe


def learning_rate_at(update: int, optimizer: OptimizerRecipe, num_updates: int) -> float:
    """Return the learning rate of one update.

    With w warm-up updates, update u < w takes `(u + 1) / w` of the rate, so that the first moves
    a little and update w - 1 is the first at the full rate. From there, or from update 0 without
    warm-up, `linear` and `cosine` (arXiv 1608.03983, eq. 5) fall to `final_fraction` of the rate,
    which the very last update takes:

        linear: 1 - (1 - f) p        cosine: f + (1 - f) (1 + cos(pi p)) / 2

    where p goes from 0 to 1. A warm-up that is as long as the run, or longer, leaves no decay.

    >>> rule = OptimizerRecipe(learning_rate=8.0, warmup_updates=4, decay="linear")
    >>> [learning_rate_at(u, rule, 8) for u in range(8)]
    [2.0, 4.0, 6.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    """
    warmup, full = optimizer.warmup_updates, optimizer.learning_rate
    if update < warmup:
        return full * (update + 1) / warmup
    begin, last = max(0, warmup - 1), num_updates - 1
    done = min(1.0, (update - begin) / (last - begin)) if last > begin else 0.0
    final = optimizer.final_fraction
    if optimizer.decay == "linear":
        return full * (1 - (1 - final) * done)
    if optimizer.decay == "cosine":
        return full * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)
    return full


def max_tokens_at(update: int, pairs: Sequence[tuple[int, int]]) -> int:
    """Return the longest completion at an update, from pairs (from this update on, tokens).

    The pairs rise and begin at update 0, as `recipe.check` makes sure.

    >>> [max_tokens_at(u, ((0, 256), (10, 512))) for u in (0, 9, 10, 11)]
    [256, 256, 512, 512]
    """
    return next(tokens for start, tokens in reversed(pairs) if start <= update)


def refresh_due(before: int, after: int, every: int) -> bool:
    """Say whether the reference is to be replaced after going from `before` to `after` updates.

    It is whenever a multiple of `every` has been reached; 0 keeps the first reference for good.

    >>> [refresh_due(u, u + 1, 3) for u in range(6)]
    [False, False, True, False, False, True]
    >>> refresh_due(0, 16, 0)
    False
    """
    return every > 0 and after // every > before // every
