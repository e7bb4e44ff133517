"""The user's own data: a file of problems and answers as a task.

Every row of the file becomes a `Problem` or a `Fault` with its line number and the reason; no
row is lost. Whether faults refuse the run or are left out is the recipe's choice (`on_fault`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from markbook.errors import MarkbookError, suggestion
from markbook.records import Message, Problem, Prompt
from markbook.seeding import seed_of
from markbook.tasks.base import Task
from markbook.tasks.rows import Fault, FaultKind, Row, place, read_rows
from markbook.verify import MarkingRules, can_mark

Fits: TypeAlias = Callable[[Prompt], str | None]
"""Says why a prompt can't be given to the model (too long for its context), or None."""

LISTED_FAULTS = 20
"""How many faults of a file an error shows."""

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Fields:
    """Which columns hold what. An empty `id` takes line numbers even where there are ids."""

    problem: str = "problem"
    answer: str = "answer"
    id: str = "id"


def read_problems(
    path: str | Path,
    *,
    problem_field: str = "problem",
    answer_field: str = "answer",
    id_field: str = "id",
    rules: MarkingRules,
    fits: Fits | None = None,
) -> tuple[list[Problem], list[Fault]]:
    """Read a .jsonl, .csv, .parquet or .json file; every row is a problem or a fault.

    - The problem is text, or a list of chat messages (`role`, `content`) that ends with a user's.
    - The answer is text or a number, which becomes text: whole numbers and decimals exactly,
      floats by their shortest form (`0.1`). It must be one that `rules` can mark.
    - The id is text or a whole number. Rows without one are called `<file's stem>-<line>`, all
      of them where the file has no such column.
    - A problem that occurs again, white space apart, is a fault; so is an id.
    - All other columns become the problem's metadata.

    Raises `MarkbookError` for what `read_rows` refuses, for a column that the file does not
    have, and where no row at all can be used.
    """
    fields = Fields(problem_field, answer_field, id_field)
    return _read(Path(path), fields, rules, fits, _Seen())


class FileTask(Task):
    """A file's problems as the `train` split, and held-out ones as `test`.

    The held-out problems are those of `test_path`, or the `test_share` of the file's whose ids
    hash lowest: the same ones for every seed of a run, and a problem stays on its side for as long
    as it keeps its id. A problem of the test file that the train file also has is a fault.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        fields: Fields | None = None,
        on_fault: Literal["refuse", "skip"] = "refuse",
        test_path: str | Path = "",
        test_share: float = 0.0,
        rules: MarkingRules | None = None,
        fits: Fits | None = None,
    ) -> None:
        """Read the file or files.

        Raises `MarkbookError` as `read_problems` does, and where `on_fault` is `refuse` and there
        is a fault; its message lists the first of each file. With `skip`, `faults` holds them.
        """
        super().__init__(rules)
        _check_held_out(test_path, test_share)
        path, fields, seen = Path(path), fields if fields is not None else Fields(), _Seen()
        self.name = path.stem
        train, faults = _read(path, fields, self.rules, fits, seen)
        test: list[Problem] = []
        if test_path:
            test, more = _read(Path(test_path), fields, self.rules, fits, seen)
            faults = faults + more
        elif test_share:
            train, test = _split(path, train, test_share)
        if faults and on_fault == "refuse":
            raise MarkbookError(
                f"{list_faults(faults)}\nMend these rows, or leave them out with "
                "--data.on-fault skip."
            )
        self.faults: tuple[Fault, ...] = tuple(faults)
        """The rows that were left out, of both files."""
        self._splits = {"train": tuple(train), "test": tuple(test)}

    def problems(self, split: str) -> Sequence[Problem]:
        """Return the problems of `train` or `test` in the file's order."""
        return self._splits.get(split, ())


def list_faults(faults: Sequence[Fault]) -> str:
    """Return the first faults of each file, one a line, and how many more there are."""
    lines = []
    for path, of_file in groupby(faults, key=lambda fault: fault.path):
        listed = list(of_file)
        lines.append(f"{path}: {_rows(len(listed))} can't be used:")
        lines += [f"  {fault}" for fault in listed[:LISTED_FAULTS]]
        if len(listed) > LISTED_FAULTS:
            lines.append(f"  and {len(listed) - LISTED_FAULTS} more")
    return "\n".join(lines)


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _check_held_out(test_path: str | Path, test_share: float) -> None:
    if not 0 <= test_share <= 0.5:  # also catches NaN
        raise MarkbookError(f"data.test_share = {test_share} must be between 0 and 0.5.")
    if test_path and test_share:
        raise MarkbookError(
            f"data.test_path = '{test_path}' and data.test_share = {test_share} both hold out "
            "problems; leave one of them out."
        )


