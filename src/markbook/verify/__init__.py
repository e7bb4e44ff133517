"""Marking by rule: pure functions from text to a verdict."""

from markbook.verify.answer import MarkingRules, can_mark, mark_answer, write_answer
from markbook.verify.format import check_format
from markbook.verify.language import language_consistency
from markbook.verify.length import soft_overlong_penalty
from markbook.verify.numbers import equal_answers

__all__ = [
    "MarkingRules",
    "can_mark",
    "check_format",
    "equal_answers",
    "language_consistency",
    "mark_answer",
    "soft_overlong_penalty",
    "write_answer",
]
