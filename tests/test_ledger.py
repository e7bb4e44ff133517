"""The ledger: what a row says, that shards repeat bit for bit, and what becomes of damage."""

import math
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from markbook import ledger
from markbook.errors import MarkbookError
from markbook.records import Completion, Group, Problem, Prompt, Status, Verdict

NAN = math.nan


def group(
    rewards: list[float],
    *,
    index: int = 0,
    problem_id: str = "p-1",
    prompt: Prompt = "What is 3 + 4?",
    metadata: Mapping[str, Any] | None = None,
    text: str = "\\boxed{7}",
    status: Status = "correct",
    seconds: float = 0.0,
) -> Group:
    """A group with one completion a reward; NaN makes an unscorable one."""
    lost = [math.isnan(reward) for reward in rewards]
    return Group(
        problem=Problem(problem_id, prompt, "7", metadata or {}),
        prompt_ids=(1, 2),
        completions=tuple(
            Completion((5, 6, i), (-0.5, -0.25, -1.0), "stopped", 4, i, text)
            for i in range(len(rewards))
        ),
        verdicts=tuple(
            Verdict("unscorable", None, "marking raised", seconds=seconds)
            if none
            else Verdict(status, "7", "7 equals 7", {"accuracy": 1.0, "format": 0.5}, (True, False))
            for none in lost
        ),
        rewards=tuple(rewards),
        draw=2,
        index=index,
    )


def rows(*groups: Group, step: int = 3, split: str = "train") -> list[ledger.Row]:
    advantages = [[0.5] * len(g.rewards) for g in groups]
    return ledger.rows_of(
        groups, advantages, step=step, split=split, prompt_text=lambda p: f"Q: {p.prompt}\nA:"
    )


def read(run_dir: Path, query: str = "select * from ledger", **options: Any) -> list[Any]:
    return ledger.connect(run_dir, **options).execute(query).fetchall()


def test_a_row_has_everything(tmp_path: Path) -> None:
    one = group([2.0], index=5, metadata={"level": 3})
    made = ledger.rows_of(
        [one], [[1.5]], step=12, split="train", prompt_text=lambda p: f"Q: {p.prompt}\nA:"
    )
    path = ledger.write_shard(tmp_path / "ledger", 12, made)
    assert path == tmp_path / "ledger" / "step-000012.parquet"
    [row] = pq.read_table(path).to_pylist(maps_as_pydicts="strict")
    assert row == {
        "step": 12,
        "phase": "training",
        "split": "train",
        "draw": 2,
        "group_index": 5,
        "problem_id": "p-1",
        "problem": "What is 3 + 4?",
        "prompt": "Q: What is 3 + 4?\nA:",
        "answer": "7",
        "level": "3",
        "sample_index": 0,
        "text": "\\boxed{7}",
        "token_ids": [5, 6, 0],
        "sampler_logprobs": [-0.5, -0.25, -1.0],
        "num_tokens": 3,
        "finish_reason": "stopped",
        "policy_version": 4,
        "status": "correct",
        "extracted": "7",
        "reason": "7 equals 7",
        "components": {"accuracy": 1.0, "format": 0.5},
        "step_verdicts": [True, False],
        "reward": 2.0,
        "advantage": 1.5,
        "used": True,
    }
    assert list(row) == ledger.SCHEMA.names


def test_every_column_is_documented_in_the_shard_itself(tmp_path: Path) -> None:
    path = ledger.write_shard(tmp_path, 0, rows(group([1.0])))
    for field in pq.read_schema(path):
        assert len(field.metadata[b"doc"]) > 10


def test_what_was_not_trained_on_is_null_and_not_used(tmp_path: Path) -> None:
    made = ledger.rows_of(
        [group([1.0, NAN, 0.0]), group([1.0, 1.0], index=1)],
        [[1.0, NAN, -1.0], None],
        step=0,
        split="train",
        prompt_text=str,
    )
    ledger.write_shard(tmp_path / "ledger", 0, made)
    query = "select reward, advantage, used, status from ledger order by group_index, sample_index"
    assert read(tmp_path, query) == [
        (1.0, 1.0, True, "correct"),
        (None, None, False, "unscorable"),
        (0.0, -1.0, True, "correct"),
        (1.0, None, False, "correct"),
        (1.0, None, False, "correct"),
    ]
    assert read(tmp_path, "select avg(reward), count(reward), count(*) from ledger") == [
        (0.75, 4, 5)
    ]


def test_an_advantage_short_of_a_completion_is_a_fault() -> None:
    with pytest.raises(ValueError, match="zip"):
        ledger.rows_of([group([1.0, 0.0])], [[1.0]], step=0, split="train", prompt_text=str)