def _split(
    path: Path, problems: list[Problem], share: float
) -> tuple[list[Problem], list[Problem]]:
    """Divide problems by a hash of their ids into (train, test), about `share` in test."""
    held_out = [seed_of("held out", problem.id) < share * 2**63 for problem in problems]
    test = [problem for problem, held in zip(problems, held_out, strict=True) if held]
    train = [problem for problem, held in zip(problems, held_out, strict=True) if not held]
    if not test or not train:
        raise MarkbookError(
            f"{path}: data.test_share = {share} of {_rows(len(problems))} leaves "
            f"{len(train)} to train on and {len(test)} held out; give another share, or a file of "
            "held-out problems as data.test_path."
        )
    return train, test


@dataclass
class _Seen:
    """The problems and ids of the rows taken so far, over all files of a task."""

    problems: dict[Any, tuple[Path, int, str]] = field(default_factory=dict)
    """Problem without its white space -> where it was, and its answer."""
    ids: dict[str, tuple[Path, int]] = field(default_factory=dict)
    stems: set[str] = field(default_factory=set)

    def prefix(self, path: Path) -> str:
        """Return what the default ids of a file begin with."""
        stem = path.stem if path.stem not in self.stems else f"{path.stem}-test"
        self.stems.add(stem)
        return stem


def _read(
    path: Path, fields: Fields, rules: MarkingRules, fits: Fits | None, seen: _Seen
) -> tuple[list[Problem], list[Fault]]:
    rows = read_rows(path)
    _check_columns(path, fields, [row for row in rows if isinstance(row, Row)])
    prefix = seen.prefix(path)
    problems: list[Problem] = []
    faults: list[Fault] = []
    for row in rows:
        if isinstance(row, Fault):
            faults.append(row)
            continue
        try:
            problem = _problem(row, fields, f"{prefix}-{row.number}")
            _check_new(problem, path, seen)
            _check_usable(problem, rules, fits)
        except _RowError as fault:
            faults.append(Fault(str(path), row.number, fault.kind, fault.reason))
            continue
        seen.problems[_key(problem.prompt)] = (path, row.number, problem.answer)
        seen.ids[problem.id] = (path, row.number)
        problems.append(problem)
    if not problems:
        raise MarkbookError(f"{list_faults(faults)}\nThat is every row; none is left to use.")
    return problems, faults


class _RowError(Exception):
    """Why a row is no problem; caught where its file and line are known."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def _check_columns(path: Path, fields: Fields, rows: Sequence[Row]) -> None:
    """Raise where the file lacks a column; only the id's may be absent, unless it was renamed."""
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    if not columns:  # no row could be read, and the faults say why
        return
    wanted = {"problem_field": fields.problem, "answer_field": fields.answer}
    if fields.id not in ("", "id"):
        wanted["id_field"] = fields.id
    if len(set(wanted.values())) < len(wanted) or fields.id in (fields.problem, fields.answer):
        raise MarkbookError(
            f"{path}: data.problem_field = {fields.problem!r}, data.answer_field = "
            f"{fields.answer!r} and data.id_field = {fields.id!r} must be different columns."
        )
    for setting, name in wanted.items():
        if name not in columns:
            raise MarkbookError(
                f"{path}: has no column {name!r}{suggestion(name, columns)}; its columns are "
                f"{_listed(columns)}: name the one to take with "
                f"--data.{setting.replace('_', '-')}."
            )


def _listed(columns: Sequence[str]) -> str:
    more = f" and {len(columns) - 20} more" if len(columns) > 20 else ""
    split_by = [mark for mark in ";\t" if len(columns) == 1 and mark in columns[0]]
    advice = f" (is it separated by {split_by[0]!r}, where a comma is needed?)" if split_by else ""
    return ", ".join(map(repr, columns[:20])) + more + advice


