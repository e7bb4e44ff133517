"""Break every line of the pure layer, one small fault at a time: each must fail a test.

`mutants` makes the faults, `trial` runs a module's tests against each, and this file counts.
"""

import argparse
import math
import os
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mutants import Mutant, mutants
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from trial import Module, Result, Trial, warm_up

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "tools" / "equivalent.toml"
PACKAGE = "markbook"
PURE = (
    "advantage", "objective", "batch", "stats", "seeding", "sampling.distribution", "schedule",
    "metrics", "verify.answer", "verify.extract", "verify.format", "verify.language",
    "verify.latex", "verify.length", "verify.numbers", "verify.units",
)  # fmt: skip
TESTED_TOGETHER = {"verify"}
"""Folders whose modules lean on one another: after its own tests, all of the folder's are run."""

NUM_TRIALS = 2
"""How many run at a time."""

OUTCOMES = ("killed", "timed out", "equivalent", "survived", "wrongly listed")
EXAMPLES = """\
examples:
  make mutate                                                every module of the pure layer
  .venv/bin/python tools/mutate.py --module advantage        one module
  .venv/bin/python tools/mutate.py --module verify           all modules of a folder
  .venv/bin/python tools/mutate.py --module batch --line 94  only the faults of one line
  .venv/bin/python tools/mutate.py --module stats --list     show the faults, run nothing

A fault that no test can notice is listed in tools/equivalent.toml, with the reason.

exit code: 0 all others were noticed; 1 some were not, or the tests fail without any fault;
2 the command line or the list is wrong.
"""

Key = tuple[str, str, str, str]
"""What names a mutant, whatever its line number: module, function, line before and after."""


def find_module(name: str, root: Path) -> Module:
    """Return the module of this name with its tests, which mirror it."""
    *folders, last = name.split(".")
    folder = root.joinpath("tests", *folders)
    tests = [folder / f"test_{last}.py"]
    if TESTED_TOGETHER.intersection(folders):
        tests += [other for other in sorted(folder.glob("test_*.py")) if other not in tests]
    path = root.joinpath("src", PACKAGE, *folders, f"{last}.py")
    return Module(f"{PACKAGE}.{name}", path, tuple(tests))


def key_of(name: str, mutant: Mutant) -> Key:
    return name, mutant.function, mutant.before, mutant.after


def read_equivalent(path: Path) -> dict[Key, str]:
    """Return the mutants that are listed as equivalent, each with its reason."""
    with path.open("rb") as file:
        entries = tomllib.load(file).get("equivalent", [])
    return {
        (entry["module"], entry["function"], entry["before"], entry["after"]): entry["reason"]
        for entry in entries
    }


def faults_of_list(listed: Mapping[Key, str], faults: Mapping[str, Sequence[Mutant]]) -> list[str]:
    """Say what is wrong with the list: an entry must have a reason and name one mutant.

    Entries of a module of the pure layer that is not in `faults` are not looked at.
    """
    wrong = []
    for key, reason in listed.items():
        name, function, before, after = key
        number = sum(key_of(name, mutant) == key for mutant in faults.get(name, ()))
        if (number != 1 or not reason) and (name in faults or name not in PURE):
            about = "has no reason" if number == 1 else f"names {number} mutants instead of 1"
            wrong.append(f"an entry {about}: {name}, {function}\n  - {before}\n  + {after}")
    return wrong


def run_trials(
    module: Module, chosen: Sequence[Mutant], cpu_limit_s: int
) -> Iterator[tuple[Mutant, Result]]:
    """Yield each mutant with its result, in the order they finish in."""
    waiting, running = list(reversed(chosen)), dict[Mutant, Trial]()
    try:
        while waiting or running:
            while waiting and len(running) < NUM_TRIALS:
                mutant = waiting.pop()
                running[mutant] = Trial(module, mutant.source, cpu_limit_s)
            time.sleep(0.02)
            for mutant, trial in list(running.items()):
                if result := trial.poll():
                    del running[mutant]
                    yield mutant, result
    finally:
        for trial in running.values():
            trial.kill()


def run_as_it_is(module: Module) -> Result:
    """Run the tests without any fault."""
    trial = Trial(module, module.source, cpu_limit_s=600)
    while not (result := trial.poll()):
        time.sleep(0.02)
    return result


