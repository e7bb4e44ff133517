r"""Where a completion's final answer stands: the answer section, and the last box in it.

The policy, in full:

- With tags, the answer section is what the last `<answer>` (the last of the tags) holds, up to
  its close or the end of the text. One that lies within an earlier tag's `<think>...</think>`
  is part of the reasoning and holds no answer.
- Without tags, it is what follows the last `</think>`, or else the whole text.
- The answer is in the last `\boxed{...}` or `\fbox{...}` of the section's last 100,000
  characters; earlier boxes are taken back by it. White space may stand before the brace, and
  the backslash may be doubled, as in an escaped string. Braces nest; `\{` and `\}` don't count.
- A box inside a box is part of the outer one. Boxes with nothing between them but punctuation,
  `or` and `and` are one answer that lists them all, so no list of guesses passes for its last.
- A last box that is empty or never closes is no answer: nobody knows how it would have gone on.
- `\boxed 5` without braces is only talk of boxing (TeX would box the one character), and so is
  an answer in prose, in bold or on a line of its own: neither is an answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_SECTION_CHARS = 100_000
"""How much of the end of the answer section is searched; bounds the time a text can take."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*+\{")
_BRACE_OR_ESCAPE = re.compile(r"[{}]|\\.", re.DOTALL)
_LISTING = re.compile(r"(?:[\s,;.:!$&/|(){}\[\]\\]|(?:text|q?quad|or|and)(?![A-Za-z]))*+")
_MAX_LISTING_CHARS = 40


@dataclass(frozen=True, slots=True)
class Box:
    """One outermost box: `text[start:end]`, and what it holds, or None if it never closes."""

    start: int
    end: int
    content: str | None


def answer_section(text: str, tags: Sequence[str]) -> tuple[str | None, str]:
    """Return the part of the text that the answer is read from, or None and the reason."""
    if not tags:
        return text.rpartition("</think>")[2], ""
    opening = f"<{tags[-1]}>"
    before, found, after = text.rpartition(opening)
    if not found:
        return None, f"there is no {opening}"
    for tag in tags[:-1]:
        if _is_open(tag, before, after):
            return None, f"the last {opening} is inside <{tag}>"
    return after.partition(f"</{tags[-1]}>")[0], ""


def _is_open(tag: str, before: str, after: str) -> bool:
    """Say whether a `<tag>` before is closed by a `</tag>` after, with no other between."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    until_close, closes, _ = after.partition(closing)
    return opening in before.rpartition(closing)[2] and closes != "" and opening not in until_close


def count_boxes(section: str) -> int:
    r"""Return how often `\boxed{` or `\fbox{` is opened, nested ones included."""
    return len(_BOX.findall(section))


def find_boxes(section: str) -> list[Box]:
    """Return the outermost boxes in order; once one fails to close, it is the last."""
    boxes: list[Box] = []
    at = 0
    while found := _BOX.search(section, at):
        close = closing_brace(section, found.end())
        if close is None:
            boxes.append(Box(found.start(), len(section), None))
            break
        at = close + 1
        boxes.append(Box(found.start(), at, section[found.end() : close]))
    return boxes


def closing_brace(section: str, at: int) -> int | None:
    """Return where the brace that opened just before `at` closes, or None if it doesn't."""
    depth = 1
    for found in _BRACE_OR_ESCAPE.finditer(section, at):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
            if depth == 0:
                return found.start()
    return None


def find_answer(text: str, tags: Sequence[str]) -> tuple[str | None, str]:
    r"""Return the final answer of a completion, or None and the reason why there is none.

    >>> find_answer(r"So it is \boxed{5}, no: \boxed{\frac{1}{2}}.", ())
    ('\\frac{1}{2}', '')
    >>> find_answer(r"Either \boxed{5} or \boxed{6}", ())
    ('5, 6', '')
    >>> find_answer(r"<think>\boxed{5}</think>", ("think", "answer"))
    (None, 'there is no <answer>')
    """
    section, reason = answer_section(text, tags)
    if section is None:
        return None, reason
    within = "the text" if not tags else f"<{tags[-1]}>"
    if len(section) > MAX_SECTION_CHARS:
        section = section[-MAX_SECTION_CHARS:]
        within = f"the last {MAX_SECTION_CHARS:,} characters of {within}"
    boxes = find_boxes(section)
    if not boxes:
        return None, rf"there is no \boxed{{}} in {within}"
    if boxes[-1].content is None:
        return None, rf"the last \boxed{{}} in {within} is never closed"
    if not boxes[-1].content.strip():
        return None, rf"the last \boxed{{}} in {within} is empty"
    return ", ".join(_last_listing(section, boxes)), ""


def _last_listing(section: str, boxes: list[Box]) -> list[str]:
    """Return the different contents of the last box and of those that are listed with it."""
    first = len(boxes) - 1
    while first > 0:
        gap = section[boxes[first - 1].end : boxes[first].start]
        if len(gap) > _MAX_LISTING_CHARS or not _LISTING.fullmatch(gap):
            break
        first -= 1
    contents = (box.content.strip() for box in boxes[first:] if box.content is not None)
    return list(dict.fromkeys(content for content in contents if content))
