"""The command line: argv -> recipe -> function. Heavy imports sit where they are used."""

import errno
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from rich.console import Console

from markbook import __version__
from markbook.display import program
from markbook.errors import MarkbookError, suggestion
from markbook.recipe import Recipe, check
from markbook.recipe_file import read_recipe, with_paths

T = TypeVar("T")

HELP = """\
markbook trains language models to reason by reinforcement learning with verifiable rewards.

  markbook demo                      build a small base model and train it, in minutes, offline
  markbook train RECIPE [--field value ...]
                                     train a model as a recipe says
  markbook train --model DIR --data problems.jsonl
                                     train on your own problems and answers
  markbook train --resume RUN        go on with a run that was stopped or killed
  markbook runs                      list the runs in ./runs
  markbook show RUN [--step N] [--problem ID]
                                     read completions with their marks

`markbook COMMAND --help` tells more about each, with examples.
"""


@dataclass
class Train:
    """Train a model by reinforcement learning with verifiable rewards.

    Examples:

      markbook train recipes/demo.toml --rollout.group-size 32
      markbook train recipes/r1-zero.toml --dry-run
      markbook train --model ./Qwen3-0.6B --data problems.jsonl --prompt.template chat
      markbook train --model ./Qwen3-0.6B --task my_task.py:MyTask
      markbook train --resume runs/demo-20260102-150405
    """

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")] = ""
    """A TOML file; what it leaves out keeps the default shown below."""
    out: str = ""
    """Directory of the new run; without it, one under ./runs named by recipe and time."""
    resume: str = ""
    """Directory of a run to go on with, as its own recipe says."""
    dry_run: bool = False
    """Print the plan (batches, optimiser steps, tokens, memory) and stop."""
    settings: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)


@dataclass
class Demo:
    """Watch reinforcement learning with verifiable rewards work, offline, in minutes.

    Builds a small base model on a corpus that markbook generates (kept for the next time), then
    trains it with recipes/demo.toml, and marks it on held-out problems before and after.

    Examples:

      markbook demo
      markbook demo --seed 1 --out runs/second-seed
    """

    seed: int = 0
    """All randomness of the run follows from this number."""
    out: str = ""
    """Directory of the new run; without it, one under ./runs."""


@dataclass
class Runs:
    """List runs: state, steps done, task, model, last marks.

    Example:

      markbook runs elsewhere/runs
    """

    root: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")] = "runs"
    """The directory that holds the runs."""


@dataclass
class Show:
    """Read a run's completions with their marks, best and worst of a group side by side.

    Examples:

      markbook show runs/demo-20260102-150405
      markbook show runs/demo-20260102-150405 --step 0
      markbook show runs/demo-20260102-150405 --problem train-17
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The run's directory."""
    step: int | None = None
    """Which step; without it, the last one."""
    problem: str | None = None
    """Which problem, by its id."""
    limit: int = 1
    """How many groups at most."""


def parse(cls: type[T], name: str, argv: Sequence[str], default: T | None = None) -> T:
    """Return a command's options; --help shows the whole docstring, examples included."""
    return tyro.cli(  # type: ignore[return-value]  # with a default of None it still makes a T
        cls,
        prog=f"markbook {name}",
        description=inspect.getdoc(cls),
        args=list(argv),
        default=default,
    )


def train_command(argv: Sequence[str], console: Console) -> None:
    """Start or resume a run, or print its plan."""
    given = argv[0] if argv and not argv[0].startswith("-") else ""
    default = Train(settings=read_recipe(Path(given)) if given else Recipe())
    options = parse(Train, "train", argv, default)
    if options.resume:
        changed = [a for a in argv if a.startswith("--") and a.partition("=")[0] != "--resume"]
        if given or changed:
            raise MarkbookError(
                f"--resume goes on as the run's own recipe says; leave out {given or changed[0]}."
            )
        from markbook.launch import resume

        run_dir = Path(options.resume)
        resume(run_dir, console)
        _closing_words(run_dir, console)
        return
    recipe = with_paths(options.settings, Path.cwd())
    check(recipe, given or "command line")
    if options.dry_run:
        from markbook.plan import plan, print_plan

        print_plan(console, plan(recipe))
        return
    from markbook.launch import begin, new_run_dir, slug

    run_dir = Path(options.out) if options.out else new_run_dir(slug(Path(given).stem or "run"))
    begin(recipe, run_dir, console)
    _closing_words(run_dir, console)


def _closing_words(run_dir: Path, console: Console) -> None:
    console.print(
        f"Run: {run_dir}\nModel: {run_dir / 'final'} (a Hugging Face checkpoint)\n"
        f"Completions with their marks: {program()} show {run_dir}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def demo_command(argv: Sequence[str], console: Console) -> None:
    """Build the embedded base if it is not there, train it, and tell what became of it."""
    options = parse(Demo, "demo", argv)
    from markbook.demo.run import run_demo

    run_demo(options.seed, Path(options.out) if options.out else None, console)


def runs_command(argv: Sequence[str], console: Console) -> None:
    """List runs."""
    options = parse(Runs, "runs", argv)
    from markbook.runs import print_runs

    print_runs(console, Path(options.root))


def show_command(argv: Sequence[str], console: Console) -> None:
    """Show completions with their marks."""
    options = parse(Show, "show", argv)
    from markbook.runs import show

    show(console, Path(options.run), options.step, options.problem, options.limit)


COMMANDS: dict[str, Callable[[Sequence[str], Console], None]] = {
    "train": train_command,
    "demo": demo_command,
    "runs": runs_command,
    "show": show_command,
}


ENVIRONMENT_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""A full disk, a quota, rights: faults of the place, not of markbook."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0, 2 for a mistake of the user's, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    try:
        dispatch(arguments, Console(width=100 if piped else None))
    except MarkbookError as error:
        print(f"markbook: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` say, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno not in ENVIRONMENT_FAULTS:
            raise
        print(f"markbook: {error.filename or 'a file'}: {error.strerror}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("markbook: stopped.", file=sys.stderr)
        return 130
    return 0


def dispatch(arguments: Sequence[str], console: Console) -> None:
    """Run the command that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        console.print(HELP, highlight=False, markup=False, end="")
    elif arguments[0] == "--version":
        console.print(f"markbook {__version__}", highlight=False)
    elif arguments[0] in COMMANDS:
        COMMANDS[arguments[0]](arguments[1:], console)
    else:
        near = suggestion(arguments[0], COMMANDS)
        raise MarkbookError(f"{arguments[0]!r} is not a command of markbook{near}. See --help.")
