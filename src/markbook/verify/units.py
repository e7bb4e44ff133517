r"""Units behind an answer: found, taken off and named in one way. None is converted.

Only the words below are units. Any other word behind a number (`5 million`, `5 or more`,
`5 thirds`) can change what it says, so it stays part of the answer.
"""

import re

_ALIASES = {
    alias: line.split()[0]
    for line in """
        mm millimeter millimetre
        cm centimeter centimetre
        m meter metre
        km kilometer kilometre
        in inch
        ft foot feet
        yd yard
        mi mile
        mg milligram
        g gram
        kg kilogram
        lb pound
        oz ounce
        ton tonne
        ml milliliter millilitre
        l liter litre
        gallon
        quart
        pint
        cup
        s sec second
        min minute
        h hr hour
        day
        week
        month
        year
        degree deg
        rad radian
        dollar usd
        cent
        euro
        percent
        unit
        time
        person people
        way
        th st nd rd
    """.splitlines()
    for alias in line.split()
}
_POWERS = {"square": "^2", "squared": "^2", "sq": "^2", "cubic": "^3", "cubed": "^3"}

_DEGREE = re.compile(r" ?\^ ?(?:\\circ|\{ ?\\circ ?\})$")
_ORDINAL = re.compile(r"(?<=[0-9]) ?\^? ?\{? ?(?:\\text ?\{ ?)?(?:st|nd|rd|th) ?\}? ?\}?$")
_POWER = r"(?: ?\^ ?\{? ?([23]) ?\}?)?"
_TEXT_UNIT = re.compile(rf"\\text ?\{{ ?([A-Za-z][A-Za-z/. ]*)\}}{_POWER}$")
_WORD_UNIT = re.compile(rf"(?<=[0-9}}% ])([A-Za-z]{{2,}}+(?:[ /.]+[A-Za-z]+)*+){_POWER}$")


def canonical_unit(words: str, power: str | None = None) -> str | None:
    """Return one name for a unit, or None where a word is not a unit's.

    >>> canonical_unit("Square Inches"), canonical_unit("in", "2"), canonical_unit("km/hours")
    ('in^2', 'in^2', 'km/h')
    """
    exponent = f"^{power}" if power else ""
    names: list[str] = []
    for word in _spelled_out(words).split():
        alias = next((w for w in (word, word[:-1], word[:-2]) if _is_form(w, word)), None)
        if word in _POWERS:
            exponent = _POWERS[word]
        elif word == "per":
            names.append("/")
        elif alias is None:
            return None
        else:
            names.append(_ALIASES[alias])
    return "".join(names) + exponent if names else None


def _spelled_out(words: str) -> str:
    return words.lower().replace("/", " per ").replace(".", " ").replace("mph", "mi per h")


def _is_form(stem: str, word: str) -> bool:
    return stem in _ALIASES and word[len(stem) :] in {"", "s", "es"}


def split_unit(text: str) -> tuple[str, str | None, bool]:
    r"""Return cleaned text without its unit, the unit, and whether LaTeX marks it as one.

    A bare word (`12 hours`) is only a unit if what stands before it is a number, which the
    caller has to see to; a single bare letter (`5m`) is a variable.

    >>> split_unit(r"\sqrt{2} \text{ cm}^2"), split_unit("12 hours"), split_unit("5m")
    (('\\sqrt{2}', 'cm^2', True), ('12', 'h', False), ('5m', None, False))
    """
    for pattern, unit in ((_DEGREE, "degree"), (_ORDINAL, "th")):
        if found := pattern.search(text):
            return text[: found.start()], unit, True
    found = _TEXT_UNIT.match(text, max(text.rfind(r"\text"), 0))
    marked = found is not None
    found = found or _WORD_UNIT.search(text)
    if found:
        name = canonical_unit(found[1], found[2])
        rest = text[: found.start()].strip()
        if name and rest:
            return rest, name, marked
    return text, None, False
