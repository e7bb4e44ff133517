"""The whole loop on a small model: it learns, and it stops where it must."""

import json
import shutil
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from markbook import ledger
from markbook.errors import MarkbookError, RunStopped
from markbook.launch import begin, resume
from markbook.recipe import Recipe, check
from markbook.recipe_file import build, read_recipe, replace
from markbook.sampling import Request, Sampled, SamplingSpec
from markbook.sampling.local import LocalSampler

TASK = """
from markbook.records import Problem, Verdict
from markbook.tasks import Task

class Even(Task):
    '''Tokens with an even id are good, and four of five must be.'''
    name = "even"
    components = ("accuracy", "evenness")
    def problems(self, split):
        return [Problem(f"{split}-{i}", f"{i} is", "x", {"level": i % 2}) for i in range(12)]
    def mark(self, problem, completion):
        ids = completion.token_ids
        if completion.text.startswith("full marks"):
            return Verdict("correct", "x", "", {"accuracy": 1.0, "evenness": 1.0})
        if not completion.text:
            return Verdict("no_answer", None, "", {"accuracy": 0.0, "evenness": 0.0})
        share = sum(i % 2 == 0 for i in ids) / len(ids)
        right = share >= 0.8
        status = "correct" if right else "incorrect"
        return Verdict(status, str(share), "", {"accuracy": float(right), "evenness": share})
    def model_answer(self, problem):
        return "full marks"
"""


def settings(tmp_path: Path, model: Path, **changes: object) -> Recipe:
    task = tmp_path / "even.py"
    task.write_text(changes.pop("task_source", TASK), encoding="utf-8")  # type: ignore[arg-type]
    template = tmp_path / "plain.jinja"
    template.write_text("{{ problem }}", encoding="utf-8")
    recipe = build(
        Recipe,
        {
            "model": {"path": str(model)},
            "data": {"task": f"{task}:Even"},
            "prompt": {"template": str(template)},
            "reward": {"weights": {"accuracy": 1, "evenness": 1}},
            "rollout": {"problems_per_step": 4, "group_size": 8, "max_tokens": [[0, 12]]},
            "optimizer": {"learning_rate": 2e-2},
            "evaluation": {"num_problems": 6, "samples": 4},
            "train": {"num_steps": 2, "threads": 1},
        },
        "test",
    )
    for name, value in changes.items():
        recipe = replace(recipe, name.replace("__", "."), value)
    check(recipe)
    return recipe


def run(recipe: Recipe, run_dir: Path) -> str:
    output = StringIO()
    begin(recipe, run_dir, Console(file=output, width=200))
    return output.getvalue()


def lines(run_dir: Path, stream: str) -> list[dict[str, Any]]:
    text = (run_dir / f"{stream}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("changes", [
    {},
    {"objective__num_minibatches": 2, "objective__num_epochs": 2, "objective__old_logprobs": "policy"},
    {"objective__aggregation": "token_mean", "advantage__normalize": "leave_one_out", "objective__kl_coefficient": 0.0},
])  # fmt: skip
def test_a_small_model_really_learns(
    tmp_path: Path, tiny_llama: Path, changes: dict[str, object]
) -> None:
    run_dir = tmp_path / "run"
    steps = 25 if not changes else 12
    recipe = settings(tmp_path, tiny_llama, train__num_steps=steps, **changes)
    output = run(recipe, run_dir)
    metrics, marks = lines(run_dir, "metrics"), lines(run_dir, "evaluations")
    assert [m["step"] for m in metrics] == list(range(steps))
    early = sum(m["reward_mean"] for m in metrics[:3]) / 3
    late = sum(m["reward_mean"] for m in metrics[-3:]) / 3
    assert late > early + 0.3
    assert marks[0]["pass_at_1"] + 0.2 < marks[1]["pass_at_1"]
    assert marks[0]["pass_at_1_low"] <= marks[0]["pass_at_1"] <= marks[0]["pass_at_1_high"]
    assert {"pass_at_1_level_0", "pass_at_1_level_1"} <= set(marks[0])
    assert f"{steps}/{steps}" in output
    assert "held out (test) before step 0: pass@1" in output
    per_step = recipe.updates_per_step
    assert metrics[-1]["policy_version"] == (steps - 1) * per_step
    if recipe.objective.kl_coefficient:
        assert metrics[-1]["kl_mean"] > metrics[0]["kl_mean"] >= 0
    else:
        assert metrics[-1]["kl_mean"] is None
    assert 0 <= metrics[0]["sampler_policy_gap_max"] < 1e-3


