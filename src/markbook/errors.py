"""The errors that markbook raises on purpose.

A `MarkbookError` is something its user can mend: the command line prints its one sentence and
exits with code 2, without a traceback. Everything else that is raised is a fault of markbook.
"""

import difflib
from collections.abc import Iterable


class MarkbookError(Exception):
    """A mistake or a state that the user can mend; the message says where, what and how."""


class RunStopped(MarkbookError):  # noqa: N818  # it names an outcome of a run
    """A run stopped itself because to go on would have trained on something wrong."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known word, or an empty string.

    >>> suggestion("group_sise", ["group_size", "seed"])
    "; did you mean 'group_size'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
