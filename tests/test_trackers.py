"""Trackers: what arrives in each of them, also after a kill and a resume, and what a fault does.

TensorBoard is read back in every run of the tests; the others, which are large, where installed.
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from markbook import trackers
from markbook.errors import MarkbookError
from markbook.trackers import check_trackers, open_trackers

RECIPE = {
    "seed": 3,
    "data": {"path": "", "task": "chains"},
    "rollout": {"max_tokens": [[0, 96]] * 100, "top_p": 1.0},
    "reward": {"weights": {"accuracy": 1.0}},
}


def read_tensorboard(run_dir: Path) -> dict[str, list[tuple[int, Any]]]:
    """Return what TensorBoard's own reader makes of a run: (step, value) pairs by name."""
    reader = EventMultiplexer().AddRun(str(run_dir / "tensorboard"), "run")
    reader.Reload()
    found: dict[str, list[tuple[int, Any]]] = {}
    for tag in reader.Runs()["run"]["tensors"]:
        for event in reader.Tensors("run", tag):
            values = event.tensor_proto.float_val or event.tensor_proto.string_val
            found.setdefault(tag, []).append((event.step, values[0]))
    return found


def test_tensorboard_has_the_numbers_and_the_recipe(tmp_path: Path) -> None:
    [tracker] = open_trackers(["tensorboard"], tmp_path, "demo", RECIPE, resumed=False)
    for step in range(3):
        tracker.log(step, {"step": step, "reward_mean": step / 2, "kl_mean": 0.25})
    tracker.close()
    found = read_tensorboard(tmp_path)
    assert found.keys() == {"recipe", "reward_mean", "kl_mean"}
    assert found["reward_mean"] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert found["kl_mean"] == [(0, 0.25), (1, 0.25), (2, 0.25)]
    [(step, text)] = found["recipe"]
    assert step == 0
    assert b"    seed = 3\n" in text
    assert b"    reward.weights.accuracy = 1.0" in text


def test_tensorboard_loses_nothing_to_a_kill_and_repeats_nothing_after_it(tmp_path: Path) -> None:
    [killed] = open_trackers(["tensorboard"], tmp_path, "demo", RECIPE, resumed=False)
    for step in range(4):
        killed.log(step, {"reward_mean": step / 2})
    assert read_tensorboard(tmp_path)["reward_mean"][-1] == (3, 1.5)  # not closed
    [resumed] = open_trackers(["tensorboard"], tmp_path, "demo", RECIPE, resumed=True)
    for step in range(2, 6):  # the last checkpoint was after step 1
        resumed.log(step, {"reward_mean": step / 2})
    resumed.close()
    found = read_tensorboard(tmp_path)
    assert found["reward_mean"] == [(step, step / 2) for step in range(6)]
    assert len(found["recipe"]) == 1
    killed.close()


def test_a_name_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(MarkbookError, match=r"'tensorbord' is not one of .*did you mean 'tensorb"):
        open_trackers(["tensorbord"], tmp_path, "demo", {}, resumed=False)
    with pytest.raises(MarkbookError, match="'x' is not one of tensorboard, wandb, trackio, mlfl"):
        check_trackers(["x"])


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(
        MarkbookError, match=r"needs mlflow, sqlalchemy, alembic, which is not inst"
    ):
        open_trackers(["mlflow"], tmp_path, "demo", {}, resumed=False)
    with pytest.raises(MarkbookError, match=r"run pip install 'markbook\[trackers\]'"):
        check_trackers(["wandb"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    with pytest.raises(MarkbookError, match="needs mlflow, which"):
        check_trackers(["mlflow"])


def test_a_folder_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder_of_some_name").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(trackers, "PACKAGES", {"wandb": ("folder_of_some_name",)})
    with pytest.raises(MarkbookError, match="needs folder_of_some_name"):
        check_trackers(["wandb"])


class Recorder:
    """Stands for any tracker; fails at a step, or as it is closed."""

    def __init__(self, fails_at: int | None = None, fails_to_close: bool = False) -> None:
        self.fails_at = fails_at
        self.fails_to_close = fails_to_close
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.closed = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("the service is gone")
        self.logged.append((step, metrics))

    def close(self) -> None:
        self.closed += 1
        if self.fails_to_close:
            raise TimeoutError("too slow")


def install(monkeypatch: pytest.MonkeyPatch, **made: Any) -> None:
    openers = {name: (lambda *_, value=value: value) for name, value in made.items()}
    monkeypatch.setattr(trackers, "OPENERS", openers)
    monkeypatch.setattr(trackers, "PACKAGES", dict.fromkeys(made, ("json",)))


def test_a_fault_on_the_way_is_told_once_and_ends_that_tracker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = Recorder(fails_at=1), Recorder()
    install(monkeypatch, bad=bad, good=good)
    opened = open_trackers(["bad", "good", "bad"], tmp_path, "demo", {}, resumed=False)
    assert len(opened) == 2
    for step in range(3):
        for tracker in opened:
            tracker.log(step, {"step": step, "loss": 0.5})
    for tracker in opened:
        tracker.close()
        tracker.close()
    assert bad.logged == [(0, {"loss": 0.5})]
    assert good.logged == [(step, {"loss": 0.5}) for step in range(3)]
    assert (bad.closed, good.closed) == (0, 1)
    assert capsys.readouterr().err == (
        "markbook: tracker bad failed at step 1 (ConnectionError: the service is gone); "
        "the run goes on without it, and its own files have every number.\n"
    )


def test_a_fault_in_closing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, slow=Recorder(fails_to_close=True))
    [tracker] = open_trackers(["slow"], tmp_path, "demo", {}, resumed=False)
    tracker.close()
    assert "tracker slow failed as it was closed (TimeoutError" in capsys.readouterr().err


def test_a_tracker_that_cannot_start_stops_the_run_and_closes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise PermissionError("not logged in")

    first = Recorder()
    install(monkeypatch, first=first, second=None)
    monkeypatch.setitem(trackers.OPENERS, "second", refuse)
    with pytest.raises(MarkbookError, match=r"'second' can't start \(PermissionError: not logged"):
        open_trackers(["first", "second"], tmp_path, "demo", {}, resumed=False)
    assert first.closed == 1


def test_ctrl_c_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Recorder):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    install(monkeypatch, one=Interrupted())
    [tracker] = open_trackers(["one"], tmp_path, "demo", {}, resumed=False)
    with pytest.raises(KeyboardInterrupt):
        tracker.log(0, {})


