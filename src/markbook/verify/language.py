r"""Language consistency: how much of a text's words are in the language asked for.

R1's reward against mixed languages is the share of words of the target language in the chain of
thought (arXiv 2501.12948). Here a word's language is told by its Unicode script alone: English,
French and Vietnamese are all Latin, so mixing those goes unseen, while Chinese or Russian in an
English text is seen without a model or a dictionary.
"""

import re
import unicodedata
from functools import lru_cache

from markbook.errors import MarkbookError, suggestion

_SCRIPTS = {
    language: frozenset(scripts.split())
    for scripts, languages in {
        "LATIN": "en fr de es it pt nl pl cs sv da no fi hu ro tr id ms vi",
        "CJK IDEOGRAPHIC": "zh",
        "CJK IDEOGRAPHIC HIRAGANA KATAKANA": "ja",
        "HANGUL": "ko",
        "CYRILLIC": "ru uk bg sr",
        "GREEK": "el",
        "ARABIC": "ar fa ur",
        "HEBREW": "he",
        "DEVANAGARI": "hi mr ne",
        "BENGALI": "bn",
        "TAMIL": "ta",
        "TELUGU": "te",
        "THAI": "th",
    }.items()
    for language in languages.split()
}

_UNSPACED = frozenset({"CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "THAI"})

# What opens here also ends with the text, so that one left open is not looked for again.
_NOT_PROSE = re.compile(
    r"```.*?(?:```|\Z)"
    r"|`[^`\n]*+`"
    r"|\$\$.*?(?:\$\$|\Z)"
    r"|\$(?=\S)[^$\n]*+(?<=\S)\$(?![0-9])"  # pandoc's rule: `$5 and $6` is money
    r"|\\\(.*?(?:\\\)|\Z)"
    r"|\\\[.*?(?:\\\]|\Z)"
    r"|\\begin\{(\w+\*?)\}.*?(?:\\end\{\1\}|\Z)"
    r"|\\[A-Za-z]+"
    r"|</?[A-Za-z][\w-]*>",
    re.DOTALL,
)


def language_consistency(text: str, language: str = "en") -> float:
    r"""Return the share of the text's words that are in a language's script, from 0 to 1.

    A word is an unbroken run of letters of one script; in scripts that put no spaces between
    words (Han, kana, Thai) each letter is counted as a word. Code between backticks, formulas
    between dollars, `\(...\)`, `\[...\]` or `\begin...\end`, LaTeX commands and tags are left
    out; digits are no words. 45 English words and 5 Chinese characters give 45/50 = 0.9. A text
    without words gives 1.0: there is nothing in it in another language.

    Raises `MarkbookError` for a language whose script is not known here.
    """
    if language not in _SCRIPTS:
        raise MarkbookError(
            f"language is {language!r}, which is not one of {', '.join(sorted(_SCRIPTS))}"
            f"{suggestion(language, _SCRIPTS)}"
        )
    wanted = _SCRIPTS[language]
    words = _word_scripts(_NOT_PROSE.sub(" ", text))
    return sum(script in wanted for script in words) / len(words) if words else 1.0


def _word_scripts(prose: str) -> list[str]:
    """Return the script of each word in order."""
    words: list[str] = []
    current = ""
    for character in prose:
        script = _script(character)
        if script == "":
            current = ""
        elif script != "MARK":  # a mark or an apostrophe goes on with the word it stands in
            if script != current or script in _UNSPACED:
                words.append(script)
            current = script
    return words


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    """Return a letter's script, `MARK` for what joins letters, or an empty string."""
    # Character by character: sorting the marks of a whole text can take quadratic time.
    character = unicodedata.normalize("NFKC", character)[:1]
    if character in "'\u2019" or unicodedata.category(character).startswith("M"):
        return "MARK"
    if not character.isalpha():
        return ""
    return re.split("[ -]", unicodedata.name(character, "OTHER"))[0]
