"""The base model: the same bits at a rebuild, whole or not there, an ordinary checkpoint."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from markbook.demo import base
from markbook.demo.base import BaseRecipe, build_base, cached_base
from markbook.demo.run import before_and_after, shipped_recipe
from markbook.errors import MarkbookError
from markbook.recipe_file import read_recipe

SMALL = BaseRecipe(
    hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_steps=6, batch_size=8
)


def digest(folder: Path) -> str:
    content = b"".join((folder / n).read_bytes() for n in ("model.safetensors", "tokenizer.json"))
    return hashlib.sha256(content).hexdigest()


def test_a_rebuild_gives_the_same_bits_and_another_seed_others(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build_base(tmp_path / name, seed, recipe=SMALL)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    assert torch.equal(torch.get_rng_state(), state)


def test_the_result_is_an_ordinary_checkpoint_that_says_how_it_was_made(tmp_path: Path) -> None:
    told: list[int] = []
    build_base(tmp_path / "m", progress=lambda done, _, loss: told.append(done), recipe=SMALL)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    record = json.loads((tmp_path / "m" / "base.json").read_text())
    assert record["recipe"]["num_steps"] == 6
    assert record["num_documents"] == 48
    assert record["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert record["final_loss"] > 0
    assert told == [1, 2, 3, 4, 5, 6]


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    losses: list[float] = []
    longer = BaseRecipe(
        hidden_size=32, intermediate_size=48, num_layers=1, num_heads=2, num_steps=60, batch_size=16
    )
    build_base(tmp_path / "m", progress=lambda _, __, loss: losses.append(loss), recipe=longer)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_it_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(base, "save_model", fail)
    with pytest.raises(OSError, match="disk full"):
        build_base(tmp_path / "m", recipe=SMALL)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "m").mkdir()
    with pytest.raises(FileExistsError):
        build_base(tmp_path / "m", recipe=SMALL)


def test_the_cache_builds_once_for_each_seed_and_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []

    def build(directory: Path, seed: int, progress: object) -> None:
        built.append(directory)
        directory.mkdir()

    monkeypatch.setattr(base, "build_base", build)
    first = cached_base(tmp_path, 0)
    assert cached_base(tmp_path, 0) == first
    assert built == [first]
    assert cached_base(tmp_path, 1) != first
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert cached_base(tmp_path, 0) != first


def test_the_cache_lets_another_process_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(directory: Path, seed: int, progress: object) -> None:
        directory.mkdir()
        raise OSError("Directory not empty")

    monkeypatch.setattr(base, "build_base", lose)
    assert cached_base(tmp_path, 0).is_dir()

    def fail(directory: Path, seed: int, progress: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(base, "build_base", fail)
    with pytest.raises(OSError, match="disk full"):
        cached_base(tmp_path, 1)


def test_the_rate_warms_up_and_goes_to_zero() -> None:
    recipe = BaseRecipe(num_steps=100, num_warmup_steps=10)
    assert base._rate(0, recipe) == pytest.approx(0.1)
    assert base._rate(4, recipe) == pytest.approx(0.5)
    assert base._rate(50, recipe) == pytest.approx(0.5)
    assert base._rate(100, recipe) == pytest.approx(0)


def test_the_demos_recipe_is_found_and_has_the_task() -> None:
    recipe = read_recipe(shipped_recipe("demo"))
    assert (recipe.model.path, recipe.data.task, recipe.prompt.template) == ("demo",) + (
        "chains",
    ) * 2
    with pytest.raises(MarkbookError, match=r"nothing.toml is not installed"):
        shipped_recipe("nothing")


def test_the_table_of_marks(tmp_path: Path) -> None:
    marks = {
        "pass_at_1_low": 0.1, "pass_at_1_high": 0.2, "format_share": 0.5, "truncated_share": None,
        "completion_tokens_mean": 15.25, "pass_at_1_level_2": 0.25,
    }  # fmt: skip
    lines = [json.dumps(marks | {"pass_at_1": p}) for p in (0.125, 0.5, 0.95)]
    (tmp_path / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    console = Console(width=100, record=True, file=(tmp_path / "out").open("w"))
    with console.file:
        console.print(before_and_after(tmp_path))
    text = console.export_text()
    assert "12.5 %" in text
    assert "95.0 %" in text
    assert "50.0 %" in text
    assert "correct, level 2" in text
    assert "15.2" in text