CHILD = """
import json, os, sys, time
from pathlib import Path
from markbook.trackers import open_trackers
name, run, recipe, first, last, end = sys.argv[1:]
resume_step = int(first) if int(first) else None
[tracker] = open_trackers([name], Path(run), Path(run).name, json.loads(recipe), resume_step)
for step in range(int(first), int(last)):
    tracker.log(step, {"step": step, "reward_mean": step / 2, "kl_mean": 0.25})
if end == "kill":
    time.sleep(2)  # Trackio writes about twice a second
    os.kill(os.getpid(), 9)
tracker.close()
"""


def killed_and_resumed(name: str, run: Path, **environment: str) -> str:
    """Log steps 0 to 3, be killed, resume at step 2 and end after step 5; return what was said."""
    said = ""
    given = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    for first, last, end in (("0", "4", "kill"), ("2", "6", "close")):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, name, str(run), json.dumps(RECIPE), first, last, end],
            env=given | environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        said += done.stdout + done.stderr
        assert done.returncode == (-9 if end == "kill" else 0), said
    return said


def real(name: str) -> pytest.MarkDecorator:
    """Mark a test that needs a tracker's package."""
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


EXPECTED = [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5), (2, 1.0), (3, 1.5), (4, 2.0), (5, 2.5)]
"""Steps 2 and 3 come twice: the run resumed from a checkpoint after step 1."""


@pytest.mark.real
@real("mlflow")
def test_mlflow(tmp_path: Path) -> None:
    killed_and_resumed("mlflow", tmp_path)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        runs = database.execute("select name, status from runs").fetchall()
        query = "select step, value from metrics where key = 'reward_mean' order by timestamp, step"
        metrics = database.execute(query).fetchall()
        params = dict(database.execute("select key, value from params").fetchall())
    database.close()
    assert runs == [(tmp_path.name, "FINISHED")]
    assert metrics == EXPECTED
    assert params["seed"] == "3"
    assert params["reward.weights.accuracy"] == "1.0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlflow.db", "trackers.json"]


@pytest.mark.real
@real("trackio")
def test_trackio(tmp_path: Path) -> None:
    said = killed_and_resumed("trackio", tmp_path)
    with sqlite3.connect(tmp_path / "trackio" / "markbook.db") as database:
        rows = database.execute("select step, metrics, run_id from metrics order by id").fetchall()
    database.close()
    assert [(step, json.loads(metrics)["reward_mean"]) for step, metrics, _ in rows] == EXPECTED
    assert len({run_id for _, _, run_id in rows}) == 1
    assert "Resumed existing run" in said


@pytest.mark.real
@real("trackio")
def test_trackio_goes_where_the_user_says(tmp_path: Path) -> None:
    killed_and_resumed("trackio", tmp_path / "run", TRACKIO_DIR=str(tmp_path / "mine"))
    assert (tmp_path / "mine" / "markbook.db").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.real
@real("wandb")
def test_wandb(tmp_path: Path) -> None:
    said = killed_and_resumed("wandb", tmp_path)
    assert "syncing is set to `offline`" in said
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    ids = {path.name for path in files}
    assert ids == {f"run-{json.loads((tmp_path / 'trackers.json').read_text())['wandb']}.wandb"}
    assert len(files) == 2
    assert files[1].read_bytes().count(b"reward_mean") >= 4  # the killed one may be unwritten yet


@pytest.mark.real
@real("wandb")
def test_wandb_can_be_turned_off(tmp_path: Path) -> None:
    killed_and_resumed("wandb", tmp_path, WANDB_MODE="disabled")
    assert not list(tmp_path.rglob("*.wandb"))
