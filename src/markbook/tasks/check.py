"""What a task must prove before any compute is spent on it, without a model.

A task is often a user's code, so whatever it raises is shown with the file and the line where it
happened, and whatever it returns is checked.
"""

import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from markbook.errors import MarkbookError
from markbook.records import Completion, Problem, Prompt, Verdict
from markbook.tasks.base import Task
from markbook.tasks.file import Fits

LISTED_PROBLEMS = 20
"""How many problems that do not fit an error shows."""


def check_task(task: Task, problems: Iterable[Problem]) -> None:
    """Check that each problem's model answer scores full marks and an empty text none.

    Raises `MarkbookError` as `check_marks` does.
    """
    for problem in problems:
        with faults_shown(task, f"model_answer of problem {problem.id!r}"):
            full_text = task.model_answer(problem)
        check_marks(task, problem, full_text, "")


def check_marks(task: Task, problem: Problem, full_text: str, empty_text: str) -> None:
    """Check that `full_text` is correct with 1 in every component, and `empty_text` 0 in all.

    Raises `MarkbookError` that names the problem, the text and its verdict; also where `mark`
    raises, returns no verdict, or leaves out a component.
    """
    verdict = _mark(task, problem, full_text)
    if verdict.status != "correct" or any(score != 1 for score in verdict.components.values()):
        raise MarkbookError(
            f"task {task.name}: its model answer to problem {problem.id!r} must be correct with "
            f"full marks, but {full_text!r} is marked {_in_words(verdict)}; mend the task's mark "
            "or model_answer, or the recipe's [marking]."
        )
    verdict = _mark(task, problem, empty_text)
    wrong = verdict.status in ("correct", "unscorable")
    if wrong or any(score != 0 for score in verdict.components.values()):
        raise MarkbookError(
            f"task {task.name}: an answer to problem {problem.id!r} that says nothing must score "
            f"0, but {empty_text!r} is marked {_in_words(verdict)}; mend the task's mark."
        )


def _mark(task: Task, problem: Problem, text: str) -> Verdict:
    completion = Completion(
        token_ids=(),
        sampler_logprobs=(),
        finish_reason="stopped",
        policy_version=0,
        sample_index=0,
        text=text,
    )
    with faults_shown(task, f"mark of problem {problem.id!r} and the text {text!r}"):
        verdict: Any = task.mark(problem, completion)
    if not isinstance(verdict, Verdict):
        raise MarkbookError(
            f"task {task.name}: mark must return a Verdict, but for problem {problem.id!r} it "
            f"returned {verdict!r}."
        )
    if verdict.status != "unscorable" and set(verdict.components) != set(task.components):
        raise MarkbookError(
            f"task {task.name}: its components are {', '.join(task.components)}, but the verdict "
            f"on problem {problem.id!r} has {', '.join(verdict.components) or 'none'}; name the "
            "same in both."
        )
    return verdict


def _in_words(verdict: Verdict) -> str:
    scores = "".join(f", {name} {score:g}" for name, score in verdict.components.items())
    return f"{verdict.status}{scores} ({verdict.reason})"


def check_problems(task: Task, fits: Fits | None = None) -> None:
    """Check what a task gives: problems, with ids of their own, held-out ones apart, that fit.

    Raises `MarkbookError` for a split that is no sequence of problems or is not the same at a
    second call, an empty train split, an id that two problems share, a held-out problem that is
    trained on, and prompts for which `fits` gives a reason.
    """
    _check_components(task)
    with faults_shown(task, "splits()"):
        splits = dict.fromkeys(("train", *task.splits()))
    by_id: dict[str, tuple[str, Problem]] = {}
    too_long: list[str] = []
    for split in splits:
        problems = _problems(task, split)
        _check_split(task, split, problems, by_id)
        by_id |= {problem.id: (split, problem) for problem in problems}
        for problem in problems:
            prompt = _prompt(task, problem)
            reason = fits(prompt) if fits is not None else None
            if reason is not None:
                too_long.append(f"  {split}, problem {problem.id!r}: {reason}")
    if too_long:
        more = len(too_long) - LISTED_PROBLEMS
        lines = too_long[:LISTED_PROBLEMS] + ([f"  and {more} more"] if more > 0 else [])
        raise MarkbookError(
            f"task {task.name}: its prompts must fit, and {len(too_long)} do not; shorten them or "
            "leave them out of problems():\n" + "\n".join(lines)
        )


