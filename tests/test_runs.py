"""What `markbook runs` and `markbook show` print, from runs made by hand."""

import fcntl
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from markbook import ledger
from markbook.errors import MarkbookError
from markbook.records import Completion, FinishReason, Group, Problem, Status, Verdict
from markbook.runs import list_runs, print_runs, shortened, show, visible

FACTS = {
    "created": "2026-01-02T15:04:05+0000",
    "num_steps": 150,
    "task": "chains",
    "model": "org/base",
}


def make_run(path: Path, facts: dict[str, Any] | None = None, metrics: str = "") -> Path:
    path.mkdir(parents=True)
    (path / "recipe.toml").write_text("seed = 0\n")
    (path / "run.json").write_text(json.dumps(FACTS if facts is None else facts))
    if metrics:
        (path / "metrics.jsonl").write_text(metrics)
    return path


def group(
    problem_id: str,
    marks: Sequence[tuple[Status, float | None]],
    index: int = 0,
    texts: Sequence[str] = (),
    finish_reason: FinishReason = "stopped",
) -> Group:
    """A group with one completion a (status, reward)."""
    return Group(
        problem=Problem(problem_id, f"Question of {problem_id}?", "7", {"level": 3}),
        prompt_ids=(1,),
        completions=tuple(
            Completion((5,) * (i + 1), (-0.5,) * (i + 1), finish_reason, 40, i, text)
            for i, text in enumerate(texts or [f"text {i} of {problem_id}" for i in range(99)])
            if i < len(marks)
        ),
        verdicts=tuple(
            Verdict(
                status,
                "7" if status == "correct" else None,
                f"reason {i}",
                {"accuracy": float(status == "correct"), "format": 0.25},
            )
            for i, (status, _) in enumerate(marks)
        ),
        rewards=tuple(float("nan") if reward is None else reward for _, reward in marks),
        index=index,
    )


def write(
    run: Path, step: int, groups: Sequence[Group], *, phase: str = "training", used: bool = True
) -> Path:
    split = "train" if phase == "training" else "test"
    rows = ledger.rows_of(
        groups,
        [[r if math.isnan(r) else 0.5 for r in g.rewards] if used else None for g in groups],
        step=step,
        split=split,
        prompt_text=lambda p: f"PROMPT {p.prompt}",
    )
    return ledger.write_shard(run / "ledger", step, rows, name=phase)


