r"""Answers as they are written, brought to one spelling: LaTeX, Unicode and plain text alike.

`clean` takes away what only shows (math delimiters, spacing, `\left`, `\text{}`), and gives what
means the same one form (`\dfrac`, `\tfrac` and `\frac12` all become `\frac{1}{2}`). `tokens` cuts
the result into tokens, so that spaces stop mattering while `1 2` still differs from `12`. Nothing
that could hold a second answer is taken away.
"""

import re
from fractions import Fraction

from markbook.verify.extract import closing_brace

_CHARACTERS = {
    **{0xFF01 + offset: chr(0x21 + offset) for offset in range(94)},  # full width to ASCII
    **dict.fromkeys(map(ord, "\u2009\u202f\u00a0"), "\\,"),
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"), ""),
    **dict.fromkeys(map(ord, "\u2212\u2013"), "-"),
    **{
        ord(sign): command
        for sign, command in {
            "\u00d7": r"\times ",
            "\u00b7": r"\cdot ",
            "\u00b0": r"^\circ ",
            "\u221a": r"\sqrt ",
            "\u00b2": "^2",
            "\u00b3": "^3",
            "\u03c0": r"\pi ",
            "\u03b8": r"\theta ",
            "\u221e": r"\infty ",
            "\u2205": r"\emptyset ",
            "\u2264": r"\le ",
            "\u2265": r"\ge ",
            "\u2260": r"\ne ",
            "\u00b1": r"\pm ",
            "\u2208": r"\in ",
            "\u222a": r"\cup ",
        }.items()
    },
}

_SYNONYMS = {
    name: command
    for command, names in {
        r"\frac": "dfrac tfrac cfrac",
        r"\text": "mbox hbox boxed fbox textrm textnormal textbf textit mathrm mathbf mathit mathsf"
        " operatorname",
        r"\le": "leq leqslant",
        r"\ge": "geq geqslant",
        r"\ne": "neq",
        r"\to": "rightarrow",
        r"\emptyset": "varnothing",
        r"\{": "lbrace",
        r"\}": "rbrace",
        r"^\circ ": "degree",
        " ": "left right big bigl bigr Big Bigl Bigr bigg biggl biggr displaystyle textstyle quad"
        " qquad",
    }.items()
    for name in names.split()
}

_MAX_GROUPS = 8
_TRAILING = " .,;:"
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_THOUSANDS_MARK = re.compile(r",\s*\\!\s*|\{,\}|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))")
_SPACING = re.compile(r"(?<!\\)\\[,;:! ()\[\]]|\\?\$|(?<=\S)~")
_DIGIT_ARGUMENT = re.compile(r"(\\frac(?: ?\{[^{}]*\})?) ?([0-9])")
_OPENING = re.compile(r"(?:\\text ?)?\{")
_TEXT_GROUP = re.compile(r"\\text ?\{([^{}]*)\}")
_TEXT_COMMAND = re.compile(r"\\text(?![A-Za-z])")
_PREAMBLE = re.compile(r"^(?:the )?(?:final )?answer(?: is)? ?[:=]? ?", re.IGNORECASE)
_CHOICE = re.compile(r"\(? ?([A-Za-z]) ?\)")
_INTEGER_FRACTION = re.compile(r"\\frac ?\{ ?([0-9]+) ?\} ?\{ ?([0-9]+) ?\}")
_TOKEN = re.compile(
    r"\\frac ?\{ ?[0-9]+ ?\} ?\{ ?[0-9]+ ?\}"
    r"|\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|\S"
)


def clean(text: str) -> str:
    r"""Return the answer in one spelling; `\text{...}` groups are still in it.

    >>> clean(r"$\left(1,\ \dfrac34\right)$.")
    '(1, \\frac{3}{4} )'
    """
    text = _THOUSANDS_MARK.sub(",", text.translate(_CHARACTERS))
    text = _SPACING.sub(" ", text)
    text = _COMMAND.sub(lambda found: _SYNONYMS.get(found[1], found[0]), text)
    text = " ".join(text.split())
    for _ in range(2):  # once for each of a fraction's two arguments
        text = _DIGIT_ARGUMENT.sub(r"\1{\2}", text)
    return strip_group(text.rstrip(_TRAILING))


def strip_group(text: str) -> str:
    r"""Return the text without `\text{...}` or `{...}` around the whole of it.

    >>> strip_group(r"{\text{ yes }}"), strip_group("{a}+{b}")
    ('yes', '{a}+{b}')
    """
    for _ in range(_MAX_GROUPS):
        opened = _OPENING.match(text)
        if not opened or closing_brace(text, opened.end()) != len(text) - 1:
            break
        text = text[opened.end() : -1].rstrip(_TRAILING).lstrip()
    return text


def plain(text: str) -> str:
    r"""Return cleaned text with its `\text{...}` groups opened and `the answer is` gone.

    >>> plain(r"\text{The answer is } 15")
    '15'
    """
    opened = _TEXT_COMMAND.sub("", _TEXT_GROUP.sub(r" \1 ", text))
    return strip_group(_PREAMBLE.sub("", " ".join(opened.split())))


def tokens(text: str) -> tuple[str, ...]:
    r"""Return the tokens of plain text: commands, exact numbers, single characters.

    Numbers and fractions of whole numbers are reduced, braces around one token are dropped, and
    so is a plus sign in front. Where nothing but words is there, or one letter in parentheses,
    case doesn't count.

    >>> tokens(r"( x^{2}, 0.50 )") == tokens(r"(x^2,\frac{1}{2})")
    True
    >>> tokens("(B)"), tokens("1 2")
    (('b',), ('1', '2'))
    """
    if choice := _CHOICE.fullmatch(text):
        text = choice[1]
    found: list[str] = []
    for token in _TOKEN.findall(text.removeprefix("+")):
        if token == "}" and found[-2:-1] == ["{"] and found[-1] != "{":
            found[-2:] = found[-1:]
        else:
            found.append(_exact(token))
    words = all(map(str.isalpha, found))
    return tuple(map(str.casefold, found)) if words else tuple(found)


def _exact(token: str) -> str:
    if fraction := _INTEGER_FRACTION.fullmatch(token):
        top, bottom = int(fraction[1]), int(fraction[2])
        return str(Fraction(top, bottom)) if bottom else token
    return str(Fraction(token)) if token[-1] in "0123456789" and token[0] != "\\" else token
