import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from markbook.errors import MarkbookError
from markbook.recipe import DataRecipe
from markbook.records import Completion, Problem, Prompt
from markbook.tasks.base import Task
from markbook.tasks.chains import Chains
from markbook.tasks.check import check_task
from markbook.tasks.file import FileTask
from markbook.tasks.load import load_task
from markbook.verify import MarkingRules

RULES = MarkingRules(tags=("answer",))


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("markbook_task_") or name == "neighbour":
            del sys.modules[name]


HEAD = """
from markbook.records import Problem, Verdict
from markbook.tasks import Task
"""


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, head: str = HEAD) -> Path:
        path = tmp_path / "my_task.py"
        path.write_text(head + dedent(text), encoding="utf-8")
        return path

    return write


def load(path: Path, name: str = "Mine", **settings: Any) -> Task:
    return load_task(DataRecipe(task=f"{path}:{name}"), RULES, **settings)


def refusal(path: Path, name: str = "Mine") -> str:
    with pytest.raises(MarkbookError) as raised:
        load(path, name)
    return str(raised.value)


GOOD = """
    class Mine(Task):
        name = "mine"

        def problems(self, split):
            return [Problem("p", "1+1?", "2")] if split == "train" else []
"""


# --- what a recipe may name ---------------------------------------------------------------------


def test_a_built_in_task() -> None:
    task = load_task(DataRecipe(task="chains"), RULES)
    assert isinstance(task, Chains)
    assert task.rules is RULES


def test_a_data_file_with_every_setting(tmp_path: Path) -> None:
    train, test = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    train.write_text('{"q": "one", "gold": 1, "key": "x"}\n{"q": "two"}\n', encoding="utf-8")
    test.write_text('{"q": "three", "gold": 3, "key": "y"}\n', encoding="utf-8")
    data = DataRecipe(
        path=str(train),
        test_path=str(test),
        problem_field="q",
        answer_field="gold",
        id_field="key",
        on_fault="skip",
    )
    task = load_task(data, RULES)
    assert isinstance(task, FileTask)
    assert task.rules is RULES
    assert task.problems("train") == (Problem("x", "one", "1"),)
    assert task.problems("test") == (Problem("y", "three", "3"),)
    assert [str(fault) for fault in task.faults] == ["line 2: gold is missing"]
    with pytest.raises(MarkbookError, match="line 2: gold is missing"):
        load_task(dataclasses.replace(data, on_fault="refuse"), RULES)


def test_length_is_checked_for_files_and_tasks(tmp_path: Path, source: Callable[..., Path]) -> None:
    def fits(prompt: Prompt) -> str | None:
        return f"{len(prompt)} characters are over 2"

    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "long", "answer": 1}\n', encoding="utf-8")
    with pytest.raises(MarkbookError, match="the problem does not fit: 4 characters are over 2"):
        load_task(DataRecipe(path=str(path)), RULES, fits)
    with pytest.raises(MarkbookError, match="train, problem 'p': 4 characters are over 2"):
        load(source(GOOD), fits=fits)


def test_test_share_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("problem,answer\n" + "".join(f"p{k},1\n" for k in range(50)), "utf-8")
    task = load_task(DataRecipe(path=str(path), test_share=0.5), RULES)
    assert 0 < len(task.problems("test")) < 50


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataRecipe(), "there are no problems; give a file of them (--data problems.jsonl)"),
        (
            DataRecipe(task="chains", path="x.jsonl"),
            "data.task = 'chains' and data.path = 'x.jsonl'",
        ),
        (DataRecipe(task="chain"), "data.task = 'chain' is neither a built-in task (chains)"),
        (DataRecipe(task="chain"), "did you mean 'chains'?"),
        (DataRecipe(task="x.jsonl"), "a data file is given with --data"),
        (DataRecipe(task="my_task:Mine"), "nor a Python file and class (my_task.py:MyTask)"),
        (
            DataRecipe(task="chains", test_path="x.jsonl"),
            "data.test_path = 'x.jsonl' belongs to a data",
        ),
        (DataRecipe(task="chains", test_share=0.1), "data.test_share = 0.1 belongs to a data file"),
        (DataRecipe(path="no.jsonl"), "no.jsonl: there is no such data file"),
        (DataRecipe(task="no.py:Mine"), "no.py: there is no such Python file"),
    ],
)
def test_what_can_not_be_loaded(data: DataRecipe, words: str) -> None:
    with pytest.raises(MarkbookError) as raised:
        load_task(data, RULES)
    assert words in str(raised.value)


# --- a Python file ------------------------------------------------------------------------------


def test_a_python_task_gets_the_rules_and_marks_by_them(source: Callable[..., Path]) -> None:
    task = load(source(GOOD))
    assert task.name == "mine"
    assert task.rules is RULES
    assert list(task.problems("train")) == [Problem("p", "1+1?", "2")]
    check_task(task, task.problems("train"))