def _check_components(task: Task) -> None:
    names: Any = task.components
    if not isinstance(names, tuple) or not names or any(not isinstance(n, str) for n in names):
        raise MarkbookError(
            f"task {task.name}: components = {names!r} must be a tuple of names, such as "
            "('accuracy', 'format')."
        )


def _problems(task: Task, split: str) -> tuple[Problem, ...]:
    """Return a split's problems, each known to be one."""
    where = f"task {task.name}: problems({split!r})"
    with faults_shown(task, f"problems({split!r})"):
        found: Any = task.problems(split)
        items: tuple[Any, ...] = tuple(found) if isinstance(found, Sequence) else ()
    if isinstance(found, str) or not isinstance(found, Sequence):
        kind = type(found).__name__
        raise MarkbookError(f"{where} must return a list or tuple of Problem, not {kind}.")
    for index, item in enumerate(items):
        if not isinstance(item, Problem):
            raise MarkbookError(f"{where}: item {index} is {item!r:.80}, not a Problem.")
        if not isinstance(item.id, str) or not item.id:
            raise MarkbookError(f"{where}: item {index} has the id {item.id!r}, not a text.")
        if not isinstance(item.answer, str):
            raise MarkbookError(
                f"{where}: problem {item.id!r} has the answer {item.answer!r:.80}, not a text."
            )
    return items


def _check_split(
    task: Task,
    split: str,
    problems: Sequence[Problem],
    by_id: Mapping[str, tuple[str, Problem]],
) -> None:
    """Check one split against itself and against those before it, of which `train` is the first.

    Held-out splits may share problems with one another, but none with `train`.
    """
    where = f"task {task.name}: problems({split!r})"
    ids = [problem.id for problem in problems]
    if split == "train" and not ids:
        raise MarkbookError(f"{where} is empty, so there is nothing to train on.")
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise MarkbookError(
            f"{where} gives the id {twice[0]!r} to more than one problem; give each its own."
        )
    if ids != [problem.id for problem in _problems(task, split)]:
        raise MarkbookError(
            f"{where} gives other problems, or another order, at a second call; let any randomness "
            "in it start from a fixed seed."
        )
    for problem in problems:
        earlier, same = by_id.get(problem.id, (split, problem))
        if earlier == "train" and split != "train":
            raise MarkbookError(
                f"{where} has the problem {problem.id!r}, which is in 'train' too; hold out other "
                "problems, and return [] for a split that the task does not have."
            )
        if same != problem:
            raise MarkbookError(
                f"{where} gives the id {problem.id!r} to another problem than {earlier!r} does; "
                "ids must be unique within the task."
            )


def _prompt(task: Task, problem: Problem) -> Prompt:
    with faults_shown(task, f"prompt of problem {problem.id!r}"):
        prompt: Any = task.prompt(problem)
    is_text = isinstance(prompt, str) and prompt.strip()
    is_chat = isinstance(prompt, Sequence) and all(
        isinstance(message, Mapping) and {"role", "content"} <= set(message) for message in prompt
    )
    if not prompt or not (is_text or is_chat):
        raise MarkbookError(
            f"task {task.name}: the prompt of problem {problem.id!r} is {prompt!r:.80}, where text "
            "or a list of chat messages with role and content is needed."
        )
    return prompt  # type: ignore[no-any-return]  # the check above is of its type


@contextmanager
def faults_shown(source: Task | Path, doing: str) -> Iterator[None]:
    """Turn what a user's code raises into a `MarkbookError` with file, line and exception.

    `source` is the task or the file whose code runs. A task of this package is let through: its
    exceptions are faults of the package.
    """
    if isinstance(source, Path):
        file = str(source)
    else:
        module = type(source).__module__
        if module.startswith("markbook."):
            yield
            return
        file = getattr(sys.modules.get(module), "__file__", None) or module
    try:
        yield
    except MarkbookError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        raise MarkbookError(
            f"{_location(error, file)}: {doing} failed with {type(error).__name__}"
            f"{': ' if message else ''}{message}"
        ) from error


def _location(error: BaseException, file: str) -> str:
    """Return `file:line`, the line being the innermost one of that file in the traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else file
