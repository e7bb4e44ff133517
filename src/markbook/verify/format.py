"""R1-Zero's format rule: are the tags in place, and nothing outside them."""

import re
from collections.abc import Sequence

from markbook.verify.extract import MAX_SECTION_CHARS, answer_section, count_boxes, find_boxes


def check_format(text: str, tags: Sequence[str]) -> tuple[bool, str]:
    r"""Say whether the text keeps the format, and why or why not.

    With tags: each opens and closes exactly once, in the order given, and there is nothing but
    white space before, between and after them. What they hold is not looked at.

    Without tags: there is exactly one `\boxed{...}` after the last `</think>` (or in the whole
    text if there is none), its braces close, and it is not empty. A box inside a box is part of
    the outer one.

    >>> check_format("<think>a</think> <answer>b</answer>", ("think", "answer"))
    (True, 'the format is kept')
    >>> check_format("Well. <think>a</think> <answer>b</answer>", ("think", "answer"))
    (False, 'there is text before <think>')
    """
    fault = _tag_fault(text, tags) if tags else _box_fault(text)
    return (False, fault) if fault else (True, "the format is kept")


def _tag_fault(text: str, tags: Sequence[str]) -> str:
    marker = re.compile("</?(?:" + "|".join(map(re.escape, tags)) + ")>")
    expected = [form.format(tag) for tag in tags for form in ("<{}>", "</{}>")]
    found = marker.findall(text)
    if found != expected:
        for mark in expected:
            count = found.count(mark)
            if count != 1:
                return f"there is no {mark}" if count == 0 else f"there are {count} {mark}"
        return f"the tags are out of order: {' '.join(found)}"
    # With the markers in order, pieces 1, 3, ... are what the tags hold; the rest is outside.
    outside = marker.split(text)[::2]
    if outside[0].strip():
        return f"there is text before {expected[0]}"
    for closing, opening, piece in zip(expected[1::2], expected[2::2], outside[1:-1], strict=False):
        if piece.strip():
            return f"there is text between {closing} and {opening}"
    return f"there is text after {expected[-1]}" if outside[-1].strip() else ""


def _box_fault(text: str) -> str:
    section, _ = answer_section(text, ())
    assert section is not None  # only a missing tag makes it so
    boxes = find_boxes(section[-MAX_SECTION_CHARS:])
    count = count_boxes(section[:-MAX_SECTION_CHARS]) + len(boxes)
    if count != 1:
        return r"there is no \boxed{}" if count == 0 else rf"there are {count} \boxed{{}}"
    if not boxes:
        return rf"there is no \boxed{{}} in the last {MAX_SECTION_CHARS:,} characters"
    if boxes[0].content is None:
        return r"the \boxed{} is never closed"
    return "" if boxes[0].content.strip() else r"the \boxed{} is empty"
