"""The documents the demo's base model is trained on, written as the web writes them.

A document is a problem of the chains task and somebody's solution to it. Solutions differ in
style and length, a tenth of their steps is wrong and the error is carried on, and less than half
of them keep to the form that is asked for. All shares are in the tables below. They were chosen
once to be plausible; none is fitted to the held-out problems, none of which occurs here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random

import jinja2

from markbook.seeding import seed_of
from markbook.tasks.chains import MODULUS, Terms, is_held_out, problem_of
from markbook.template import environment

LEVELS: Mapping[int, float] = {2: 0.20, 3: 0.25, 4: 0.25, 5: 0.30}
"""How often a document's problem has so many terms."""

PRIMER = 0.20
"""The share of documents, read first, that are about sums of two terms, as in a first textbook."""

PRIMER_LEVELS: Mapping[int, float] = {2: 1.0}

STYLES: Mapping[str, float] = {
    "direct": 0.35,
    "one term a step": 0.25,
    "two terms a step": 0.10,
    "mixed steps": 0.10,
    "in words": 0.08,
    "checked": 0.07,
    "corrected": 0.05,
}
"""How the work is written; see `_WORK`."""

FORMATS: Mapping[str, float] = {
    "as asked": 0.40,
    "no tags": 0.20,
    "no answer tag": 0.10,
    "no box": 0.10,
    "unclosed think": 0.05,
    "unclosed answer": 0.05,
    "text after": 0.05,
    "two boxes": 0.03,
    "runs on": 0.02,
}
"""How the finished solution is laid out; see `_LAYOUTS`."""

WRONG_STEP = 0.10
"""The chance that a step's total is off; the solution goes on from the wrong total."""

WRONG_FIRST_TRY = 0.40
"""The same in the style `corrected`, whose writer sees it and does the step over."""


@dataclass(frozen=True, slots=True)
class Document:
    """A rendered prompt and the solution that follows it."""

    prompt: str
    solution: str


def documents(count: int, seed: int) -> Iterator[Document]:
    """Yield the corpus: `count` documents, the same for the same seed; the primer comes first."""
    for index in range(count):
        rng = Random(seed_of(seed, "corpus", index))
        yield _document(rng, PRIMER_LEVELS if index < PRIMER * count else LEVELS)


def mixture() -> dict[str, object]:
    """Return every share that determines the corpus, for the record that a base model keeps."""
    return {
        "primer": PRIMER,
        "primer_levels": dict(PRIMER_LEVELS),
        "levels": dict(LEVELS),
        "styles": dict(STYLES),
        "formats": dict(FORMATS),
        "wrong_step": WRONG_STEP,
        "wrong_first_try": WRONG_FIRST_TRY,
    }


def render_prompt(problem_text: str) -> str:
    """Return the problem as the demo's template `chains.jinja` puts it."""
    return _template().render(problem=problem_text)


@cache
def _template() -> jinja2.Template:
    source = resources.files("markbook") / "templates" / "chains.jinja"
    return environment().from_string(source.read_text(encoding="utf-8"))


def _document(rng: Random, levels: Mapping[int, float]) -> Document:
    terms = _draw_terms(rng, levels)
    work, answer = _WORK[_draw(rng, STYLES)](rng, terms)
    solution = _LAYOUTS[_draw(rng, FORMATS)](rng, work, answer)
    return Document(render_prompt(str(problem_of(terms, "corpus").prompt)), solution)


def _draw(rng: Random, shares: Mapping[str, float]) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]


def _draw_terms(rng: Random, levels: Mapping[int, float]) -> Terms:
    level = rng.choices(list(levels), list(levels.values()))[0]
    while True:
        terms = tuple(rng.randrange(10) for _ in range(level))
        if not is_held_out(terms):
            return terms


# Work: (rng, terms) -> what is written while thinking, and the answer it arrives at.

Work = Callable[[Random, Terms], tuple[str, int]]


def _slip(rng: Random, total: int, chance: float) -> int:
    """Return the total modulo 10 or, with the given chance, one of the nine wrong digits."""
    off = rng.randrange(1, MODULUS) if rng.random() < chance else 0
    return (total + off) % MODULUS