def test_the_result_is_a_hugging_face_checkpoint_and_the_ledger_has_it_all(
    tmp_path: Path, tiny_qwen2: Path
) -> None:
    run_dir = tmp_path / "run"
    recipe = settings(tmp_path, tiny_qwen2)
    run(recipe, run_dir)
    model = AutoModelForCausalLM.from_pretrained(run_dir / "final")
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "final")
    before = AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    changed = [
        name for (name, a), (_, b) in zip(
            model.named_parameters(), before.named_parameters(), strict=True
        ) if not torch.equal(a, b)
    ]  # fmt: skip
    assert len(changed) > 10
    view = ledger.connect(run_dir)
    counts = view.sql("select phase, count(*) from ledger group by phase order by phase").fetchall()
    assert counts == [("evaluation", 2 * 24), ("training", 2 * 32)]
    rows = view.sql(
        "select text, token_ids, reward, components, advantage, used from ledger "
        "where phase = 'training'"
    ).fetchall()
    for text, ids, reward, components, advantage, used in rows:
        kept = ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids
        assert tokenizer.decode(kept) == text
        assert reward == pytest.approx(sum(components.values()))
        assert used
        assert advantage is not None
    sums = view.sql(
        "select sum(advantage) from ledger where used group by step, group_index"
    ).fetchall()
    assert all(abs(total) < 1e-9 for (total,) in sums)
    view.close()


