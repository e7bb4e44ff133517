import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from markbook.errors import MarkbookError
from markbook.memory import kv_cache_bytes, shape_of
from markbook.models import load_config, load_model, resolve_device
from markbook.plan import (
    Plan,
    length_changes,
    num_evaluations,
    plan,
    print_plan,
    rows_per_micro_batch,
    size,
    tokens_at_most,
)
from markbook.recipe import Recipe
from markbook.recipe_file import build, read_recipe
from markbook.source import _snapshot

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe(**tables: object) -> Recipe:
    return build(Recipe, tables, "test")


def printed(made: Plan) -> str:
    out = io.StringIO()
    print_plan(Console(file=out, width=100, color_system=None), made)
    return out.getvalue()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"problem": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(40)]
    rows[7]["problem"] += " Think twice."
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.jinja").write_text("{{ problem }}\nA:")
    return path


def small(directory: Path, data: Path, /, **tables: object) -> Recipe:
    return recipe(
        **{
            "model": {"path": str(directory), "device": "cpu"},
            "data": {"path": str(data)},
            "prompt": {"template": str(data.parent / "own.jinja")},
            "rollout": {"problems_per_step": 8, "group_size": 4, "max_tokens": [[0, 16]]},
            "train": {"num_steps": 10},
            **tables,
        }
    )


# The published recipe


def test_r1_zero_by_the_paper() -> None:
    _snapshot.cache_clear()
    made = plan(read_recipe(RECIPES / "r1-zero.toml"))
    assert (made.num_steps, made.updates_per_step, made.num_updates) == (650, 16, 10_400)
    assert (made.completions_per_step, made.completions_per_update) == (8_192, 512)
    assert made.lengths == ((0, 0, 32_768), (513, 8_208, 65_536))
    assert made.problems_drawn == 332_800
    assert made.tokens_at_most == 8_192 * (513 * 32_768 + 137 * 65_536)
    assert (made.reference_refreshes, made.reference_every) == (26, 400)
    assert made.learning_rates == (3e-6, 3e-6, 3e-6)
    assert (made.num_problems, made.epochs, made.prompt_known) == (None, None, False)
    assert made.parameters == made.trained_parameters == 671_026_404_352
    assert made.memory is not None
    assert made.memory.weights == 2 * 671_026_404_352
    assert made.memory.moments == 8 * 671_026_404_352
    text = printed(made)
    assert "650 of 16 updates each: 10,400 updates" in text
    assert "32,768 tokens, 65,536 from step 513 (update 8,208)" in text
    assert "671,026,404,352 in bfloat16, all of them trained" in text
    assert "no data is named yet" in text
    assert "1.2 TiB" in text


def test_own_data_recipe_plans_without_its_model() -> None:
    _snapshot.cache_clear()
    made = plan(read_recipe(RECIPES / "own-data.toml"))
    assert made.memory is None
    assert "not estimated" in printed(made)
    assert "is not on this machine; give model.config" in printed(made)


# Worked numbers


def test_lengths_change_with_the_step_that_first_sees_them() -> None:
    def lengths(pairs: list[list[int]], steps: int) -> list[tuple[int, int, int]]:
        made = recipe(
            rollout={"max_tokens": pairs},
            objective={"num_minibatches": 4},
            train={"num_steps": steps},
        )
        return list(length_changes(made))

    assert lengths([[0, 8]], 3) == [(0, 0, 8)]
    assert lengths([[0, 8], [4, 9]], 3) == [(0, 0, 8), (1, 4, 9)]
    assert lengths([[0, 8], [5, 9]], 3) == [(0, 0, 8), (2, 8, 9)]
    # Two changes within one step: only the later is ever used. One after the end: never.
    assert lengths([[0, 8], [1, 9], [3, 10], [99, 11]], 3) == [(0, 0, 8), (1, 4, 10)]


def test_tokens_at_most_by_hand() -> None:
    tables: dict[str, object] = {
        "rollout": {"problems_per_step": 2, "group_size": 3, "max_tokens": [[0, 10], [2, 20]]},
        "train": {"num_steps": 3},
    }
    assert tokens_at_most(recipe(**tables)) == 6 * (10 + 10 + 20)
    rollout = {**tables["rollout"], "uninformative": "resample", "max_draws": 5}  # type: ignore[dict-item]
    assert tokens_at_most(recipe(**{**tables, "rollout": rollout})) == 5 * 6 * 40


def test_rows_and_evaluations_by_hand() -> None:
    assert rows_per_micro_batch(100, 50, 9) == 2
    assert rows_per_micro_batch(99, 50, 9) == 1
    assert [num_evaluations(4, every) for every in (0, 1, 2, 3, 4, 5)] == [2, 5, 3, 3, 2, 2]


