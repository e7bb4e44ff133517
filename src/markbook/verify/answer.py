"""R1-Zero's two rules put together: is the answer right, are the tags in place."""

import re
import unicodedata
from dataclasses import dataclass
from time import perf_counter

from markbook.errors import MarkbookError
from markbook.records import Status, Verdict
from markbook.verify.extract import find_answer
from markbook.verify.format import check_format
from markbook.verify.numbers import answer_fault, equal_answers

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class MarkingRules:
    r"""What a completion must look like and where its answer is read from.

    `tags` must each occur exactly once, in this order, with nothing but white space around
    them; empty means that no tags are asked for, and then the format rule is exactly one closed
    `\boxed{...}`. The answer is read from the last tag's body if there are tags, else from what
    follows the last `</think>`, else from the whole text; within that, the last `\boxed{...}` is
    the final answer. `verify.extract` has the policy in full.

    Raises `MarkbookError` for a tag that is not a plain word, or that is given twice.
    """

    tags: tuple[str, ...] = ("think", "answer")

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not _TAG.fullmatch(tag):
                raise MarkbookError(
                    f"marking.tags has {tag!r}; give each tag as a plain word such as 'think', "
                    "without angle brackets"
                )
        if len(set(self.tags)) < len(self.tags):
            raise MarkbookError(f"marking.tags has {list(self.tags)}; name each tag only once")


def mark_answer(text: str, gold: str, rules: MarkingRules) -> Verdict:
    """Mark a completion's text against a gold answer: components `accuracy` and `format`.

    Both are 0 or 1. `unscorable`, without components, is the verdict only where the gold answer
    itself is empty or too long to be read; `can_mark` finds that out beforehand. Takes any text
    and raises nothing.
    """
    started = perf_counter()
    status: Status
    extracted: str | None = None
    if fault := answer_fault(gold):
        status, reason = "unscorable", f"the gold answer {fault}"
    else:
        extracted, reason = find_answer(text, rules.tags)
        if extracted is None:
            status = "no_answer"
        else:
            equal, reason = equal_answers(extracted, gold)
            status = "correct" if equal else "incorrect"
    components: dict[str, float] = {}
    if status != "unscorable":
        ok, why = check_format(text, rules.tags)
        components = {"accuracy": float(status == "correct"), "format": float(ok)}
        reason = f"{reason}; {why}"
    return Verdict(status, extracted, reason, components, seconds=perf_counter() - started)


def can_mark(gold: str, rules: MarkingRules) -> str | None:
    """Return why this gold answer can't be marked against, in words, or None if it can be.

    A gold answer that is only understood as a piece of text can be; one that would not give full
    marks to itself, written out as the rules ask for, can't.
    """
    if fault := answer_fault(gold):
        return f"the gold answer {fault}"
    for character in gold:
        if character not in "\n\t" and unicodedata.category(character) in {"Cc", "Cs"}:
            return f"the gold answer has the control character U+{ord(character):04X}"
    for tag in (*rules.tags, "think"):
        for mark in (f"<{tag}>", f"</{tag}>"):
            if mark in gold:
                return f"the gold answer has the tag {mark} in it"
    written = write_answer(gold, rules)
    extracted, reason = find_answer(written, rules.tags)
    if extracted != gold.strip():
        return f"the braces of the gold answer don't match, so {reason or 'its box ends early'}"
    verdict = mark_answer(written, gold, rules)
    if any(score < 1 for score in verdict.components.values()):
        return f"the gold answer does not get full marks itself: {verdict.reason}"
    return None


def write_answer(gold: str, rules: MarkingRules) -> str:
    r"""Return a text that `mark_answer` gives full marks for this gold answer.

    >>> write_answer("7", MarkingRules())
    '<think>\nThis is worked out here.\n</think>\n<answer>\\boxed{7}</answer>'
    >>> write_answer("7", MarkingRules(tags=()))
    'The answer is \\boxed{7}.'
    """
    if not rules.tags:
        return rf"The answer is \boxed{{{gold}}}."
    *before, last = rules.tags
    bodies = [f"<{tag}>\nThis is worked out here.\n</{tag}>\n" for tag in before]
    return "".join(bodies) + rf"<{last}>\boxed{{{gold}}}</{last}>"
