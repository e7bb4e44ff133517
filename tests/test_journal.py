"""A run's records: one writer, whole lines, and back to any step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from markbook.errors import MarkbookError
from markbook.journal import Journal
from markbook.storage import write_atomically


def test_lines_come_back(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.append("metrics", {"step": 0, "reward_mean": 0.1, "kl_mean": None})
        journal.append("metrics", {"step": 1, "reward_mean": 1 / 3})
        assert journal.read("metrics")[1]["reward_mean"] == 1 / 3
        assert journal.read("evaluations") == []


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append("metrics", {"step": 0})
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 1, "rew')
        assert journal.read("metrics") == [{"step": 0}]
        journal.rewind(5)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0}\n'


def test_rewinding_cuts_every_stream_back(tmp_path: Path) -> None:
    streams = ("metrics", "timings", "evaluations")
    with Journal(tmp_path) as journal:
        for stream in streams:
            for step in range(4):
                journal.append(stream, {"step": step})
        journal.rewind(2)
        for stream in streams:
            assert [r["step"] for r in journal.read(stream)] == [0, 1]


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b"3", b"{}", b""])
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0}\n' + damage + b'\n{"step": 2}\n')
    with (
        Journal(tmp_path) as journal,
        pytest.raises(MarkbookError, match=r"metrics.jsonl, line 2: is damaged"),
    ):
        journal.read("metrics")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        with pytest.raises(ValueError, match="not JSON compliant"):
            journal.append("metrics", {"loss": float("nan")})
        assert journal.read("metrics") == []


def test_a_second_process_is_refused_and_told_who_holds_the_run(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from markbook.journal import Journal\n"
        "from markbook.errors import MarkbookError\n"
        "try:\n with Journal(Path(sys.argv[1])): pass\n"
        "except MarkbookError as error: print(error)\n"
    )

    def second() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        )
        return done.stdout

    with Journal(tmp_path):
        assert f"another process (pid {os.getpid()}) is writing to this run" in second()
    assert second() == ""


def test_in_one_process_too(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(MarkbookError, match="is writing to this run"):
        Journal(tmp_path)
    with Journal(tmp_path):
        pass


def test_atomic_writing_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, json.dumps({"a": 1}))
    write_atomically(path, json.dumps({"a": 2}))
    assert json.loads(path.read_text()) == {"a": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