def test_sizes() -> None:
    assert [size(n) for n in (1023, 1024, 1536, 2**30, 2**40, 2**50)] == [
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 GiB",
        "1.0 TiB",
        "1024.0 TiB",
    ]


# A model and data that are here


def test_everything_measured(tiny_llama: Path, data: Path) -> None:
    made = plan(small(tiny_llama, data, objective={"num_minibatches": 2, "num_epochs": 3}))
    assert made.num_problems == 40
    assert made.epochs == 80 / 40
    assert (made.updates_per_step, made.num_updates) == (6, 60)
    assert (made.completions_per_step, made.completions_per_update) == (32, 16)
    assert made.prompt_known
    assert 10 < made.prompt_tokens < 40
    assert made.context_tokens == 256
    model = load_model(small(tiny_llama, data).model, resolve_device("cpu"))
    assert made.parameters == sum(p.numel() for p in model.parameters())
    assert made.memory is not None
    assert made.memory.kv_cache == kv_cache_bytes(
        shape_of(load_config(small(tiny_llama, data).model)),
        rows=32,
        tokens=made.prompt_tokens + 16,
        number=4,
    )
    text = printed(made)
    assert "80 drawn from 40: 2.00 epochs" in text
    assert "(the longest)" in text
    assert "free: it fits" in text


def test_adapters_and_no_reference(tiny_llama: Path, data: Path) -> None:
    made = plan(
        small(
            tiny_llama,
            data,
            model={"path": str(tiny_llama), "dtype": "bfloat16", "lora": {"rank": 2}},
            objective={"kl_coefficient": 0.0, "reference_refresh_updates": 5},
        )
    )
    # 2 layers of q and o (32 + 32), k and v (32 + 16), gate, up and down (32 + 48), rank 2.
    assert made.trained_parameters == 2 * 2 * (2 * 64 + 2 * 48 + 3 * 80)
    assert made.memory is not None
    assert made.memory.reference == 0
    assert made.memory.masters == 4 * made.trained_parameters
    assert made.reference_refreshes == 0
    assert "none (objective.kl_coefficient = 0)" in printed(made)


def test_prompts_that_do_not_fit_are_told(tiny_llama: Path, data: Path) -> None:
    rollout = {"problems_per_step": 8, "group_size": 4, "max_tokens": [[0, 250]]}
    assert "TOO SHORT, 2" in printed(plan(small(tiny_llama, data, rollout=rollout)))


def test_memory_that_does_not_fit_is_told(
    tiny_llama: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("markbook.plan.available_bytes", lambda device: 2**20)
    assert "1.0 MiB free: IT DOES NOT FIT" in printed(plan(small(tiny_llama, data)))


def test_learning_rate_in_words(tiny_llama: Path, data: Path) -> None:
    optimizer = {
        "learning_rate": 8e-6,
        "warmup_updates": 4,
        "decay": "cosine",
        "final_fraction": 0.25,
    }
    made = plan(small(tiny_llama, data, optimizer=optimizer))
    assert made.learning_rates == pytest.approx((2e-6, 8e-6, 2e-6))
    assert "2e-06 at first, 8e-06 from update 3 on, 2e-06 at the last (cosine)" in printed(made)


def test_a_gpu_run_is_planned_without_one(
    tiny_llama: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    made = plan(small(tiny_llama, data, model={"path": str(tiny_llama), "device": "cuda"}))
    assert "has no cuda device to compare with" in printed(made)


def test_demo_is_planned_before_its_base_is_built(data: Path) -> None:
    made = plan(recipe(model={"path": "demo"}, data={"path": str(data)}))
    assert made.memory is None
    assert "built when the run starts" in printed(made)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "give --model"),
        ({"model": {"path": "./nowhere/model"}}, "no such file or directory"),
        (
            {"model": {"path": "nobody/nothing", "config": "none.json"}},
            "model.config = 'none.json'",
        ),
    ],
)
def test_faults_are_told(tables: dict[str, object], message: str) -> None:
    _snapshot.cache_clear()
    with pytest.raises(MarkbookError, match=message):
        plan(recipe(**tables))


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "none"}', '{"hidden_size": 3}'])
def test_config_files_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    _snapshot.cache_clear()
    with pytest.raises(MarkbookError, match="is no model configuration"):
        plan(recipe(model={"path": "nobody/nothing", "config": str(tmp_path / "config.json")}))


def test_faulty_data_is_told(tiny_llama: Path, data: Path) -> None:
    data.write_text('{"problem": "", "answer": "1"}\n')
    with pytest.raises(MarkbookError):
        plan(small(tiny_llama, data))
