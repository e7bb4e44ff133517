"""Tasks: where problems come from and how their completions are marked."""

from markbook.tasks.base import Task
from markbook.tasks.load import load_task

__all__ = ["Task", "load_task"]
