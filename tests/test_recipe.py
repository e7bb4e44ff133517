"""Recipes: every fault of a file or a flag is named, and what is written runs again."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markbook.errors import MarkbookError
from markbook.recipe import RANGES, Recipe, check, check_weights, flatten
from markbook.recipe_file import read_recipe, replace, to_toml, with_paths


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, "[rollout]\ngroup_size = 32\n"))
    assert recipe == replace(Recipe(), "rollout.group_size", 32)


def test_an_empty_file_is_the_default_recipe(tmp_path: Path) -> None:
    assert read_recipe(write(tmp_path, "")) == Recipe()


def test_whole_numbers_are_fine_where_decimals_are_meant(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, "[rollout]\ntemperature = 1\n"))
    assert isinstance(recipe.rollout.temperature, float)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rollout]\ngroup_sise = 3", "rollout.group_sise is not a key of a recipe; did you mean 'gr"),
        ("[rolout]\ngroup_size = 3", "rolout is not a table or key of a recipe; did you mean 'rollout'"),
        ("[rollout]\nxyzzy = 3", "rollout.xyzzy is not a key of a recipe."),
        ("[rollout]\ngroup_size = 1", "rollout.group_size = 1 must be between 2 and"),
        ("[rollout]\ngroup_size = 2.5", "rollout.group_size = 2.5 must be a whole number"),
        ("[rollout]\ngroup_size = true", "rollout.group_size = True must be a whole number"),
        ("[rollout]\ngroup_size = '3'", "rollout.group_size = '3' must be a whole number"),
        ("[rollout]\ntemperature = nan", "rollout.temperature = nan must be between"),
        ("[rollout]\ntemperature = 'hot'", "rollout.temperature = 'hot' must be a number"),
        ("rollout = 3", r"rollout = 3 must be a table \(\[rollout\]\)"),
        ("[model]\ndtype = 'float16'", "model.dtype = 'float16' must be one of 'float32', 'bfloat16'"),
        ("[model]\ndtype = 'bfloat'", "did you mean 'bfloat16'"),
        ("[model]\npath = 3", "model.path = 3 must be a string"),
        ("[rollout]\nmax_tokens = 5", "rollout.max_tokens = 5 must be a list, each item a list of 2"),
        ("[rollout]\nmax_tokens = [[0, 5, 6]]", r"rollout.max_tokens = \[0, 5, 6\] must be a list of 2"),
        ("[rollout]\nmax_tokens = []", "must be pairs .from update, tokens. that begin at update 0"),
        ("[rollout]\nmax_tokens = [[1, 5]]", "must be pairs .from update, tokens. that begin at update 0"),
        ("[rollout]\nmax_tokens = [[0, 5], [0, 6]]", "that begin at update 0 and rise"),
        ("[rollout]\nmax_tokens = [[0, 5], [9, 6], [8, 7]]", "that begin at update 0 and rise"),
        ("[rollout]\nmax_tokens = [[0, 0]]", "must allow at least 1 token"),
        ("[rollout]\nstop = ['']", "rollout.stop = .* holds an empty string"),
        ("[rollout]\nstop = [3]", "rollout.stop = 3 must be a string"),
        ("[objective]\ndual_clip = 0.5", "objective.dual_clip = 0.5 must be over 1"),
        ("[objective]\ndual_clip = 1.0", "objective.dual_clip = 1.0 must be over 1"),
        ("[objective]\nnum_minibatches = 3", "must divide the 256 completions of a step"),
        ("[objective]\nconstant_tokens = 3", "objective.constant_tokens = 3 is only used with"),
        ("[rollout]\nmax_draws = 3", "rollout.max_draws = 3 is only used with"),
        ("[prompt]\nsystem = 'x'", "prompt.system = 'x' is only used with"),
        ("[reward]\nweights = {}", "must give each component a finite weight"),
        ("[reward.weights]\naccuracy = inf", "must give each component a finite weight"),
        ("[reward.weights]\naccuracy = 'x'", "reward.weights.accuracy = 'x' must be a number"),
        ("[reward.weights]\naccuracy = 0", "rewards nothing"),
        ("[marking]\ntags = ['a', 'a']", "must be different names"),
        ("[marking]\ntags = ['<a>']", "must be different names"),
        ("seed = -1", "seed = -1 must be between 0"),
        ("seed = ", "is not valid TOML"),
        ("[reward]\nweights = 3", "reward.weights = 3 must be a table of numbers"),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(MarkbookError, match=says) as caught:
        read_recipe(write(tmp_path, text))
    assert "recipe.toml" in str(caught.value)
    assert "\n" not in str(caught.value).rstrip()


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "")
    with pytest.raises(MarkbookError, match=r"no such recipe file. .* holds recipe.toml"):
        read_recipe(tmp_path / "recipes.toml")
    with pytest.raises(MarkbookError, match=r"no such recipe file\.$"):
        read_recipe(tmp_path / "nowhere" / "recipe.toml")


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MarkbookError, match="can't be read as a recipe"):
        read_recipe(tmp_path / "recipe.toml")
    with pytest.raises(MarkbookError, match="can't be read as a recipe"):
        read_recipe(tmp_path)


def test_every_number_of_a_recipe_has_a_range() -> None:
    numbers = {k for k, v in flatten(Recipe()).items() if type(v) in (int, float)}
    assert numbers - {"objective.dual_clip"} == set(RANGES)


@pytest.mark.parametrize("name", sorted(RANGES))
def test_ranges_hold_their_bounds_and_nothing_beyond(name: str) -> None:
    low, high = RANGES[name]
    kind = type(flatten(Recipe())[name])
    for value in (low - 1, high * 2 + 1):
        with pytest.raises(MarkbookError, match=f"recipe: {name} = .* must be between"):
            check(replace(Recipe(), name, kind(value)))
    if name not in ("objective.num_minibatches", "objective.constant_tokens", "rollout.max_draws"):
        check(replace(Recipe(), name, kind(low)))
        check(replace(Recipe(), name, kind(high)))


def test_the_shipped_recipes_are_valid() -> None:
    shipped = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
    assert {"demo.toml", "r1-zero.toml"} <= {path.name for path in shipped}
    for path in shipped:
        read_recipe(path)


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    recipe = read_recipe(
        write(
            tmp_path,
            "seed = 7\n[rollout]\nmax_tokens = [[0, 5], [9, 6]]\nstop = ['a\\n\"b']\n"
            "[reward.weights]\naccuracy = 2\n[model.lora]\nrank = 4\n",
        )
    )
    again = tmp_path / "again.toml"
    again.write_text(to_toml(recipe), encoding="utf-8")
    assert read_recipe(again) == recipe


@given(st.integers(0, 2**63 - 1), st.text(), st.floats(0.001, 100))
def test_any_value_survives_writing(seed: int, prefill: str, temperature: float) -> None:
    import tomllib

    from markbook.recipe_file import build

    recipe = replace(replace(Recipe(), "seed", seed), "prompt.prefill", prefill)
    recipe = replace(recipe, "rollout.temperature", temperature)
    assert build(Recipe, tomllib.loads(to_toml(recipe)), "x") == recipe


def test_paths_are_relative_to_the_recipe_file(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").touch()
    (tmp_path / "t.jinja").touch()
    (tmp_path / "task.py").touch()
    recipe = read_recipe(
        write(tmp_path, "[data]\npath = 'p.jsonl'\n[prompt]\ntemplate = 't.jinja'\n")
    )
    assert recipe.data.path == str(tmp_path / "p.jsonl")
    assert recipe.prompt.template == str(tmp_path / "t.jinja")
    task = with_paths(replace(Recipe(), "data.task", "task.py:Mine"), tmp_path)
    assert task.data.task == f"{tmp_path / 'task.py'}:Mine"
    hub = with_paths(replace(Recipe(), "model.path", "org/name"), tmp_path)
    assert hub.model.path == "org/name"


def test_weights_must_be_of_the_tasks_components() -> None:
    check_weights(Recipe(), ("accuracy", "format"))
    with pytest.raises(
        MarkbookError, match="names 'format', but the task marks accuracy, formal; "
    ):
        check_weights(Recipe(), ("accuracy", "formal"))


def test_updates() -> None:
    recipe = replace(replace(Recipe(), "objective.num_minibatches", 4), "objective.num_epochs", 3)
    assert recipe.updates_per_step == 12
    assert recipe.num_updates == 1200
