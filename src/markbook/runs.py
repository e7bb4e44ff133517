"""Runs on the disk, for reading in a terminal: which there are, and how completions were marked.

Whatever a model wrote is shown without trusting it: control characters become visible signs, and
nothing in it is taken for the terminal's or this program's own markup.
"""

import fcntl
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from markbook.display import number, percent
from markbook.errors import MarkbookError, suggestion

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Record = Mapping[str, Any]

SIDE_BY_SIDE = 90
"""Columns of a terminal from which the best and the worst of a group stand side by side."""
LONGEST = 6000
"""Characters of a text that are shown; of a longer one, half of them from either end."""
COLUMNS = ("run", "state", "steps", "task", "model", "correct", "reward", "started")
NUMBERS = ("steps", "correct", "reward")
STYLES = {"correct": "green", "incorrect": "red", "no_answer": "yellow", "unscorable": "magenta"}
NAMES = {
    "correct": "right",
    "incorrect": "wrong",
    "no_answer": "without an answer",
    "unscorable": "unscorable",
}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What one line about a run says; None where a run doesn't tell."""

    path: Path
    state: Literal["running", "done", "stopped"]
    """`running`: a process holds the run's lock; `done`: its final model is written."""
    steps_done: int
    num_steps: int | None
    task: str | None
    model: str | None
    correct_share: float | None
    """Of the last step, as is `reward_mean`."""
    reward_mean: float | None
    created: str | None
    """Local time in ISO 8601."""
    faults: tuple[str, ...] = ()
    """Sentences about files of the run that can't be read."""


def is_run(path: Path) -> bool:
    """Say whether a directory is a run: it has the recipe that it was begun with."""
    return (path / "recipe.toml").is_file()


def list_runs(root: Path) -> list[RunSummary]:
    """Return what each run under a directory says of itself, the oldest first.

    Raises `MarkbookError` where there is no such directory or it is a run itself.
    """
    if not root.is_dir():
        raise MarkbookError(f"{root}: there is no such directory; `markbook runs DIR` lists DIR.")
    if is_run(root):
        raise MarkbookError(f"{root}: is itself a run; read it with `markbook show {root}`.")
    found = [summarize(path) for path in sorted(root.iterdir()) if is_run(path)]
    return sorted(found, key=lambda run: run.created or "")


def summarize(run_dir: Path) -> RunSummary:
    """Return what a run says of itself; a file of it that can't be read is among the faults."""
    faults: list[str] = []
    facts = _read(run_dir / "run.json", faults, whole=True)
    last = _read(run_dir / "metrics.jsonl", faults, whole=False)
    running = _is_held(run_dir)
    return RunSummary(
        path=run_dir,
        state="running" if running else "done" if (run_dir / "final").is_dir() else "stopped",
        steps_done=last["step"] + 1 if "step" in last else 0,
        num_steps=facts.get("num_steps"),
        task=facts.get("task"),
        model=facts.get("model"),
        correct_share=last.get("correct_share"),
        reward_mean=last.get("reward_mean"),
        created=facts.get("created"),
        faults=tuple(faults),
    )


def _read(path: Path, faults: list[str], *, whole: bool) -> dict[str, Any]:
    """Return the object in a JSON file, or the last whole line of a JSON Lines file.

    Empty where there is none, or it can't be read, which is then added to the faults.
    """
    if not whole and not path.exists():
        return {}  # no step is finished yet
    try:
        text = path.read_text(encoding="utf-8") if whole else _last_line(path)
        found = json.loads(text) if text or whole else {}
    except (OSError, ValueError) as error:
        faults.append(f"{path}: can't be read ({error}).")
        return {}
    if not isinstance(found, dict):
        faults.append(f"{path}: holds {type(found).__name__}, not an object.")
        return {}
    return found


