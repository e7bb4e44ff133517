"""Groups and update reports -> the numbers of one step. Pure: no wall-clock in here.

Unscorable completions are in no denominator but their own share's. A number that does not exist
(the mean length of correct completions where none is correct) is None, never 0.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import torch

from markbook.advantage import teaches_nothing
from markbook.policy import UpdateReport
from markbook.records import Completion, Group, Verdict
from markbook.rollout import Rollout

Metrics = dict[str, float | int | None]

REFLECTIVE_WORDS = (
    "wait",
    "mistake",
    "however",
    "but",
    "retry",
    "error",
    "verify",
    "wrong",
    "evaluate",
    "check",
)
"""The words that the R1 paper counts (doi 10.1038/s41586-025-09422-z, extended data fig. 1a)."""


def mean(values: Iterable[float]) -> float | None:
    """Return the mean, or None of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def share(flags: Iterable[bool]) -> float | None:
    """Return the share of True, or None of nothing."""
    return mean(flags)


def count_words(text: str, words: Sequence[str]) -> int:
    """Count whole-word occurrences, whatever their case. Counts words, not reflection."""
    if not words:
        return 0
    pattern = r"\b(?:" + "|".join(re.escape(word) for word in words) + r")\b"
    return len(re.findall(pattern, text, flags=re.IGNORECASE))


def mark_metrics(groups: Sequence[Group], words: Sequence[str]) -> Metrics:
    """Return what the marks of these groups say: shares, rewards, lengths, reflective words."""
    every = [
        (completion, verdict, reward)
        for group in groups
        for completion, verdict, reward in zip(
            group.completions, group.verdicts, group.rewards, strict=True
        )
    ]
    scored = [(c, v, r) for c, v, r in every if v.status != "unscorable"]
    rewards = [reward for _, _, reward in scored]
    metrics: Metrics = {
        "num_groups": len(groups),
        "num_completions": len(every),
        "correct_share": share(v.status == "correct" for _, v, _ in scored),
        "no_answer_share": share(v.status == "no_answer" for _, v, _ in scored),
        "truncated_share": share(c.finish_reason == "truncated" for c, _, _ in scored),
        "unscorable_share": share(v.status == "unscorable" for _, v, _ in every),
        "reward_mean": mean(rewards),
        "reward_std": _std(rewards),
    }
    for name in sorted({name for _, v, _ in scored for name in v.components}):
        values = [v.components[name] for _, v, _ in scored if name in v.components]
        metrics[f"{name}_mean"] = mean(values)
        if name == "format":
            metrics["format_share"] = share(value == 1 for value in values)
    metrics |= _group_shares(groups)
    metrics |= _lengths([(c, v) for c, v, _ in scored])
    texts = [c.text for c, _, _ in scored]
    metrics["reflective_words_mean"] = mean(count_words(text, words) for text in texts)
    for word in words:
        metrics[f"reflective_word_{word}"] = sum(count_words(text, [word]) for text in texts)
    return metrics


def _std(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return float(torch.tensor(values, dtype=torch.float64).std(correction=0))


def _group_shares(groups: Sequence[Group]) -> Metrics:
    """Shares of groups that are all correct, all wrong, or equal in reward."""
    statuses = [[v.status for v in g.verdicts if v.status != "unscorable"] for g in groups]
    rewards = [[r for r in g.rewards if not math.isnan(r)] for g in groups]
    known = [s for s in statuses if s]
    return {
        "all_correct_share": share(all(s == "correct" for s in one) for one in known),
        "all_wrong_share": share(all(s != "correct" for s in one) for one in known),
        "uninformative_share": share(
            teaches_nothing(torch.tensor(r, dtype=torch.float64)) for r in rewards if r
        ),
    }


def _lengths(scored: Sequence[tuple[Completion, Verdict]]) -> Metrics:
    """Completion lengths in tokens, the end token included."""
    sizes = [(len(c.token_ids), c.finish_reason, v.status) for c, v in scored]
    return {
        "completion_tokens_mean": mean(n for n, _, _ in sizes),
        "completion_tokens_max": max((n for n, _, _ in sizes), default=None),
        "completion_tokens_correct_mean": mean(n for n, _, s in sizes if s == "correct"),
        "completion_tokens_incorrect_mean": mean(n for n, _, s in sizes if s != "correct"),
        "completion_tokens_stopped_mean": mean(n for n, f, _ in sizes if f == "stopped"),
    }


def rollout_metrics(rollout: Rollout, words: Sequence[str]) -> Metrics:
    """Return a step's mark metrics, over every completion sampled, and what was left out."""
    used = [values is not None for values in rollout.advantages]
    return mark_metrics(rollout.groups, words) | {
        "draws": rollout.draws,
        "groups_left_out": used.count(False),
        "completions_trained": sum(
            not math.isnan(a) for values in rollout.advantages for a in values or ()
        ),
    }


def update_metrics(report: UpdateReport) -> Metrics:
    """Return what a step's updates did, weighted by tokens; None throughout for no update."""
    tokens = sum(losses.num_tokens for losses in report.losses)
    divergences = [x.kl_sum for x in report.losses if x.kl_sum is not None]
    gaps = torch.cat(report.differences) if report.differences else torch.zeros(0)
    return {
        "updates": len(report.loss),
        "loss": mean(report.loss),
        "grad_norm": mean(report.grad_norm),
        "grad_norm_max": max(report.grad_norm, default=None),
        "learning_rate": report.learning_rate[-1] if report.learning_rate else None,
        "kl_mean": sum(divergences) / tokens if divergences else None,
        "entropy_mean": sum(x.entropy_sum for x in report.losses) / tokens if tokens else None,
        "clip_share": sum(x.clipped_tokens for x in report.losses) / tokens if tokens else None,
        "ratio_min": min((x.ratio_min for x in report.losses), default=None),
        "ratio_max": max((x.ratio_max for x in report.losses), default=None),
        "sampler_policy_gap_mean": float(gaps.mean()) if len(gaps) else None,
        "sampler_policy_gap_max": float(gaps.max()) if len(gaps) else None,
    }


def known(metrics: Mapping[str, float | int | None]) -> dict[str, float]:
    """Return the metrics that have a value, for trackers, which know no None."""
    return {name: float(value) for name, value in metrics.items() if value is not None}
