"""Runs: begun in a directory of their own, taken up again from it."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import time
from pathlib import Path

import torch
from rich.console import Console

from markbook import __version__
from markbook.display import program
from markbook.errors import MarkbookError
from markbook.journal import Journal
from markbook.prepare import Prepared, prepare, set_threads
from markbook.recipe import Recipe
from markbook.recipe_file import read_recipe, replace, to_table, to_toml
from markbook.storage import write_atomically
from markbook.tasks.file import FileTask
from markbook.trackers import open_trackers
from markbook.train import train

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow", "peft")
"""Packages whose versions a run writes down: another version may round differently."""


TEMPLATE = "template.jinja"
"""The run's own copy of a user's template, beside its recipe."""

BEFORE_RECIPE = {
    *(".lock", TEMPLATE, "faults.jsonl", "run.json"),
    *(".template.jinja.tmp", ".faults.jsonl.tmp", ".run.json.tmp", ".recipe.toml.tmp"),
}
"""What a run that was killed before its recipe was written leaves; a new one may begin there."""

SAMPLED_BYTES = 1 << 20
"""How much of either end of a weight file goes into its fingerprint, with its size."""


def new_run_dir(name: str, root: Path = Path("runs")) -> Path:
    """Return a directory name for a new run that says what and when."""
    return root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def begin(recipe: Recipe, run_dir: Path, console: Console) -> None:
    """Start a run in a new directory and take it to its end.

    Raises `MarkbookError` where the directory holds something already.
    """
    held = {path.name for path in run_dir.iterdir()} if run_dir.is_dir() else set()
    if held - BEFORE_RECIPE:
        advice = f"; go on with --resume {run_dir}" if "recipe.toml" in held else ""
        raise MarkbookError(f"{run_dir}: this directory is not empty{advice}; or choose another.")
    ready = prepare(recipe, console)  # before the directory: a faulty recipe leaves nothing behind
    with Journal(run_dir) as journal:
        _write_faults(ready, run_dir, console)
        write_atomically(run_dir / "run.json", json.dumps(_facts(recipe, ready, run_dir), indent=2))
        # Last: a directory with a recipe in it is a run that can be resumed.
        write_atomically(run_dir / "recipe.toml", to_toml(_own_template(recipe, run_dir)))
        _train(recipe, ready, journal, console, resumed=False)


def resume(run_dir: Path, console: Console) -> None:
    """Take a run up from its last checkpoint and bring it to its end.

    Raises `MarkbookError` where there is no run, it is held by another process, or a file that it
    began with has changed since.
    """
    if not (run_dir / "recipe.toml").exists():
        raise MarkbookError(f"{run_dir}: holds no run (there is no recipe.toml in it).")
    recipe = read_recipe(run_dir / "recipe.toml")
    with Journal(run_dir) as journal:
        if (run_dir / "final").exists():
            console.print(f"{run_dir} is finished already.", highlight=False, soft_wrap=True)
            return
        _check_unchanged(recipe, run_dir, console)
        ready = prepare(recipe, console)
        _train(recipe, ready, journal, console, resumed=True)


def _train(
    recipe: Recipe, ready: Prepared, journal: Journal, console: Console, *, resumed: bool
) -> None:
    run_dir = journal.run_dir
    names = recipe.train.trackers
    trackers = open_trackers(names, run_dir, run_dir.name, to_table(recipe), resumed=resumed)
    try:
        train(recipe, ready, journal, console, trackers)
    except KeyboardInterrupt:
        console.print(
            f"Go on from the last checkpoint: {program()} train --resume {run_dir}",
            highlight=False,
            soft_wrap=True,
        )
        raise
    finally:
        for tracker in trackers:
            tracker.close()


def _own_template(recipe: Recipe, run_dir: Path) -> Recipe:
    """Copy a user's template into the run and name it by its place beside the recipe.

    So the run's recipe stays runnable whatever becomes of the first file or of the run's place.
    """
    template = Path(recipe.prompt.template)
    if template.suffix != ".jinja":
        return recipe
    write_atomically(run_dir / TEMPLATE, template.read_text(encoding="utf-8"))
    return replace(recipe, "prompt.template", TEMPLATE)


def _write_faults(ready: Prepared, run_dir: Path, console: Console) -> None:
    task = ready.classroom.task
    faults = task.faults if isinstance(task, FileTask) else ()
    if faults:
        lines = [
            json.dumps({"file": str(f.path), "row": f.number, "kind": f.kind, "reason": f.reason})
            for f in faults
        ]
        write_atomically(run_dir / "faults.jsonl", "\n".join(lines) + "\n")
        console.print(
            f"Left out {len(faults)} row{'s' if len(faults) > 1 else ''} that can't be used; "
            f"{run_dir / 'faults.jsonl'} says which and why.",
            highlight=False,
            soft_wrap=True,
        )


def _facts(recipe: Recipe, ready: Prepared, run_dir: Path) -> dict[str, object]:
    """Return what the run was begun with, for a reader and for the check on resuming."""
    versions = {"markbook": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "name": run_dir.name,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": recipe.seed,
        "num_steps": recipe.train.num_steps,
        "model": recipe.model.path,
        "task": ready.classroom.task.name,
        "num_problems": len(ready.problems),
        "parameters": sum(p.numel() for p in ready.policy.model.parameters()),
        "trained_parameters": sum(p.numel() for p in ready.policy.trained.values()),
        "versions": versions,
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": str(ready.policy.model.device),
        },
        "inputs": _inputs(recipe),
    }


def _inputs(recipe: Recipe) -> dict[str, str]:
    """Return a digest of each file that the recipe names and a run depends on."""
    task_file = recipe.data.task.partition(":")[0]
    names = (recipe.data.path, recipe.data.test_path, task_file)
    files = [Path(name) for name in names if name and Path(name).is_file()]
    digests = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    model = Path(recipe.model.path)
    weights = [model] if model.is_file() else sorted(model.glob("*.*")) if model.is_dir() else []
    return digests | {str(path): _fingerprint(path) for path in weights if path.is_file()}


def _fingerprint(path: Path) -> str:
    """Return a digest of a file's size and of both its ends: weights can be too large to read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(SAMPLED_BYTES)
        file.seek(max(0, size - SAMPLED_BYTES))
        return hashlib.sha256(str(size).encode() + head + file.read()).hexdigest()


def _check_unchanged(recipe: Recipe, run_dir: Path, console: Console) -> None:
    try:
        facts = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MarkbookError(f"{run_dir}/run.json: can't be read: {error}.") from error
    now = _inputs(recipe)
    for path, digest in facts["inputs"].items():
        if now.get(path) != digest:
            state = "is gone" if path not in now else "has changed"
            raise MarkbookError(
                f"{path}: {state} since this run began, so resuming would not repeat it; put it "
                "back, or start a new run."
            )
    set_threads(recipe)
    if facts["machine"]["threads"] != torch.get_num_threads():
        torch.set_num_threads(facts["machine"]["threads"])
    for package, version in facts["versions"].items():
        present = __version__ if package == "markbook" else _version(package)
        if present != version:
            console.print(
                f"Note: this run began with {package} {version} and goes on with {present}; its "
                "last bits may differ from an uninterrupted run's.",
                highlight=False,
                soft_wrap=True,
            )


def _version(package: str) -> str | None:
    if package == "python":
        return platform.python_version()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def slug(name: str) -> str:
    """Return a name that is fit for a directory."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
