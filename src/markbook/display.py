"""What a run shows while it runs: a bar with the time left in a terminal, plain lines elsewhere."""

import shutil
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Numbers = Mapping[str, float | int | None]


def program() -> str:
    """Return how this program is called from the user's shell, for commands to copy."""
    return "markbook" if shutil.which("markbook") else sys.argv[0]


def percent(value: float | int | None) -> str:
    """Return a share in words, `-` for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | int | None, digits: int = 2) -> str:
    """Return a number with that many decimals, `-` for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def summary(metrics: Numbers) -> str:
    """Return the line about a step that people watch."""
    parts = [
        f"correct {percent(metrics.get('correct_share'))}",
        f"reward {number(metrics.get('reward_mean'))}",
        f"tokens {number(metrics.get('completion_tokens_mean'), 1)}",
        f"KL {number(metrics.get('kl_mean'), 3)}",
    ]
    if "format_share" in metrics:
        parts.insert(1, f"format {percent(metrics['format_share'])}")
    return "  ".join(parts)


class Display:
    """Progress of one long job, such as a training run, on a rich console."""

    def __init__(self, console: Console, title: str, total: int, done: int = 0) -> None:
        self.console = console
        self.title = title
        self.total = total
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._steps = self._progress.add_task(title, total=total, completed=done, note="")
        self._part = self._progress.add_task("", total=None, visible=False, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def part(self, name: str) -> None:
        """Begin a part of the present step, such as sampling, with a bar of its own."""
        self._progress.reset(self._part, description=f"  {name}", total=None, visible=True)

    def advance(self, done: int, total: int) -> None:
        """Say how far the present part is."""
        self._progress.update(self._part, completed=done, total=total)

    def step(self, done: int, note: str) -> None:
        """Say that a step is finished: moves the bar, or prints one line where there is none."""
        self._progress.update(self._steps, completed=done, note=note)
        if not self.console.is_terminal:
            self.say(f"{self.title} {done}/{self.total}  {note}")

    def tick(self, done: int, note: str) -> None:
        """Like `step`, for many quick steps: where there is no bar, one line in each tenth."""
        tenth = max(1, self.total // 10)
        if self.console.is_terminal or done % tenth == 0:
            self.step(done, note)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