RIGHT: tuple[Status, float] = ("correct", 2.0)
WRONG: tuple[Status, float] = ("incorrect", 0.0)
HALF: tuple[Status, float] = ("no_answer", 0.25)
LOST: tuple[Status, None] = ("unscorable", None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps, the last with a dull and a telling group, and two evaluations."""
    path = make_run(tmp_path / "runs" / "demo")
    for step in range(3):
        write(
            path,
            step,
            [
                group("train-1", [WRONG, WRONG]),
                group("train-2", [WRONG, HALF, RIGHT, LOST], index=1),
            ],
        )
    write(path, 0, [group("test-1", [WRONG])], phase="evaluation", used=False)
    write(path, 3, [group("test-1", [RIGHT])], phase="evaluation", used=False)
    return path


def printed(action: Any, *arguments: Any, width: int = 120, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **options.pop("console", {}))
    action(console, *arguments, **options)
    output: io.StringIO = console.file  # type: ignore[assignment]  # the file given above
    return output.getvalue()


def flat(text: str) -> str:
    """Without frames and line breaks, so that wrapping does not matter."""
    return " ".join(re.sub(r"[│╭╮╰╯─]|-{3,}", " ", text).split())


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_is_summed_up(tmp_path: Path) -> None:
    metrics = (
        '{"step": 0, "correct_share": 0.1, "reward_mean": 0.5}\n'
        '{"step": 1, "correct_share": 0.25, "reward_mean": 1.5}\n'
        '{"step": 2, "correct_sh'  # a kill cut this line short
    )
    make_run(tmp_path / "one", metrics=metrics)
    [run] = list_runs(tmp_path)
    assert (run.path, run.state) == (tmp_path / "one", "stopped")
    assert (run.steps_done, run.num_steps) == (2, 150)
    assert (run.correct_share, run.reward_mean) == (0.25, 1.5)
    assert (run.task, run.model) == ("chains", "org/base")
    assert run.created == "2026-01-02T15:04:05+0000"
    assert run.faults == ()
    lines = printed(print_runs, tmp_path).splitlines()
    assert " ".join(lines[0].split()) == "run state steps task model correct reward started"
    assert " ".join(lines[1].split()) == (
        "one stopped 2/150 chains org/base 25.0 % 1.50 2026-01-02 15:04"
    )


def test_a_last_line_longer_than_one_read_is_found(tmp_path: Path) -> None:
    long = json.dumps({"step": 7, "reward_mean": 1.0, "words": "x" * 200_000})
    make_run(tmp_path / "one", metrics='{"step": 6}\n' + long + '\n{"step": 8')
    assert list_runs(tmp_path)[0].steps_done == 8


def test_a_run_before_its_first_step(tmp_path: Path) -> None:
    make_run(tmp_path / "one", facts={**FACTS, "model": "/long/way/to/base-1"})
    [run] = list_runs(tmp_path)
    assert (run.steps_done, run.correct_share) == (0, None)
    assert "0/150 chains base-1 - - 2026" in " ".join(printed(print_runs, tmp_path).split())


def test_states(tmp_path: Path) -> None:
    def states() -> dict[str, str]:
        return {run.path.name: run.state for run in list_runs(tmp_path)}

    for name in ("a", "b", "c"):
        make_run(tmp_path / name)
        (tmp_path / name / ".lock").write_text("1")
    (tmp_path / "b" / "final").mkdir()
    (tmp_path / "no-run").mkdir()
    (tmp_path / "file").write_text("")
    with (tmp_path / "c" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert states() == {"a": "stopped", "b": "done", "c": "running"}
    assert states() == {"a": "stopped", "b": "done", "c": "stopped"}
    with (tmp_path / "a" / ".lock").open("a") as lock:  # looking has not kept it
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_newest_run_is_last(tmp_path: Path) -> None:
    for name, month in (("a", 3), ("b", 1), ("c", 2)):
        make_run(tmp_path / name, facts={**FACTS, "created": f"2026-0{month}-02T15:04:05+0000"})
    assert [run.path.name for run in list_runs(tmp_path)] == ["b", "c", "a"]


@pytest.mark.parametrize("content", ["", "{", "[1]", "\ud800"])
def test_one_unreadable_run_hides_no_other(tmp_path: Path, content: str) -> None:
    make_run(tmp_path / "bad")
    (tmp_path / "bad" / "run.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    (tmp_path / "bad" / "metrics.jsonl").write_text("garbage\n")
    make_run(tmp_path / "good")
    output = flat(printed(print_runs, tmp_path))
    assert "good stopped 0/150" in output
    assert "bad stopped 0/?" in output
    assert f"{tmp_path / 'bad'}/metrics.jsonl: can't be read" in output
    assert ("run.json: holds list" if content == "[1]" else "run.json") in output


def test_a_table_that_is_too_wide_becomes_lines(tmp_path: Path) -> None:
    make_run(tmp_path / "a-long-name-of-a-run")
    output = printed(print_runs, tmp_path, width=40)
    assert " ".join(output.split()) == (
        "a-long-name-of-a-run: state stopped, steps 0/150, task chains, model org/base, "
        "correct -, reward -, started 2026-01-02 15:04"
    )


def test_no_runs(tmp_path: Path) -> None:
    assert "holds no runs" in printed(print_runs, tmp_path)
    with pytest.raises(MarkbookError, match="none: there is no such directory"):
        list_runs(tmp_path / "none")
    make_run(tmp_path / "one")
    with pytest.raises(MarkbookError, match=r"one: is itself a run; read it with `markbook show"):
        list_runs(tmp_path / "one")


# --- show -----------------------------------------------------------------------------------------


def test_the_last_step_and_its_most_telling_group(run: Path) -> None:
    output = printed(show, run)
    words = flat(output)
    assert "step 2, training (train): problem train-2, level 3" in words
    assert "Question of train-2?" in output
    assert "Gold answer: 7" in output
    assert "1 of 3 right, 1 wrong, 1 without an answer, 1 unscorable; mean reward 0.75." in output
    assert "train-1" not in output
    assert "Groups not shown: 1; --limit 2 shows all." in output


def test_best_and_worst_stand_side_by_side_or_one_below_the_other(run: Path) -> None:
    [line] = [line for line in printed(show, run).splitlines() if "sample" in line]
    assert line.index("sample 2, best") < line.index("sample 0, worst")
    narrow = [line for line in printed(show, run, width=60).splitlines() if "sample" in line]
    assert len(narrow) == 2
    assert "sample 2, best" in narrow[0]
    assert all(len(line) <= 60 for line in printed(show, run, width=60).splitlines())


def test_a_panel_has_every_mark(run: Path) -> None:
    write(run, 5, [group("train-9", [RIGHT, WRONG], finish_reason="truncated")])
    words = flat(printed(show, run, width=60))
    for mark in (
        "right reward 2.00, advantage 0.50 accuracy 1, format 0.25",
        "1 tokens, truncated, policy version 40 answer read: 7 why: reason 0 text 0 of train-9",
        "wrong reward 0.00, advantage 0.50 accuracy 0, format 0.25",
        "2 tokens, truncated, policy version 40 answer read: - why: reason 1 text 1 of train-9",
    ):
        assert mark in words


def test_a_group_that_teaches_nothing_says_so(run: Path) -> None:
    output = flat(printed(show, run, step=1, limit=2))
    assert output.index("train-2") < output.index("train-1")
    assert "0 of 2 right, 2 wrong; mean reward 0.00; all rewards are equal, so this" in output
    assert "sample 1, worst" not in output
    assert "Groups not shown" not in output
    write(run, 6, [group("train-9", [WRONG, WRONG])], used=False)
    assert "left out of the update." in flat(printed(show, run))
    assert "left out of the update." not in output


def test_equal_rewards_with_no_right_answer_are_ordered_by_mark(run: Path) -> None:
    write(run, 7, [group("train-9", [("incorrect", 1.0), ("correct", 1.0), ("correct", 0.0)])])
    words = flat(printed(show, run, step=7))
    assert "sample 1, best" in words
    assert "sample 2, worst" in words


def test_an_unscorable_completion_is_shown_only_for_want_of_others(run: Path) -> None:
    assert "unscorable reward" not in flat(printed(show, run, width=60))
    write(run, 8, [group("train-9", [LOST, RIGHT])])
    assert "unscorable reward -, advantage -" in flat(printed(show, run, width=60))
    write(run, 9, [group("train-9", [LOST, LOST])])
    assert "0 of 0 right, 2 unscorable; mean reward" in flat(printed(show, run))


def test_an_evaluation_is_shown_where_a_step_has_only_that(run: Path) -> None:
    words = flat(printed(show, run, step=3))
    assert "step 3, evaluation (test): problem test-1" in words
    assert "left out" not in words
    assert "teaches nothing" not in words
    assert "evaluation" not in printed(show, run, step=0)
    assert "evaluation" in printed(show, run, step=0, problem="test-1")


def test_a_problem_is_listed_over_steps_then_shown_at_the_last(run: Path) -> None:
    output = printed(show, run, problem="train-2")
    listed = [line.split() for line in output.splitlines()[1:4]]
    assert listed == [
        [str(step), "training", "(train)", "1", "of", "3", "0.75", "2.5"] for step in range(3)
    ]
    assert output.count("Question of train-2?") == 1
    assert "step 2, training (train): problem train-2" in output
    assert "step 3, evaluation (test): problem test-1" in printed(show, run, problem="test-1")


def test_a_problem_at_a_step(run: Path) -> None:
    output = printed(show, run, step=1, problem="train-1")
    assert "step 1, training (train): problem train-1" in output
    assert "train-2" not in output


def test_what_is_not_there_is_named(run: Path) -> None:
    with pytest.raises(MarkbookError, match=r"--step 9: the ledger of .* has steps 0 to 3\."):
        printed(show, run, step=9)
    write(run, 12, [group("train-3", [WRONG])])
    with pytest.raises(MarkbookError, match=r"has steps 0 to 12, with gaps\."):
        printed(show, run, step=9)
    with pytest.raises(MarkbookError, match=r"is not in the ledger of .*did you mean 'train-2'"):
        printed(show, run, problem="trian-2")
    with pytest.raises(MarkbookError, match=r"--problem test-1: is not in step 1; it is in step 0"):
        printed(show, run, step=1, problem="test-1")
    with pytest.raises(MarkbookError, match="--limit 0: must be at least 1"):
        printed(show, run, limit=0)


def test_no_completions_yet(tmp_path: Path) -> None:
    with pytest.raises(MarkbookError, match="its ledger holds no completions"):
        printed(show, make_run(tmp_path / "one"))


def test_not_a_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MarkbookError, match=r"is not a run but holds 1; name one, such as .*demo"):
        printed(show, run.parent)
    with pytest.raises(MarkbookError, match=r"does not exist; did you mean '.*runs/demo'"):
        printed(show, run.parent / "dmeo")
    with pytest.raises(MarkbookError, match=r"is not a run .there is no recipe.toml in it"):
        printed(show, run / "ledger")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MarkbookError, match="demo: does not exist; did you mean 'runs/demo'"):
        printed(show, Path("demo"))


def test_damage_is_told_and_the_rest_is_shown(run: Path) -> None:
    bad = write(run, 2, [group("train-2", [WRONG])])
    bad.write_bytes(bad.read_bytes()[:-20])
    output = flat(printed(show, run, problem="train-2"))
    assert "step-000002.parquet: this shard is damaged" in output
    assert "step 1, training (train): problem train-2" in output
    with pytest.raises(MarkbookError, match="every shard that was asked for is damaged"):
        printed(show, run)


# --- text that is not trusted ---------------------------------------------------------------------

HOSTILE = (
    "[bold red]m[/bold red] \x1b[2J\x1b]0;title\x07 \x9b31m \u202eabc\u2066 :smile: \r\x08\x7f\0"
)


def only_styles(text: str) -> str:
    """Take rich's own colours out."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("colours", [True, False])
def test_nothing_a_model_wrote_steers_the_terminal(run: Path, colours: bool) -> None:
    hostile = group("train-9", [RIGHT, WRONG], texts=[HOSTILE, HOSTILE])
    problem = Problem("id\x1b[2J", HOSTILE, HOSTILE, {"level": "\x1b[2J"})
    verdicts = tuple(
        Verdict(v.status, HOSTILE, HOSTILE, {"a\x1b[2J": 1.0}) for v in hostile.verdicts
    )
    write(run, 4, [Group(problem, (1,), hostile.completions, verdicts, hostile.rewards)])
    options = {"force_terminal": True, "color_system": "standard"} if colours else {}
    for width in (60, 120):
        output = printed(show, run, width=width, console=options)
        assert ("\x1b" in output) == colours
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066]", only_styles(output))
        assert "[bold red]m[/bold red]" in output
        assert "␛[2J␛]0;title␇ <U+009B>31m" in flat(only_styles(output))
        assert ":smile:" in output
    assert "id␛[2J" in only_styles(printed(show, run, problem="id\x1b[2J", console=options))


