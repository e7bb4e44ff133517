"""Sums of digits modulo 10: the smallest task on which reasoning step by step pays.

`7+4+8+5 mod 10` can be answered at once, by one term a step, by two, with a check or without: a
choice of lengths, each with its own chance of being right. Every written step is checked, the
number of terms is the level, and chains longer than any in training are a split of their own.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from markbook.records import Completion, Problem, Verdict
from markbook.seeding import seed_of, uniforms
from markbook.tasks.base import Task

MODULUS = 10

LEVELS: Mapping[str, Mapping[int, int]] = {
    "train": {2: 50, 3: 450, 4: 700, 5: 800},
    "test": {2: 10, 3: 60, 4: 80, 5: 90},
    "longer": {6: 80, 7: 60, 8: 60},
}
"""How many problems of each level, which is the number of terms, a split has."""

REFLECTIVE = ("wait", "check")
"""The words with which a written solution turns back on itself."""

Terms = tuple[int, ...]

_NUMBER = r"[0-9]+"
_SUM = re.compile(rf"(?P<sum>{_NUMBER}(?:\s?\+\s?{_NUMBER})++)(?:\s?=\s?(?P<total>{_NUMBER}))?+")
_TURN = re.compile(rf"\b(?:{'|'.join(REFLECTIVE)})\b", re.IGNORECASE)
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Step:
    """A written sum `terms[0]+terms[1]+... = total`; `end` is the offset just behind it."""

    terms: Terms
    total: int
    end: int


class Chains(Task):
    """Chains of 2 to 5 digits to add modulo 10 in `train` and `test`, of 6 to 8 in `longer`.

    A problem's id is its sum, `7+4+8+5`, and its metadata are `level` and `split`. Whether a
    chain is held out depends on its digits alone, whatever their order, and on nothing else:
    no problem of `test`, and no reordering of one, is in `train`.
    """

    name = "chains"

    def problems(self, split: str) -> Sequence[Problem]:
        """Return the problems of `train`, `test` or `longer`, the easiest level first."""
        return [
            problem_of(terms, split)
            for level, count in LEVELS.get(split, {}).items()
            for terms in _draw_chains(split, level, count)
        ]

    def mark(self, problem: Problem, completion: Completion) -> Verdict:
        """Mark the final answer and the format as every task does, and each written step."""
        verdict = super().mark(problem, completion)
        steps = step_verdicts(parse_terms(problem.id), find_steps(completion.text))
        return dataclasses.replace(verdict, step_verdicts=steps)

    def splits(self) -> tuple[str, ...]:
        """Return `train`, `test` (same levels, held out) and `longer` (out of distribution)."""
        return tuple(LEVELS)


def problem_of(terms: Terms, split: str) -> Problem:
    """Return the problem that asks for the sum of the terms modulo 10."""
    chain = "+".join(map(str, terms))
    return Problem(
        id=chain,
        prompt=f"{chain} mod {MODULUS}",
        answer=str(sum(terms) % MODULUS),
        metadata={"level": len(terms), "split": split},
    )


def parse_terms(chain: str) -> Terms:
    """Return the terms of a problem's id: `7+4` gives (7, 4)."""
    return tuple(int(term) for term in chain.split("+"))


def is_held_out(terms: Terms) -> bool:
    """Say whether a chain belongs to the fifth of all chains that is never trained on."""
    return seed_of("chains", "held out", *sorted(terms)) % 5 == 0


def _draw_chains(split: str, level: int, count: int) -> Iterator[Terms]:
    """Yield different chains of the level from the split's side of the hold-out, at random."""
    seed = np.uint64(seed_of("chains", split, level))
    seen: set[Terms] = set()
    position = 0
    while len(seen) < count:
        positions = np.arange(position, position + level, dtype=np.uint64)
        terms = tuple(int(digit) for digit in 10 * uniforms(seed, positions))
        position += level
        in_split = split == "longer" or is_held_out(terms) == (split == "test")
        if in_split and terms not in seen:
            seen.add(terms)
            yield terms


def find_steps(text: str) -> list[Step]:
    """Return the sums with a result that a text writes out, in order.

    Numbers of more than nine digits are no part of this task, and a sum with one is no step.

    >>> [(step.terms, step.total) for step in find_steps("7+4=1, then 1 + 8 = 9 and 9+5")]
    [((7, 4), 1), ((1, 8), 9)]
    """
    steps = []
    for found in _SUM.finditer(text):
        terms, total = found["sum"].split("+"), found["total"]
        if (
            total is not None
            and max(len(number.strip()) for number in (*terms, total)) <= _MAX_DIGITS
        ):
            steps.append(Step(tuple(map(int, terms)), int(total), found.end()))
    return steps


def step_verdicts(terms: Terms, steps: Iterable[Step]) -> tuple[bool, ...]:
    """Say of each step whether it is right: its sum is exact and it belongs where it stands.

    A step belongs where it stands if it adds the problem's next terms to the total that the
    step before it wrote, or does that step over again, or starts again from the first term. So a
    step after a wrong one can be right, and a true sum about something else can't. Sums are
    compared modulo 10.

    For 7+4+8: `7+4=2, 2+8=0` is wrong, right; `7+4=1, 1+1=2` is right, wrong;
    `7+4=2, wait, 7+4=1, 1+8=9` is wrong, right, right.
    """
    # Where the solution may stand: (total so far, terms used). A step can fit more than one place,
    # as the second 7+6 in `7+6=7, wait, 7+6=3` does for 7+6+6, so all of them are followed.
    start = {(terms[0], 1)}
    before, now = start, start
    verdicts = []
    for step in steps:
        first, *added = step.terms
        places = {
            used
            for total, used in now | before | start
            if (first - total) % MODULUS == 0 and tuple(added) == terms[used : used + len(added)]
        }
        verdicts.append(bool(places) and (sum(step.terms) - step.total) % MODULUS == 0)
        places = places or {used for _, used in now}
        before = {(first, used) for used in places}
        now = {(step.total, used + len(added)) for used in places}
    return tuple(verdicts)


def solution_mode(text: str) -> str:
    """Name the way a solution went: how many terms each step added, `direct` if none is written.

    A `|` stands where a reflective word turns the solution back on itself.

    >>> solution_mode("7+4+8=9, 9+5=4")
    '2-1'
    >>> solution_mode("7+4=2, wait, 7+4=1, 1+8=9")
    '1|1-1'
    >>> solution_mode("It is 4.")
    'direct'
    """
    runs, start = [], 0
    for turn in (*(found.start() for found in _TURN.finditer(text)), len(text)):
        sizes = [len(step.terms) - 1 for step in find_steps(text[start:turn])]
        runs.append("-".join(map(str, sizes)))
        start = turn
    mode = "|".join(runs).strip("|")
    return mode or "direct"