def check(
    name: str,
    module: Module,
    chosen: Sequence[Mutant],
    listed: Mapping[Key, str],
    progress: Progress,
    task: TaskID,
) -> Counter[str] | None:
    """Count what becomes of a module's mutants; None where it fails its tests as it is."""
    say, started = progress.console.print, time.monotonic()
    progress.update(task, description=name, refresh=True)
    unbroken = run_as_it_is(module)
    if unbroken.outcome != "survived":
        say(f"{name} fails its tests as it is:\n{unbroken.output}", markup=False, style="red")
        return None
    tally: Counter[str] = Counter(mutants=len(chosen))
    for mutant, result in run_trials(module, chosen, 5 + 4 * math.ceil(unbroken.cpu_seconds)):
        excused = key_of(name, mutant) in listed
        if result.outcome == "survived":
            outcome = "equivalent" if excused else "survived"
        else:
            outcome = "wrongly listed" if excused else result.outcome
        tally[outcome] += 1
        if outcome in {"survived", "wrongly listed"}:
            say(f"{module.path.relative_to(ROOT)}:{mutant.line}: {outcome}", style="bold red")
            lines = f"  - {mutant.before}\n  + {mutant.after}"
            say(lines, markup=False, highlight=False, soft_wrap=True)
        progress.update(task, advance=1, refresh=True)
    tally["seconds"] = round(time.monotonic() - started)
    return tally


def summary(name: str, tally: Counter[str]) -> str:
    """Return a module's figures in one line."""
    counts = ", ".join(f"{tally[outcome]} {outcome}" for outcome in OUTCOMES)
    return f"{name:21} {tally['mutants']:4} mutants: {counts}; {tally['seconds']} s"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Put one small fault at a time into the pure layer; each must fail a test.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--module", metavar="NAME", help="a module, or all those of a folder")
    parser.add_argument("--line", type=int, metavar="N", help="only the faults that begin there")
    parser.add_argument("--list", action="store_true", help="show the faults, run nothing")
    options = parser.parse_args(arguments)
    wanted = options.module
    options.names = [n for n in PURE if wanted in {None, n} or n.startswith(f"{wanted}.")]
    if not options.names:
        parser.error(f"--module {wanted}: no such module; there are {', '.join(PURE)}")
    if options.line and len(options.names) > 1:
        parser.error("--line needs --module NAME, a single module")
    return options


def show(
    modules: Mapping[str, Module],
    faults: Mapping[str, Sequence[Mutant]],
    listed: Mapping[Key, str],
) -> None:
    """Print the faults, with the reasons of those that are listed as equivalent."""
    for name, found in faults.items():
        for mutant in found:
            print(f"{modules[name].path.relative_to(ROOT)}:{mutant.line}: {mutant.function}")
            print(f"  - {mutant.before}\n  + {mutant.after}")
            if reason := listed.get(key_of(name, mutant)):
                print(f"  equivalent: {reason}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = parse(arguments)
    os.chdir(ROOT)
    console = Console()
    modules = {name: find_module(name, ROOT) for name in options.names}
    faults = {name: mutants(module.source) for name, module in modules.items()}
    listed = read_equivalent(EQUIVALENT)
    wrong = faults_of_list(listed, faults)
    for sentence in wrong:
        console.print(f"{EQUIVALENT.relative_to(ROOT)}: {sentence}", markup=False, style="red")
    if wrong:
        return 2
    if options.line:
        faults = {n: [m for m in found if m.line == options.line] for n, found in faults.items()}
        if not any(faults.values()):
            console.print(f"no fault begins on line {options.line}", style="red")
            return 2
    if options.list:
        show(modules, faults, listed)
        return 0
    console.print("importing what the tests need")
    warm_up(modules.values(), ROOT, PACKAGE)
    columns = (TextColumn("{task.description:21}"), BarColumn(), MofNCompleteColumn())
    tallies = {}
    with Progress(*columns, TimeRemainingColumn(), console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=sum(map(len, faults.values())))
        for name, module in modules.items():
            tally = check(name, module, faults[name], listed, progress, task)
            if tally is None:
                return 1
            tallies[name] = tally
    total: Counter[str] = sum(tallies.values(), Counter())
    for name, tally in [*tallies.items(), ("in all", total)]:
        console.print(summary(name, tally), highlight=False, soft_wrap=True)
    return 1 if total["survived"] or total["wrongly listed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
