"""Which task a recipe names: a data file, a built-in task, or a class in the user's Python file."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from markbook.errors import MarkbookError, suggestion
from markbook.recipe import DataRecipe
from markbook.tasks.base import Task
from markbook.tasks.check import check_problems, faults_shown
from markbook.tasks.file import Fields, FileTask, Fits
from markbook.tasks.rows import READERS
from markbook.verify import MarkingRules

BUILT_IN: Mapping[str, str] = {"chains": "markbook.tasks.chains:Chains"}
"""Tasks by name: where their class is."""


def load_task(data: DataRecipe, rules: MarkingRules, fits: Fits | None = None) -> Task:
    """Return the task that the recipe's `[data]` names, its problems read and checked.

    `fits` says why a prompt can't be given to the model; without it length is not checked. Of a
    file's rows that don't fit, `on_fault` decides; a task with such a prompt is refused.

    Raises `MarkbookError` where nothing or too much is named, as `FileTask` does for data files,
    and for a Python file that is missing, fails, or lacks the class, and as `check_problems`
    does for what the class gives.
    """
    if data.task and data.path:
        raise MarkbookError(
            f"data.task = {data.task!r} and data.path = {data.path!r} both bring problems; leave "
            "one of them out."
        )
    if data.path:
        return FileTask(
            Path(data.path).expanduser(),
            fields=Fields(data.problem_field, data.answer_field, data.id_field),
            on_fault=data.on_fault,
            test_path=Path(data.test_path).expanduser() if data.test_path else "",
            test_share=data.test_share,
            rules=rules,
            fits=fits,
        )
    if not data.task:
        raise MarkbookError(
            "data: there are no problems; give a file of them (--data problems.jsonl), a built-in "
            f"task (--task {next(iter(BUILT_IN))}) or a Python class (--task my_task.py:MyTask)."
        )
    for name, value in {"test_path": data.test_path, "test_share": data.test_share}.items():
        if value:
            raise MarkbookError(
                f"data.{name} = {value!r} belongs to a data file, but data.task = {data.task!r} "
                "brings its own held-out problems; leave it out."
            )
    task = _task(data.task, rules)
    check_problems(task, fits)
    return task


def _task(name: str, rules: MarkingRules) -> Task:
    file, _, class_name = name.rpartition(":")
    if name.endswith(".py"):
        file, class_name = name, ""
    if file.endswith(".py"):
        return _task_of_file(Path(file).expanduser(), class_name, rules)
    if name not in BUILT_IN:
        advice = suggestion(name, BUILT_IN)
        if Path(name).suffix.lower() in READERS:
            advice = "; a data file is given with --data"
        raise MarkbookError(
            f"data.task = {name!r} is neither a built-in task ({', '.join(BUILT_IN)}) nor a Python "
            f"file and class (my_task.py:MyTask){advice}."
        )
    module_name, _, class_name = BUILT_IN[name].partition(":")
    task: Task = getattr(importlib.import_module(module_name), class_name)(rules)
    return task


def _task_of_file(file: Path, class_name: str, rules: MarkingRules) -> Task:
    if not file.is_file():
        near = sorted(p.name for p in file.parent.glob("*.py")) if file.parent.is_dir() else []
        raise MarkbookError(f"{file}: there is no such Python file{suggestion(file.name, near)}.")
    module = _import(file.resolve())
    cls = _task_class(file, module, class_name)
    missing = sorted(cls.__abstractmethods__)
    if missing:
        raise MarkbookError(f"{file}: {class_name} must define {' and '.join(missing)}.")
    with faults_shown(file.resolve(), f"{class_name}(rules=...)"):
        _check_takes_rules(file, cls)
        task = cls(rules=rules)
    if not hasattr(task, "rules"):
        raise MarkbookError(f"{file}: {class_name}.__init__ must call super().__init__(rules).")
    return task


def _import(file: Path) -> ModuleType:
    """Run a Python file as a module of its own name, its neighbours importable."""
    name = f"markbook_task_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise MarkbookError(f"{file}: can't be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, so that no installed module is hidden
    sys.modules[name] = module  # dataclasses and pickle look their module up by its name
    try:
        with faults_shown(file, "importing it"):
            spec.loader.exec_module(module)
    except MarkbookError:
        del sys.modules[name]
        raise
    return module


def _task_class(file: Path, module: ModuleType, name: str) -> type[Task]:
    tasks = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    ]
    has = f"it has {', '.join(tasks)}" if tasks else "it has no subclass of markbook.tasks.Task"
    if not name:
        raise MarkbookError(f"{file}: say which class ({file}:{(tasks or ['MyTask'])[0]}); {has}.")
    if not hasattr(module, name):
        raise MarkbookError(f"{file}: has no class {name!r}{suggestion(name, tasks)}; {has}.")
    cls: Any = getattr(module, name)
    if not isinstance(cls, type) or not issubclass(cls, Task):
        raise MarkbookError(f"{file}: {name} is not a subclass of markbook.tasks.Task; {has}.")
    return cls


def _check_takes_rules(file: Path, cls: type[Task]) -> None:
    signature = inspect.signature(cls)
    try:
        signature.bind(rules=None)
    except TypeError as error:
        raise MarkbookError(
            f"{file}: {cls.__name__}.__init__{signature} must take `rules`, and nothing else "
            f"without a default, and hand it to super().__init__(rules): {error}."
        ) from None