def test_the_resolved_recipe_runs_again_to_the_same_bits(tmp_path: Path, tiny_llama: Path) -> None:
    recipe = settings(tmp_path, tiny_llama)
    run(recipe, tmp_path / "first")
    (tmp_path / "plain.jinja").unlink()  # the run has its own copy
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    run(read_recipe(moved / "recipe.toml"), tmp_path / "again")
    for name in ("metrics.jsonl", "evaluations.jsonl", "final/model.safetensors"):
        assert (moved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    facts = json.loads((moved / "run.json").read_text())
    assert facts["task"] == "even"
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["machine"]["threads"] == 1


def test_another_seed_is_another_run(tmp_path: Path, tiny_llama: Path) -> None:
    for seed in (0, 1):
        run(settings(tmp_path, tiny_llama, seed=seed, train__num_steps=1), tmp_path / f"{seed}")
    a, b = ((tmp_path / s / "metrics.jsonl").read_bytes() for s in "01")
    assert a != b


def test_bfloat16_and_lora(tmp_path: Path, tiny_llama: Path) -> None:
    run_dir = tmp_path / "run"
    recipe = settings(
        tmp_path, tiny_llama, model__dtype="bfloat16", model__lora__rank=4,
        objective__reference_refresh_updates=2, train__num_steps=3,
    )  # fmt: skip
    run(recipe, run_dir)
    model = AutoModelForCausalLM.from_pretrained(run_dir / "final", dtype="auto")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    metrics = lines(run_dir, "metrics")
    assert metrics[1]["kl_mean"] > 0  # one update after the first reference
    assert metrics[2]["kl_mean"] == pytest.approx(0, abs=1e-6)  # the reference is new


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_batch(
    tmp_path: Path, tiny_llama: Path
) -> None:
    run_dir = tmp_path / "run"
    recipe = settings(tmp_path, tiny_llama, optimizer__learning_rate=10.0, train__num_steps=50,
                      objective__num_epochs=8)  # fmt: skip
    with pytest.raises(
        RunStopped, match=r"step \d+: (loss|grad_norm) = .* is not finite; .*failed-step"
    ):
        run(recipe, run_dir)
    (failed,) = run_dir.glob("failed-step-*.pt")
    kept = torch.load(failed, weights_only=False)
    assert kept["metric"] in ("loss", "grad_norm")
    assert kept["batches"][0]["input_ids"].ndim == 2


def test_a_task_that_fails_too_often_stops_the_run(tmp_path: Path, tiny_llama: Path) -> None:
    source = TASK.replace(
        "ids = completion.token_ids\n",
        "ids = completion.token_ids\n        if ids: raise TimeoutError('no answer')\n",
    )
    recipe = settings(tmp_path, tiny_llama, task_source=source)
    with pytest.raises(RunStopped, match=r"could not be marked.*TimeoutError: no answer"):
        run(recipe, tmp_path / "run")


def test_a_sampler_of_another_distribution_is_noticed(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hot(LocalSampler):
        def sample(self, requests: Sequence[Request], spec: SamplingSpec) -> Iterator[Sampled]:
            return super().sample(requests, SamplingSpec(temperature=1.1))

    monkeypatch.setattr("markbook.prepare.LocalSampler", Hot)
    with pytest.raises(RunStopped, match=r"the sampler's log-probs are .* nats from the policy's"):
        run(settings(tmp_path, tiny_llama), tmp_path / "run")


def test_steps_that_teach_nothing_make_no_update(tmp_path: Path, tiny_llama: Path) -> None:
    source = TASK.replace('"evenness": share', '"evenness": 0.5').replace("float(right)", "0.0")
    recipe = settings(tmp_path, tiny_llama, task_source=source, rollout__uninformative="drop")
    run(recipe, tmp_path / "run")
    for m in lines(tmp_path / "run", "metrics"):
        assert m["updates"] == 0
        assert m["loss"] is None
        assert m["groups_left_out"] == 4
        assert m["uninformative_share"] == 1
        assert m["completions_trained"] == 0


def test_a_directory_in_use_or_full_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    recipe = settings(tmp_path, tiny_llama, train__num_steps=1)
    run(recipe, tmp_path / "run")
    with pytest.raises(MarkbookError, match="is not empty; go on with --resume"):
        run(recipe, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(MarkbookError, match="is not empty; or choose another"):
        run(recipe, tmp_path / "full")


def test_resuming_what_is_finished_or_changed(tmp_path: Path, tiny_llama: Path) -> None:
    run_dir = tmp_path / "run"
    run(settings(tmp_path, tiny_llama, train__num_steps=1), run_dir)
    output = StringIO()
    resume(run_dir, Console(file=output, width=200))
    assert "is finished already" in output.getvalue()
    (run_dir / "final").rename(tmp_path / "moved")
    task = tmp_path / "even.py"
    task.write_text(TASK + "\n# changed\n")
    with pytest.raises(MarkbookError, match=r"even.py: has changed since this run began"):
        resume(run_dir, Console(file=output, width=200))
    task.write_text(TASK)
    resume(run_dir, Console(file=output, width=200))
    moved, final = (d / "model.safetensors" for d in (tmp_path / "moved", run_dir / "final"))
    assert moved.read_bytes() == final.read_bytes()


def test_a_changed_model_is_noticed(tmp_path: Path, tiny_llama: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    run(settings(tmp_path, model, train__num_steps=1), tmp_path / "run")
    (tmp_path / "run" / "final").rename(tmp_path / "moved")
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    with pytest.raises(MarkbookError, match=r"model.safetensors: has changed since this run began"):
        resume(tmp_path / "run", Console(file=StringIO()))


def test_a_run_killed_before_its_recipe_was_written_can_begin_again(
    tmp_path: Path, tiny_llama: Path
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for name in (".lock", "template.jinja", ".run.json.tmp"):
        (run_dir / name).touch()
    run(settings(tmp_path, tiny_llama, train__num_steps=1), run_dir)
    assert (run_dir / "final" / "model.safetensors").exists()


def test_a_damaged_checkpoint_is_named(tmp_path: Path, tiny_llama: Path) -> None:
    run_dir = tmp_path / "run"
    run(settings(tmp_path, tiny_llama, train__num_steps=1), run_dir)
    (run_dir / "final").rename(tmp_path / "moved")
    weights = run_dir / "checkpoints" / "step-000001" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(MarkbookError, match="step-000001: this checkpoint can't be loaded"):
        resume(run_dir, Console(file=StringIO()))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rollout__problems_per_step": 13}, "rollout.problems_per_step = 13, but the training split has 12"),
        ({"evaluation__split": "tset"}, "evaluation.split = 'tset', but task even has train, test"),
        ({"rollout__max_tokens": ((0, 255),)}, "don't fit the model's context of 256 tokens"),
        ({"marking__tags": ("think",), "prompt__prefill": "<think>"}, "the prompt ends with '<think>'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_spent(
    tmp_path: Path, tiny_llama: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(MarkbookError, match=says):
        run(settings(tmp_path, tiny_llama, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def data_recipe(tmp_path: Path, model: Path, faulty: str) -> Recipe:
    rows = [json.dumps({"problem": f"{n} + 1", "answer": str(n + 1)}) for n in range(9)]
    (tmp_path / "problems.jsonl").write_text("\n".join([*rows, faulty]) + "\n")
    recipe = settings(tmp_path, model, train__num_steps=1, evaluation__num_problems=0)
    for name, value in {
        "data.task": "",
        "data.path": str(tmp_path / "problems.jsonl"),
        "reward.weights": {"accuracy": 1.0, "format": 1.0},
        "rollout.max_tokens": ((0, 60),),
    }.items():
        recipe = replace(recipe, name, value)
    return recipe


FAULTY = [
    ('{"problem": "7 + 1"}', "answer is missing"),
    ('{"problem": "2 + 1", "answer": "3"}', "repeats the problem of line 3"),
    (json.dumps({"problem": "z", "answer": "\\frac{1}{"}), "can't be marked"),
    (json.dumps({"problem": "1 + " * 99, "answer": "1"}), "don't fit the model's context of 256"),
    ("{", "JSON"),
]


@pytest.mark.parametrize(("faulty", "says"), FAULTY)
def test_faulty_rows_are_refused_or_left_out_and_listed(
    tmp_path: Path, tiny_llama: Path, faulty: str, says: str
) -> None:
    recipe = data_recipe(tmp_path, tiny_llama, faulty)
    with pytest.raises(MarkbookError, match=rf"line 10: .*{says}"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    output = run(replace(recipe, "data.on_fault", "skip"), tmp_path / "run")
    assert "Left out 1 row" in output
    (fault,) = lines(tmp_path / "run", "faults")
    assert fault["row"] == 10
    assert says in fault["reason"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["num_problems"] == 9
