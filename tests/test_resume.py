"""Kill -9 at any moment, resume, and nothing shows that it happened."""

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("kill_driver.py")
REPEATABLE = ("final/*", "metrics.jsonl", "evaluations.jsonl", "ledger/*")

RECIPE = """
seed = 5
[model]
path = "{model}"
dtype = "{dtype}"
[model.lora]
rank = {rank}
[data]
path = "problems.jsonl"
test_share = 0.3
[prompt]
template = "chains"
[rollout]
problems_per_step = 4
group_size = 4
max_tokens = [[0, 6], [5, 9]]
uninformative = "{uninformative}"
[reward.weights]
accuracy = 1
format = 1
[objective]
num_minibatches = 2
num_epochs = 2
kl_coefficient = 0.01
reference_refresh_updates = 6
[optimizer]
learning_rate = 1e-3
warmup_updates = 3
decay = "cosine"
[evaluation]
num_problems = 3
every = 3
[train]
num_steps = 7
checkpoint_every = 2
threads = 1
"""


def recipe(tmp_path: Path, model: Path, **changes: object) -> Path:
    values = {"model": model, "uninformative": "keep", "dtype": "float32", "rank": 0} | changes
    problems = [{"problem": f"{n}+{n + 1}", "answer": str(2 * n + 1)} for n in range(20)]
    text = "".join(json.dumps(problem) + "\n" for problem in problems)
    (tmp_path / "problems.jsonl").write_text(text, encoding="utf-8")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(**values), encoding="utf-8")
    return path


def drive(run_dir: Path, recipe_: Path, kills: list[dict[str, float]]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(run_dir), str(recipe_), json.dumps(kills)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["ends"][-1] == 0, done.stderr
    return report


def content(run_dir: Path) -> dict[str, str]:
    """Digests of everything that must repeat bit for bit."""
    files = [p for pattern in REPEATABLE for p in sorted(run_dir.glob(pattern)) if p.is_file()]
    assert len(files) > 10
    return {str(p.relative_to(run_dir)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def assert_clean(run_dir: Path) -> None:
    """No half-written thing is left, and the timings have each step once."""
    left = [p.name for p in run_dir.rglob("*") if p.name.endswith((".tmp", ".old"))]
    assert left == []
    lines = (run_dir / "timings.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == list(range(7))


@pytest.mark.timeout(300)
def test_kills_at_random_points_leave_no_trace(tmp_path: Path, tiny_llama: Path) -> None:
    path = recipe(tmp_path, tiny_llama)
    whole = drive(tmp_path / "whole", path, [{}])
    expected = content(tmp_path / "whole")
    assert whole["calls"] > 50
    points = random.Random(1).sample(range(1, whole["calls"]), 12)
    for number in range(3):
        run_dir = tmp_path / f"killed-{number}"
        kills: list[dict[str, float]] = [{"call": n} for n in points[4 * number : 4 * number + 4]]
        report = drive(run_dir, path, [*kills, {}])
        assert "killed" in report["ends"]
        assert content(run_dir) == expected
        assert_clean(run_dir)


@pytest.mark.timeout(300)
def test_kills_with_adapters_in_bfloat16(tmp_path: Path, tiny_qwen2: Path) -> None:
    path = recipe(tmp_path, tiny_qwen2, dtype="bfloat16", rank=4)
    calls = drive(tmp_path / "whole", path, [{}])["calls"]
    kills: list[dict[str, float]] = [
        {"call": n} for n in random.Random(3).sample(range(1, calls), 4)
    ]
    report = drive(tmp_path / "killed", path, [*kills, {}])
    assert "killed" in report["ends"]
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert_clean(tmp_path / "killed")


@pytest.mark.timeout(300)
def test_kills_at_random_times_with_resampling(tmp_path: Path, tiny_llama: Path) -> None:
    path = recipe(tmp_path, tiny_llama, uninformative="resample")
    seconds = drive(tmp_path / "whole", path, [{}])["seconds"]
    chance = random.Random(2)
    kills = [{"seconds": chance.uniform(0.2, 0.8) * seconds} for _ in range(5)]
    report = drive(tmp_path / "killed", path, [*kills, {}])
    assert "killed" in report["ends"]
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert_clean(tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kill_at_every_point(tmp_path: Path, tiny_llama: Path) -> None:
    """Every call that changes the disk, one run each."""
    path = recipe(tmp_path, tiny_llama)
    calls = drive(tmp_path / "whole", path, [{}])["calls"]
    expected = content(tmp_path / "whole")
    for call in range(1, calls + 1):
        run_dir = tmp_path / f"killed-{call}"
        report = drive(run_dir, path, [{"call": call}, {}])
        assert report["ends"] == ["killed", 0]
        assert content(run_dir) == expected, f"killed before call {call}"
        assert_clean(run_dir)
