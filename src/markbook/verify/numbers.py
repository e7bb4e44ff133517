r"""Equality of two answers by rule: exact rational numbers where both are numbers, else tokens.

What is read as a number, all of it exactly and nothing by evaluation:

- integers and decimals, with a sign, leading zeros and thousands separators: `1,234`, `1{,}234`,
  `1\,234` (groups of three only, so `1,2` stays two numbers; a decimal comma is not known);
- fractions `a/b` and `\frac{a}{b}`, mixed numbers `2\frac{1}{2}` and `1 1/4`, repeating decimals
  `0.\overline{3}`, scientific notation `6.02e23` and `3\times 10^{8}` up to `10^{999}`;
- each of them in dollars, in percent, or with a unit: `\$5`, `25\%`, `5\text{ cm}`, `12 hours`,
  `45^\circ`, `15^{\text{th}}`.

The rules of comparison:

- Numbers are equal when their values are, exactly. One exception, for golds that were rounded: a
  gold written as a decimal with at least four significant digits is also met by a fraction or a
  longer decimal that rounds to it (2/3 or 0.66667 for 0.6667, but not for 0.67).
- `25\%` is 0.25, and also 25: the sign may be missing on one side where the number is over 1,
  for nobody would read that as a share. So `0.5` is 50 %, and 0.5 % is not.
- A unit may be missing on one side; two different ones are never equal, nor is one converted.
- `x = 5` and `5` are equal, `x = 5` and `y = 5` aren't; the same for `x \in [0,1]`.
- Everything else is compared token by token (see `latex.tokens`): order counts, values inside
  are exact, `A`, `(A)` and `\text{a}` are the same. Nothing is worked out: `17 \cdot 23` is not
  391, and a list, an alternative or an interval is never equal to a number that it holds.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from markbook.verify.latex import clean, plain, tokens
from markbook.verify.units import split_unit

MAX_ANSWER_CHARS = 1000
"""Longer answers are not compared. With three-digit exponents it bounds every integer."""

_MIN_ROUNDED_DIGITS = 4
_SHOWN_CHARS = 60
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})++|[0-9]++)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]++)?|\.[0-9]++)"
_EXPONENT = r"([+-]?[0-9]{1,3})"
_POWER_OF_TEN = rf"10 ?\^ ?(?:\{{ ?{_EXPONENT} ?\}}|{_EXPONENT})"
_FRACTION_OF = r"\\frac ?\{{ ?({0}) ?\}} ?\{{ ?({0}) ?\}}"

_SIGNED = re.compile(r"([+-]?) ?(.*?) ?(\\?%)?", re.DOTALL)
_WRITTEN_OUT = re.compile(rf"({_DECIMAL})(?: ?[eE]{_EXPONENT})?")
_SCIENTIFIC = re.compile(rf"(?:({_DECIMAL}) ?(?:\\times|\\cdot|\*) ?)?{_POWER_OF_TEN}")
_FRACTION = re.compile(rf"{_FRACTION_OF.format(f'-? ?{_DECIMAL}')}|({_DECIMAL}) ?/ ?({_DECIMAL})")
_MIXED = re.compile(rf"({_INTEGER})(?: ?{_FRACTION_OF.format('[0-9]+')}| ([0-9]+) ?/ ?([0-9]+))")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\overline ?\{ ?([0-9]+) ?\}")
_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|rho|sigma|tau|phi|varphi|psi|omega"
_NAME = rf"(?:\\(?:{_GREEK})|[A-Z]{{2}}|[A-Za-z])(?: ?_ ?\{{? ?[A-Za-z0-9]+ ?\}}?)?"
_NAMED = re.compile(rf"({_NAME}(?: ?\( ?[A-Za-z]+ ?\))?) ?(?:=|\\in(?![A-Za-z])) ?(.+)")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    value: Fraction
    """Exact; of `25\\%` it is 25."""
    percent: bool
    step: Fraction
    """The worth of one unit in the last place written; 0 for a fraction, which is exact."""
    decimal_digits: int
    """Significant digits, if it was written with a decimal point, else 0."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer taken apart: `name = body unit`."""

    name: tuple[str, ...]
    body: tuple[str, ...]
    number: Number | None
    unit: str | None