def _last_line(path: Path) -> str:
    """Return the last line that ends; one that a kill cut short is passed over."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        tail, begin = b"", size
        while begin > 0 and tail.count(b"\n") < 2:
            begin = max(0, begin - 65536)
            file.seek(begin)
            tail = file.read(size - begin)
    whole = tail[: tail.rfind(b"\n") + 1].splitlines()
    return whole[-1].decode("utf-8") if whole else ""


def _is_held(run_dir: Path) -> bool:
    """Say whether a process holds the run's lock, which the kernel lets go when it dies."""
    try:
        with (run_dir / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def print_runs(console: Console, root: Path) -> None:
    """Print a table of the runs under a directory, the newest last."""
    runs = list_runs(root)
    if not runs:
        _say(console, f"{root} holds no runs; `markbook demo` makes one.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True)
    for run in runs:
        table.add_row(*(Text(visible(cell, console)) for cell in _cells(run)))
    unbound = console.options.update(max_width=10_000)
    if console.measure(table, options=unbound).maximum <= console.width:
        console.print(table)
    else:
        for run in runs:
            name, *cells = _cells(run)
            facts = zip(COLUMNS[1:], cells, strict=True)
            _say(console, f"{name}: {', '.join(f'{what} {cell}' for what, cell in facts)}")
    for fault in (fault for run in runs for fault in run.faults):
        _say(console, fault)


def _cells(run: RunSummary) -> tuple[str, ...]:
    """Return a run's cells in the order of `COLUMNS`."""
    model = run.model or "-"
    return (
        run.path.name,
        run.state,
        f"{run.steps_done}/{'?' if run.num_steps is None else run.num_steps}",
        run.task or "-",
        Path(model).name if Path(model).is_absolute() else model,
        percent(run.correct_share),
        number(run.reward_mean),
        (run.created or "-")[:16].replace("T", " "),
    )


def show(
    console: Console,
    run_dir: Path,
    step: int | None = None,
    problem: str | None = None,
    limit: int = 1,
) -> None:
    """Print a run's completions with their marks, the best and the worst of a group side by side.

    Without a step, the last one; without a problem, the step's groups whose rewards differ most,
    at most `limit` of them. A problem without a step is first listed over all steps. Raises
    `MarkbookError` where there is no such run, step or problem.
    """
    from markbook.ledger import connect

    _check_run(run_dir)
    if limit < 1:
        raise MarkbookError(f"--limit {limit}: must be at least 1.")
    if step is None and problem is None:
        step = _last_step(run_dir)
    if step is not None:
        _check_step(run_dir, step)
    ledger = connect(run_dir, step=step, tell=lambda text: _say(console, text))
    groups = _groups(ledger, problem)
    if problem is not None and not groups:
        raise MarkbookError(_unknown_problem(run_dir, problem, step))
    if step is None:
        _print_history(console, groups)
        groups = groups[-1:]
    else:
        if problem is None and any(group["phase"] == "training" for group in groups):
            groups = [group for group in groups if group["phase"] == "training"]
        groups.sort(key=lambda group: (-(group["spread"] or 0.0), group["group_index"]))
    for group in groups[:limit]:
        rows = _records(
            ledger,
            "select * from ledger where step = ? and phase = ? and group_index = ? "
            "order by sample_index",
            [group["step"], group["phase"], group["group_index"]],
        )
        _print_group(console, group, rows)
    if len(groups) > limit:
        _say(console, f"Groups not shown: {len(groups) - limit}; --limit {len(groups)} shows all.")


def _check_run(run_dir: Path) -> None:
    if is_run(run_dir):
        return
    if run_dir.is_dir() and (inside := sorted(p.name for p in run_dir.iterdir() if is_run(p))):
        raise MarkbookError(
            f"{run_dir}: is not a run but holds {len(inside)}; name one, such as "
            f"{run_dir / inside[-1]}."
        )
    near = ""
    for folder in (run_dir.parent, Path("runs")):
        if not near and folder.is_dir():
            known = [str(path) for path in sorted(folder.iterdir()) if is_run(path)]
            near = suggestion(str(folder / run_dir.name), known)
    what = "is not a run (there is no recipe.toml in it)" if run_dir.exists() else "does not exist"
    raise MarkbookError(f"{run_dir}: {what}{near or '.'} `markbook runs` lists the runs in ./runs.")


def _last_step(run_dir: Path) -> int | None:
    """Return the last step that was sampled to train on, else the last one evaluated."""
    from markbook.ledger import TRAINING, shards

    found = shards(run_dir / "ledger")
    steps = [shard.step for shard in found if shard.phase == TRAINING]
    return max(steps or [shard.step for shard in found], default=None)


def _check_step(run_dir: Path, step: int) -> None:
    from markbook.ledger import shards

    steps = sorted({shard.step for shard in shards(run_dir / "ledger")})
    if steps and step not in steps:
        gaps = "" if len(steps) == steps[-1] - steps[0] + 1 else ", with gaps"
        raise MarkbookError(
            f"--step {step}: the ledger of {run_dir} has steps {steps[0]} to {steps[-1]}{gaps}."
        )


def _unknown_problem(run_dir: Path, problem: str, step: int | None) -> str:
    from markbook.ledger import connect

    ledger = connect(run_dir, tell=lambda _: None)  # damage has been told of already
    found = _records(ledger, "select problem_id, step from ledger group by all order by all", [])
    steps = [row["step"] for row in found if row["problem_id"] == problem]
    if steps:
        shown = ", ".join(map(str, steps[:10])) + (", ..." if len(steps) > 10 else "")
        return f"--problem {problem}: is not in step {step}; it is in step {shown}."
    near = suggestion(problem, {row["problem_id"] for row in found})
    return f"--problem {problem}: is not in the ledger of {run_dir}{near or '.'}"


def _records(ledger: "DuckDBPyConnection", query: str, values: Sequence[Any]) -> list[Record]:
    cursor = ledger.execute(query, values)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _groups(ledger: "DuckDBPyConnection", problem: str | None) -> list[Record]:
    """Return one record a group, in the order they were sampled."""
    return _records(
        ledger,
        """
        select step, phase, group_index, any_value(split) as split,
            any_value(problem_id) as problem_id, any_value(problem) as problem,
            any_value(answer) as answer, any_value(level) as level, count(*) as size,
            count(*) filter (status = 'correct') as correct,
            count(*) filter (status = 'incorrect') as incorrect,
            count(*) filter (status = 'no_answer') as no_answer,
            count(*) filter (status = 'unscorable') as unscorable,
            count(*) filter (used) as used, avg(reward) as reward, avg(num_tokens) as num_tokens,
            round(stddev_pop(reward), 9) as spread
        from ledger where $1 is null or problem_id = $1
        group by step, phase, group_index order by step, phase, group_index
        """,
        [problem],
    )


def _print_history(console: Console, groups: Sequence[Record]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "phase", "right", "mean reward", "mean tokens"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for group in groups:
        table.add_row(
            str(group["step"]),
            Text(visible(f"{group['phase']} ({group['split']})", console)),
            f"{group['correct']} of {group['size'] - group['unscorable']}",
            number(group["reward"]),
            number(group["num_tokens"], 1),
        )
    console.print(table, highlight=False)


def _print_group(console: Console, group: Record, rows: Sequence[Record]) -> None:
    level = f", level {group['level']}" if group["level"] is not None else ""
    title = (
        f"step {group['step']}, {group['phase']} ({group['split']}): "
        f"problem {group['problem_id']}{level}"
    )
    console.print()
    _say(console, title, style="bold")
    _say(console, shortened(group["problem"]))
    _say(console, f"Gold answer: {group['answer']}")
    _say(console, _marks_of(group))
    best, worst = _best_and_worst(rows)
    panels = [_panel(best, "best" if group["spread"] else "", console)]
    if worst is not None:
        panels.append(_panel(worst, "worst" if group["spread"] else "", console))
    if console.width >= SIDE_BY_SIDE and len(panels) > 1:
        grid = Table.grid(expand=True, padding=(0, 1))
        for _ in panels:
            grid.add_column(ratio=1)
        grid.add_row(*panels)
        console.print(grid)
    else:
        for panel in panels:
            console.print(panel)


def _marks_of(group: Record) -> str:
    """Return the sentence about how a whole group was marked."""
    counts = [f"{group['correct']} of {group['size'] - group['unscorable']} right"]
    counts += [f"{group[key]} {NAMES[key]}" for key in list(NAMES)[1:] if group[key]]
    line = f"{', '.join(counts)}; mean reward {number(group['reward'])}"
    if group["phase"] == "training":
        if group["spread"] == 0:
            line += "; all rewards are equal, so this group teaches nothing"
        if not group["used"]:
            line += "; left out of the update"
    return line + "."


def _best_and_worst(rows: Sequence[Record]) -> tuple[Record, Record | None]:
    """Return the rows of highest and lowest reward; unscorable ones only where others lack."""

    def rank(row: Record) -> tuple[bool, float, bool, int]:
        reward, wrong = row["reward"], row["status"] != "correct"
        return (reward is None, -(reward or 0.0), wrong, row["sample_index"])

    ranked = sorted(rows, key=rank)
    scored = [row for row in ranked if row["reward"] is not None]
    shown = scored if len(scored) > 1 else ranked
    return shown[0], shown[-1] if len(shown) > 1 else None


def _panel(row: Record, place: str, console: Console) -> Panel:
    style = STYLES[row["status"]]
    components = ", ".join(f"{name} {value:g}" for name, value in row["components"].items())
    facts = [
        f"reward {number(row['reward'])}, advantage {number(row['advantage'])}",
        components or "no components",
        f"{row['num_tokens']} tokens, {row['finish_reason']}, policy version "
        f"{row['policy_version']}",
    ]
    facts.append(f"answer read: {'-' if row['extracted'] is None else row['extracted']}")
    facts.append(f"why: {row['reason']}")
    parts: list[RenderableType] = [Text(NAMES[row["status"]], style=f"bold {style}")]
    parts += [Text(visible(fact, console)) for fact in facts]
    parts += [Rule(characters="-", style="dim"), Text(visible(shortened(row["text"]), console))]
    title = f"sample {row['sample_index']}" + (f", {place}" if place else "")
    return Panel(Group(*parts), title=Text(title), title_align="left", border_style=style)


def shortened(text: str) -> str:
    """Return a text with the middle of a very long one left out, and how much that is."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def visible(text: str, console: Console) -> str:
    """Return a text with no character that steers a terminal or that the console can't write.

    Control characters become their Unicode pictures; other format characters (directions,
    zero-width) and unassigned ones their code point.

    >>> visible("a\\x1b[2Jb\\u202e", Console())
    'a␛[2Jb<U+202E>'
    """
    shown = "".join(map(_visible_character, text))
    return shown.encode(console.encoding, "backslashreplace").decode(console.encoding)


def _visible_character(character: str) -> str:
    code = ord(character)
    if character in "\n\t" or (code < 0x7F and code >= 0x20):
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        return f"<U+{code:04X}>"
    return character


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text, console), style=style))