def test_visible_signs() -> None:
    console = Console(file=io.StringIO())
    assert visible("a\tb\nc", console) == "a\tb\nc"
    assert visible("\x00\x1b\r\x7f\x85", console) == "␀␛␍␡<U+0085>"
    assert visible("\u200b\u202e\u2028\ue000\ud800", console) == (
        "<U+200B><U+202E><U+2028><U+E000><U+D800>"
    )
    assert visible("é ∞ 你 😀 ½", console) == "é ∞ 你 😀 ½"


@given(st.text(st.characters()))
def test_everything_can_be_printed(text: str) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=80)
    shown = visible(text, console)
    assert shown.isascii()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", shown)
    again = visible(shown, console)
    assert again == shown


@pytest.fixture
def ascii_console() -> Iterator[Console]:
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as file:
        yield Console(file=file, width=100)


def test_a_terminal_without_unicode(run: Path, ascii_console: Console) -> None:
    write(run, 4, [group("train-9", [RIGHT, WRONG], texts=["3 ≤ 4 \x1b", "½"])])
    show(ascii_console, run)
    show(ascii_console, run, problem="train-9")
    print_runs(ascii_console, run.parent)


def test_the_middle_of_a_very_long_text_is_left_out_and_counted() -> None:
    assert shortened("x" * 6000) == "x" * 6000
    text = "a" * 3000 + "b" * 1234 + "c" * 3000
    assert shortened(text) == ("a" * 3000 + "\n[... 1234 characters left out ...]\n" + "c" * 3000)