def test_a_file_may_have_dataclasses_neighbours_and_a_constructor(
    source: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "neighbour.py").write_text("ANSWER = '2'\n", encoding="utf-8")
    path = source(
        """
        from __future__ import annotations
        from dataclasses import dataclass
        from markbook.records import Problem
        from markbook.tasks import Task
        import neighbour

        @dataclass
        class Settings:
            answer: str = neighbour.ANSWER

        class Mine(Task):
            def __init__(self, rules, settings=None):
                super().__init__(rules)
                self.settings = settings or Settings()

            def problems(self, split):
                return [Problem("p", "1+1?", self.settings.answer)] if split == "train" else []
    """,
        "",
    )
    assert load(path).problems("train")[0].answer == "2"


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    tasks = []
    for answer in "12":
        path = tmp_path / answer / "my_task.py"
        path.parent.mkdir()
        path.write_text(HEAD + dedent(GOOD.replace('"2"', f'"{answer}"')), encoding="utf-8")
        tasks.append(load(path))
    assert [task.problems("train")[0].answer for task in tasks] == ["1", "2"]
    assert type(tasks[0]).__module__ != type(tasks[1]).__module__
    assert sys.modules[type(tasks[0]).__module__].__file__ == str(tmp_path / "1" / "my_task.py")


def test_a_file_is_named_with_its_near_neighbour(source: Callable[..., Path]) -> None:
    path = source(GOOD)
    message = refusal(path.with_name("my_tusk.py"))
    assert "no such Python file; did you mean 'my_task.py'?" in message


def test_a_class_is_named_with_its_near_neighbour(source: Callable[..., Path]) -> None:
    path = source(GOOD + "    class Other(Mine): pass\n    def function(): pass\n")
    message = refusal(path, "Mime")
    assert "has no class 'Mime'; did you mean 'Mine'?; it has Mine, Other" in message
    message = refusal(path, "function")
    assert "function is not a subclass of markbook.tasks.Task; it has Mine, Other" in message
    assert "Problem is not a subclass" in refusal(path, "Problem")
    assert "has no class 'Missing'; it has no subclass" in refusal(source("pass"), "Missing")
    assert f"say which class ({path}:Mine)" in refusal(source(GOOD), "")
    with pytest.raises(MarkbookError, match="say which class"):
        load_task(DataRecipe(task=str(path)), RULES)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("import no_such_module_anywhere", 4, "ModuleNotFoundError: No module named"),
        ("x = 1\n1 / 0", 5, "importing it failed with ZeroDivisionError: division by zero"),
        ("def f():\n    return [][1]\nf()", 5, "IndexError: list index out of range"),
        ("class Mine(Task:\n    pass", 4, "SyntaxError"),
        ("raise SystemExit('bye')", 4, "SystemExit: bye"),
        ("assert False, 'two\\nlines'", 4, "AssertionError: two lines"),
    ],
)
def test_a_file_that_fails_is_shown_with_its_line(
    source: Callable[..., Path], text: str, line: int, words: str
) -> None:
    path = source(text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: ")
    assert words in message
    assert "\n" not in message
    assert not [name for name in sys.modules if name.startswith("markbook_task_my_task")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Mine(Task): pass", "Mine must define problems"),
        (GOOD + "        def __init__(self): pass\n", "must take `rules`"),
        (GOOD + "        def __init__(self, rules, path): pass\n", "must take `rules`"),
        (GOOD + "        def __init__(self, rules): pass\n", "must call super().__init__(rules)"),
        (
            GOOD + "        def __init__(self, rules):\n            self.x = rules.colour\n",
            "my_task.py:11: Mine(rules=...) failed with AttributeError",
        ),
        (
            "class Mine(Task):\n    def problems(self, split):\n        return self.rows[split]\n",
            "my_task.py:6: problems('train') failed with AttributeError",
        ),
        (
            "class Mine(Task):\n    def problems(self, split):\n        yield 1\n",
            "must return a list or tuple of Problem, not generator",
        ),
        (
            "class Mine(Task):\n    def problems(self, split):\n"
            "        return [Problem('p', '?', '2')]\n",
            "problems('test') has the problem 'p', which is in 'train' too",
        ),
        (
            GOOD + "        def splits(self): return tuple(1)\n",
            "my_task.py:10: splits() failed with TypeError",
        ),
    ],
)
def test_a_class_that_will_not_do(source: Callable[..., Path], text: str, words: str) -> None:
    assert words in refusal(source(text))


def test_a_prompt_that_fails_is_shown_with_its_line(source: Callable[..., Path]) -> None:
    path = source(GOOD + "        def prompt(self, problem): return problem.text\n")
    with pytest.raises(MarkbookError) as raised:
        load(path, fits=lambda prompt: None)
    assert str(raised.value).startswith(f"{path}:10: prompt of problem 'p' failed with Attribute")


def test_a_mark_that_fails_is_shown_with_its_line(source: Callable[..., Path]) -> None:
    task = load(source(GOOD + "        def mark(self, problem, completion): return missing\n"))
    with pytest.raises(MarkbookError, match=r"my_task.py:10: mark of problem 'p' and the text"):
        check_task(task, task.problems("train"))
    with pytest.raises(NameError):
        task.mark(task.problems("train")[0], Completion((), (), "stopped", 0, 0, ""))


def test_an_error_that_a_task_raises_on_purpose_is_left_as_it_is(
    source: Callable[..., Path], tmp_path: Path
) -> None:
    path = source("""
        from markbook.tasks.file import FileTask

        class Mine(FileTask):
            def __init__(self, rules):
                super().__init__("nowhere.jsonl", rules=rules)
    """)
    assert refusal(path) == "nowhere.jsonl: there is no such data file."