def test_an_evaluation_stands_beside_the_step_it_comes_before(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    for step in range(8):
        ledger.write_shard(folder, step, rows(group([1.0])))
        ledger.write_shard(folder, step, rows(group([0.0])), name="evaluation")
    assert [p.path.name for p in ledger.shards(folder)] == [
        name
        for step in range(8)
        for name in (f"step-00000{step}-evaluation.parquet", f"step-00000{step}.parquet")
    ]
    query = "select phase, reward from ledger order by phase"
    assert read(tmp_path, query, step=3) == [("evaluation", 0.0), ("training", 1.0)]


def test_a_prompt_of_messages_is_readable_text(tmp_path: Path) -> None:
    messages = ({"role": "system", "content": "Think."}, {"role": "user", "content": "3 + 4?"})
    ledger.write_shard(tmp_path / "ledger", 0, rows(group([1.0], prompt=messages)))
    assert read(tmp_path, "select problem from ledger") == [("system: Think.\nuser: 3 + 4?",)]


def test_columns_need_no_quotes_and_components_are_looked_up_by_name(tmp_path: Path) -> None:
    ledger.write_shard(tmp_path / "ledger", 0, rows(group([1.0])))
    names = ", ".join(ledger.SCHEMA.names)
    assert len(read(tmp_path, f"select {names} from ledger group by all order by all")) == 1
    query = "select components['format'], components['none'], token_ids[1] from ledger"
    assert read(tmp_path, query) == [(0.5, None, 5)]


def test_half_a_surrogate_pair_is_kept_as_its_escape(tmp_path: Path) -> None:
    ledger.write_shard(tmp_path / "ledger", 0, rows(group([1.0], text="a\ud800b")))
    assert read(tmp_path, "select text from ledger") == [("a\\ud800b",)]


@settings(max_examples=15, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    run = tmp_path_factory.mktemp("run")
    ledger.write_shard(run / "ledger", 0, rows(group([1.0], text=text, problem_id=text)))
    assert read(run, "select text, problem_id from ledger") == [(text, text)]


def test_the_same_content_gives_the_same_bits(tmp_path: Path) -> None:
    def shard(name: str, seconds: float) -> bytes:
        made = rows(*(group([1.0, 0.0, NAN], index=i, seconds=seconds) for i in range(20)))
        return ledger.write_shard(tmp_path / name, 3, made).read_bytes()

    assert shard("a", 0.1) == shard("b", 0.2)


def test_row_groups_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows(*(group([1.0, 0.0], index=i) for i in range(5)))
    whole = pq.read_table(ledger.write_shard(tmp_path / "a", 3, made))
    monkeypatch.setattr(ledger, "ROWS_AT_ONCE", 3)
    path = ledger.write_shard(tmp_path / "b", 3, made)
    assert pq.read_metadata(path).num_row_groups == 4
    assert pq.read_table(path).equals(whole)
    assert ledger.damage(path) is None


def test_a_step_without_completions_is_an_empty_shard(tmp_path: Path) -> None:
    ledger.write_shard(tmp_path / "ledger", 0, [])
    assert read(tmp_path) == []


def test_a_shard_is_replaced_whole(tmp_path: Path) -> None:
    ledger.write_shard(tmp_path / "ledger", 3, rows(group([1.0, 1.0])))
    ledger.write_shard(tmp_path / "ledger", 3, rows(group([0.0])))
    assert read(tmp_path, "select reward from ledger") == [(0.0,)]
    assert len(list((tmp_path / "ledger").iterdir())) == 1


def test_a_write_that_fails_leaves_the_shard_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError("no space left")

    before = ledger.write_shard(tmp_path, 3, rows(group([1.0]))).read_bytes()
    monkeypatch.setattr(ledger, "sync", full)
    with pytest.raises(OSError, match="no space left"):
        ledger.write_shard(tmp_path, 3, rows(group([0.0])))
    assert (tmp_path / "step-000003.parquet").read_bytes() == before
    assert len(ledger.shards(tmp_path)) == 1


def test_dropping_takes_later_steps_and_leftovers_and_nothing_else(tmp_path: Path) -> None:
    ledger.drop_from(tmp_path / "none", 0)
    for step in (0, 9, 10, 11, 1_000_000):
        ledger.write_shard(tmp_path, step, rows(group([1.0]), step=step))
    ledger.write_shard(tmp_path, 9, rows(group([1.0])), name="evaluation")
    ledger.write_shard(tmp_path, 10, rows(group([1.0])), name="evaluation")
    (tmp_path / ".step-000010.parquet.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    ledger.drop_from(tmp_path, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "step-000000.parquet",
        "step-000009-evaluation.parquet",
        "step-000009.parquet",
    ]


def test_steps_past_six_digits_keep_their_order(tmp_path: Path) -> None:
    for step in (1_000_000, 999_999):
        ledger.write_shard(tmp_path, step, rows(group([1.0]), step=step))
    assert [shard.step for shard in ledger.shards(tmp_path)] == [999_999, 1_000_000]


def test_a_view_of_one_step(tmp_path: Path) -> None:
    for step in (0, 1):
        ledger.write_shard(tmp_path / "ledger", step, rows(group([1.0]), step=step))
    assert read(tmp_path, "select step from ledger", step=1) == [(1,)]
    with pytest.raises(MarkbookError, match="holds no completions of step 2;"):
        ledger.connect(tmp_path, step=2)


def test_an_empty_ledger_says_so(tmp_path: Path) -> None:
    with pytest.raises(MarkbookError, match="its ledger holds no completions;"):
        ledger.connect(tmp_path)


@pytest.mark.parametrize(
    ("name", "matched"),
    [("it's [1] *of* 2?", "it's 1 xofx 2y"), ("a[!b-z]", "aa"), ("a,b", "a"), ("**", "c")],
)
def test_any_directory_name_will_do(tmp_path: Path, name: str, matched: str) -> None:
    ledger.write_shard(tmp_path / name / "ledger", 0, rows(group([1.0])))
    ledger.write_shard(tmp_path / matched / "ledger", 0, rows(group([0.0])))
    assert read(tmp_path / name, "select reward from ledger") == [(1.0,)]


def test_a_damaged_shard_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    for step in range(4):
        ledger.write_shard(tmp_path / "ledger", step, rows(group([1.0]), step=step))
    bad = tmp_path / "ledger" / "step-000001.parquet"
    bad.write_bytes(bad.read_bytes()[:-100])
    (tmp_path / "ledger" / "step-000002.parquet").write_bytes(b"")
    told: list[str] = []
    found = read(tmp_path, "select step from ledger order by step", tell=told.append)
    assert found == [(0,), (3,)]
    assert len(told) == 2
    assert told[0].startswith(f"{bad}: this shard is damaged (")


def test_damage_is_told_on_standard_error_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.write_shard(tmp_path / "ledger", 0, rows(group([1.0])))
    (tmp_path / "ledger" / "step-000001.parquet").write_bytes(b"PAR1PAR1PAR1PAR1")
    assert len(read(tmp_path)) == 1
    assert "step-000001.parquet: this shard is damaged" in capsys.readouterr().err


def test_a_ledger_with_nothing_whole_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "step-000000.parquet").write_bytes(b"garbage")
    with pytest.raises(MarkbookError, match="every shard that was asked for is damaged"):
        ledger.connect(tmp_path, tell=lambda _: None)


def test_a_single_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    path = ledger.write_shard(tmp_path, 0, rows(group([1.0, 0.0]), group([0.5], index=1)))
    raw = path.read_bytes()
    generator = random.Random(0)
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    places = generator.sample(range(len(raw) - footer), 150)
    places += generator.sample(range(len(raw) - footer, len(raw)), 150)
    assert ledger.damage(path) is None
    for place in [*places, 0, len(raw) - 1]:
        flipped = bytearray(raw)
        flipped[place] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        assert ledger.damage(path) is not None, place


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200))
def test_garbage_is_damage_and_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "step-000000.parquet"
    path.write_bytes(content)
    assert ledger.damage(path) is not None
    path.write_bytes(content + len(content).to_bytes(4, "little") + b"PAR1")
    assert ledger.damage(path) is not None


def test_a_kill_at_any_moment_leaves_whole_shards_only(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from markbook import ledger
        from markbook.records import Completion, Group, Problem, Verdict
        done = Completion(tuple(range(400)), (-0.5,) * 400, "stopped", 0, 0, "words " * 400)
        one = Group(Problem("p", "q", "7"), (1,), (done,) * 64, (Verdict("correct", "7", "r"),) * 64,
                    (1.0,) * 64)
        rows = ledger.rows_of([one], [[0.0] * 64], step=0, split="train", prompt_text=str)
        for step in range(100_000):
            ledger.write_shard(Path(sys.argv[1]), step, rows)
            print(step, flush=True)
    """
    generator = random.Random(os.getpid())
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(folder)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for _ in range(generator.randrange(1, 20)):
                last = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        found = ledger.shards(folder)
        assert [shard.step for shard in found][: last + 1] == list(range(last + 1))
        assert all(ledger.damage(shard.path) is None for shard in found)
        ledger.drop_from(folder, 10**9)
        assert not list(folder.glob(".*"))