def _problem(row: Row, fields: Fields, default_id: str) -> Problem:
    """Make a problem of a row's values, or raise `_RowError`."""
    taken = {fields.problem, fields.answer} | ({fields.id} if fields.id else set())
    own_id = _id(row.values.get(fields.id), fields.id) if fields.id else ""
    return Problem(
        id=own_id or default_id,
        prompt=_prompt(row.values.get(fields.problem), fields.problem),
        answer=_answer(row.values.get(fields.answer), fields.answer),
        metadata={name: value for name, value in row.values.items() if name not in taken},
    )


def _prompt(value: Any, name: str) -> Prompt:
    if value is None or value == [] or (isinstance(value, str) and not value.strip()):
        raise _RowError("no_problem", f"{name} is {'missing' if value is None else 'empty'}")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _RowError(
            "wrong_type", f"{name} is {_shown(value)}, where text or chat messages are needed"
        )
    messages = tuple(_message(item, f"{name}[{index}]") for index, item in enumerate(value))
    if messages[-1]["role"] != "user":
        role = messages[-1]["role"]
        raise _RowError("wrong_type", f"{name} ends with a message of {role!r}, not of 'user'")
    return messages


def _message(value: Any, name: str) -> Message:
    if not isinstance(value, dict):
        raise _RowError("wrong_type", f"{name} is {_shown(value)}, where a chat message is needed")
    given = {key: item for key, item in value.items() if item is not None}
    if set(given) != {"role", "content"}:
        has = ", ".join(map(str, given)) or "nothing"
        raise _RowError("wrong_type", f"{name} must have role and content alone, but has {has}")
    if given["role"] not in ROLES:
        raise _RowError(
            "wrong_type", f"{name} has the role {_shown(given['role'])}, not {', '.join(ROLES)}"
        )
    if not isinstance(given["content"], str):
        raise _RowError("wrong_type", f"{name} has content {_shown(given['content'])}, not text")
    if not given["content"].strip():
        raise _RowError("no_problem", f"{name} is empty")
    return given


def _answer(value: Any, name: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise _RowError("no_answer", f"{name} is {'missing' if value is None else 'empty'}")
    text = _as_text(value)
    if text is None:
        raise _RowError(
            "wrong_type", f"{name} is {_shown(value)}, where text or a number is needed"
        )
    return text


def _as_text(value: Any) -> str | None:
    """Return text as it is, a finite number as text, and None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else None
    return None


def _id(value: Any, name: str) -> str:
    """Return an id as text, empty where the row has none."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _RowError(
            "wrong_type", f"{name} is {_shown(value)}, where text or a whole number is needed"
        )
    return str(value).strip()


def _check_new(problem: Problem, path: Path, seen: _Seen) -> None:
    """Raise where an earlier row, of this file or another, has the same problem or id."""

    def where(earlier: Path, number: int) -> str:
        return place(earlier, number) + ("" if earlier == path else f" of {earlier}")

    if _key(problem.prompt) in seen.problems:
        earlier, number, answer = seen.problems[_key(problem.prompt)]
        other = ""
        if answer.strip() != problem.answer.strip():
            other = f" with another answer ({_shown(problem.answer)}, there {_shown(answer)})"
        raise _RowError(
            "duplicate_problem", f"repeats the problem of {where(earlier, number)}{other}"
        )
    if problem.id in seen.ids:
        raise _RowError(
            "duplicate_id",
            f"has the id {_shown(problem.id)} of {where(*seen.ids[problem.id])}; give each row "
            "its own, or take line numbers with --data.id-field ''",
        )


def _key(prompt: Prompt) -> Any:
    """Return what two prompts have in common where they differ in white space only."""
    if isinstance(prompt, str):
        return " ".join(prompt.split())
    return tuple((message["role"], " ".join(message["content"].split())) for message in prompt)


def _check_usable(problem: Problem, rules: MarkingRules, fits: Fits | None) -> None:
    unmarkable = can_mark(problem.answer, rules)
    if unmarkable is not None:
        raise _RowError(
            "unmarkable", f"the answer {_shown(problem.answer)} can't be marked: {unmarkable}"
        )
    too_long = fits(problem.prompt) if fits is not None else None
    if too_long is not None:
        raise _RowError("too_long", f"the problem does not fit: {too_long}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