def _steps(rng: Random, terms: Terms, sizes: tuple[int, ...]) -> tuple[list[str], int]:
    """Write the steps of one pass over the terms; each adds as many as a draw from `sizes`."""
    total, used, steps = terms[0], 1, []
    while used < len(terms):
        added = terms[used : used + rng.choice(sizes)]
        written = "+".join(map(str, (total, *added)))
        total = _slip(rng, total + sum(added), WRONG_STEP)
        steps.append(f"{written}={total}")
        used += len(added)
    return steps, total


def _direct(rng: Random, terms: Terms) -> tuple[str, int]:
    answer = _slip(rng, sum(terms), WRONG_STEP)
    return f"it is {answer}", answer


def _one_term(rng: Random, terms: Terms) -> tuple[str, int]:
    steps, answer = _steps(rng, terms, (1,))
    return ", ".join(steps), answer


def _two_terms(rng: Random, terms: Terms) -> tuple[str, int]:
    steps, answer = _steps(rng, terms, (2,))
    return ", ".join(steps), answer


def _mixed(rng: Random, terms: Terms) -> tuple[str, int]:
    steps, answer = _steps(rng, terms, (1, 2))
    return ", ".join(steps), answer


def _in_words(rng: Random, terms: Terms) -> tuple[str, int]:
    steps, answer = _steps(rng, terms, (1,))
    return f"first {', then '.join(steps)}, so it is {answer}", answer


def _checked(rng: Random, terms: Terms) -> tuple[str, int]:
    """Work it twice; what the check finds is the answer."""
    steps, _ = _steps(rng, terms, (1,))
    again, answer = _steps(rng, terms, (1,))
    return f"{', '.join(steps)}, wait, check: {', '.join(again)}", answer


def _corrected(rng: Random, terms: Terms) -> tuple[str, int]:
    """See each slip as soon as it is written, and do that step over."""
    total, steps = terms[0], []
    for term in terms[1:]:
        right = (total + term) % MODULUS
        tried = _slip(rng, right, WRONG_FIRST_TRY)
        steps.append(f"{total}+{term}={tried}")
        if tried != right:
            steps.append(f"wait, {total}+{term}={right}")
        total = right
    return ", ".join(steps), total


_WORK: Mapping[str, Work] = {
    "direct": _direct,
    "one term a step": _one_term,
    "two terms a step": _two_terms,
    "mixed steps": _mixed,
    "in words": _in_words,
    "checked": _checked,
    "corrected": _corrected,
}


# Layouts: (rng, work, answer) -> the whole solution.

Layout = Callable[[Random, str, int], str]


def _as_asked(_: Random, work: str, answer: int) -> str:
    return rf"<think>{work}</think><answer>\boxed{{{answer}}}</answer>"


def _no_tags(rng: Random, work: str, answer: int) -> str:
    return rng.choice((f"{work}. {answer}", rf"{work}. \boxed{{{answer}}}", f"{work}"))


def _no_answer_tag(_: Random, work: str, answer: int) -> str:
    return rf"<think>{work}</think>\boxed{{{answer}}}"


def _no_box(_: Random, work: str, answer: int) -> str:
    return f"<think>{work}</think><answer>{answer}</answer>"


def _unclosed_think(_: Random, work: str, answer: int) -> str:
    return rf"<think>{work}<answer>\boxed{{{answer}}}</answer>"


def _unclosed_answer(_: Random, work: str, answer: int) -> str:
    return rf"<think>{work}</think><answer>\boxed{{{answer}}}"


def _text_after(rng: Random, work: str, answer: int) -> str:
    return _as_asked(rng, work, answer) + rng.choice((" done", f" so it is {answer}"))


def _two_boxes(rng: Random, work: str, answer: int) -> str:
    other = _slip(rng, answer, 0.5)
    return rf"<think>{work}</think><answer>\boxed{{{answer}}} \boxed{{{other}}}</answer>"


def _runs_on(rng: Random, work: str, answer: int) -> str:
    """Go on with the next problem, as a model does that has read pages of them."""
    following = _document(rng, LEVELS)
    return f"{_as_asked(rng, work, answer)}\n{following.prompt}{following.solution}"


_LAYOUTS: Mapping[str, Layout] = {
    "as asked": _as_asked,
    "no tags": _no_tags,
    "no answer tag": _no_answer_tag,
    "no box": _no_box,
    "unclosed think": _unclosed_think,
    "unclosed answer": _unclosed_answer,
    "text after": _text_after,
    "two boxes": _two_boxes,
    "runs on": _runs_on,
}