def equal_answers(prediction: str, gold: str) -> tuple[bool, str]:
    r"""Say whether two answers are equal by the rules of this module, and why or why not.

    Any text is taken, and none raises. Takes well under a millisecond.

    >>> equal_answers(r"\frac{2}{4}", "0.5")
    (True, 'as numbers, \\frac{2}{4} equals 0.5')
    >>> equal_answers("5 or 6", "5")[0], equal_answers("5, 6", "5")[0]
    (False, False)
    """
    for whose, answer in (("gold", gold), ("given", prediction)):
        if fault := answer_fault(answer):
            return False, f"the {whose} answer {fault}"
    given, wanted = _read(prediction), _read(gold)
    shown, target = _shown(prediction), _shown(gold)
    if given.unit and wanted.unit and given.unit != wanted.unit:
        return False, f"the unit of {shown} is not that of {target}"
    if given.name and wanted.name and given.name != wanted.name:
        return False, f"{shown} and {target} name different things"
    if given.number and wanted.number:
        equal = _same_number(given.number, wanted.number)
        return equal, f"as numbers, {shown} {'equals' if equal else 'is not'} {target}"
    equal = given.body == wanted.body
    return equal, f"{shown} {'is written like' if equal else 'is not'} {target}"


def answer_fault(answer: str) -> str | None:
    """Return why an answer can't be compared with anything, as the end of a sentence, or None."""
    if len(answer) > MAX_ANSWER_CHARS:
        return f"has {len(answer):,} characters, more than the {MAX_ANSWER_CHARS:,} that are read"
    return None if _read(answer).body else "is empty"


def parse_number(text: str) -> Number | None:
    r"""Return the number that `text` (see `latex.plain`) is as a whole, or None.

    >>> parse_number(r"-1\frac{1}{2}").value
    Fraction(-3, 2)
    """
    signed = _SIGNED.fullmatch(text)
    assert signed is not None  # every part of it may be empty
    sign, digits, percent = signed.groups()
    read = _read_decimal(digits) or _read_fraction(digits)
    if read is None:
        return None
    value, step, decimal_digits = read
    return Number(-value if sign == "-" else value, percent is not None, step, decimal_digits)


def _read_decimal(text: str) -> tuple[Fraction, Fraction, int] | None:
    """Return value, step and decimal digits of an unsigned decimal or scientific number."""
    found = _WRITTEN_OUT.fullmatch(text) or _SCIENTIFIC.fullmatch(text)
    if not found:
        return None
    mantissa = (found[1] or "1").replace(",", "")
    whole, point, places = mantissa.partition(".")
    exponent = next((group for group in found.groups()[1:] if group), "0")
    step = Fraction(10) ** (int(exponent) - len(places))
    digits = whole + places
    return int(digits) * step, step, len(digits.lstrip("0")) if point else 0


def _read_fraction(text: str) -> tuple[Fraction, Fraction, int] | None:
    """Return value, step 0 and 0 of an unsigned fraction, mixed number or repeating decimal."""
    value: Fraction | None = None
    if found := _FRACTION.fullmatch(text):
        top, bottom = (Fraction(re.sub("[, ]", "", part)) for part in found.groups() if part)
        value = top / bottom if bottom else None
    elif found := _MIXED.fullmatch(text):
        whole, over, under = (int(part.replace(",", "")) for part in found.groups() if part)
        # An improper fraction behind a whole number is a product, or a slip.
        value = whole + Fraction(over, under) if 0 < over < under else None
    elif found := _REPEATING.fullmatch(text):
        start, places, cycle = found.groups()
        once, nines = int(start + places + cycle), 10 ** len(cycle) - 1
        value = Fraction(once - int(start + places or "0"), nines * 10 ** len(places))
    return None if value is None else (value, Fraction(0), 0)


def _same_number(given: Number, gold: Number) -> bool:
    if given.percent != gold.percent:
        share, bare = (given, gold) if given.percent else (gold, given)
        as_written = share.value == bare.value and abs(bare.value) > 1
        return share.value / 100 == bare.value or as_written
    # A decimal of no more places than the gold's is a whole number of its steps away from it.
    rounded = gold.decimal_digits >= _MIN_ROUNDED_DIGITS
    return abs(given.value - gold.value) <= (gold.step / 2 if rounded else 0)


def _read(answer: str) -> _Answer:
    text = clean(answer)
    rest, unit, marked = split_unit(text)
    name, body = _split_name(plain(rest))
    number = parse_number(body)
    if unit and not marked and number is None:
        unit = None
        name, body = _split_name(plain(text))
    if unit == "percent" and number:
        unit, number = None, replace(number, percent=True)
    if unit is None and (r"\$" in answer or answer.count("$") == 1):
        unit = "dollar"
    return _Answer(tokens(name), tokens(body), number, unit)


def _split_name(text: str) -> tuple[str, str]:
    named = _NAMED.fullmatch(text)
    if not named or "=" in named[2]:
        return "", text
    return named[1], named[2]


def _shown(answer: str) -> str:
    text = " ".join(answer.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
