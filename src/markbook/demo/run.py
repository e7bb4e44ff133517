"""`markbook demo`: build the base, train it, and tell what became of it."""

import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from markbook.display import percent, program
from markbook.errors import MarkbookError
from markbook.launch import begin, new_run_dir
from markbook.recipe_file import read_recipe, replace


def shipped_recipe(name: str) -> Path:
    """Return the path of a recipe that comes with markbook."""
    package = Path(__file__).parents[1]
    for folder in (package / "recipes", package.parents[1] / "recipes"):
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    raise MarkbookError(f"the recipe {name}.toml is not installed with markbook; reinstall it.")


def run_demo(seed: int, out: Path | None, console: Console) -> None:
    """Run recipes/demo.toml with a seed and print held-out marks before and after."""
    begun = time.perf_counter()
    recipe = replace(read_recipe(shipped_recipe("demo")), "seed", seed)
    run_dir = out if out is not None else new_run_dir("demo")
    begin(recipe, run_dir, console)
    console.print(before_and_after(run_dir))
    console.print(
        f"{time.perf_counter() - begun:.0f} s in all. Run: {run_dir}\n"
        f"Read what it wrote, before and after, with its marks:\n"
        f"  {program()} show {run_dir} --step 0\n"
        f"  {program()} show {run_dir}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def before_and_after(run_dir: Path) -> Table:
    """Return a table of a run's first and last marks on held-out problems."""
    lines = (run_dir / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    table = Table(title="Held-out problems, sampled at temperature 1", min_width=60)
    for heading in ("", "base", "after training"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = {
        "correct (pass@1)": "pass_at_1",
        "  95 % interval, low": "pass_at_1_low",
        "  95 % interval, high": "pass_at_1_high",
        "format": "format_share",
        **{
            f"  correct, level {key.removeprefix('pass_at_1_level_')}": key
            for key in first
            if key.startswith("pass_at_1_level_")
        },
        "truncated": "truncated_share",
    }
    for label, key in rows.items():
        table.add_row(label, percent(first[key]), percent(last[key]))
    tokens = "completion_tokens_mean"
    table.add_row("mean tokens", f"{first[tokens]:.1f}", f"{last[tokens]:.1f}")
    return table
