"""Start or resume a run in a forked child and kill it with SIGKILL; used by test_resume.py.

usage: kill_driver.py RUN_DIR RECIPE KILLS
KILLS is a JSON list, one entry an attempt: {"call": n} kills before the n-th call that changes the
disk, {"seconds": s} kills after so long, {} lets the attempt come to its end. Prints one JSON
object: how each attempt ended, and how many calls the last one made.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import transformers.models.llama.modeling_llama  # noqa: F401  # once, not in every child
from rich.console import Console

from markbook import checkpoint, train
from markbook.launch import begin, resume
from markbook.recipe_file import read_recipe

CALLS = 0


def count_calls(kill_at: int) -> None:
    """Kill this process right before the n-th call that writes, syncs, renames or deletes."""

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            global CALLS  # noqa: PLW0603
            CALLS += 1
            if kill_at == CALLS:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    os.fsync = counted(os.fsync)
    os.rename = counted(os.rename)
    os.unlink = counted(os.unlink)
    os.rmdir = counted(os.rmdir)
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    Path.write_text = counted(Path.write_text)  # type: ignore[method-assign]
    Path.mkdir = counted(Path.mkdir)  # type: ignore[method-assign]
    checkpoint.save_file = counted(checkpoint.save_file)  # type: ignore[attr-defined]
    pq.ParquetWriter.write_table = counted(pq.ParquetWriter.write_table)
    train.save_model = counted(train.save_model)  # type: ignore[attr-defined]


def attempt(run_dir: Path, recipe: Path, kill: dict[str, float], report: int) -> None:
    """Be the child: begin or resume, and tell the parent how many calls it took."""
    count_calls(int(kill.get("call", 0)))
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere)
        if (run_dir / "recipe.toml").exists():
            resume(run_dir, console)
        else:
            begin(read_recipe(recipe), run_dir, console)
    os.write(report, str(CALLS).encode())


def main() -> None:
    """Make the attempts one after another."""
    run_dir, recipe = Path(sys.argv[1]), Path(sys.argv[2])
    ends, calls, begun = [], 0, time.monotonic()
    for kill in json.loads(sys.argv[3]):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                attempt(run_dir, recipe, kill, writing)
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        if "seconds" in kill:
            time.sleep(kill["seconds"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        ends.append("killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
        with os.fdopen(reading) as pipe:
            calls = int(pipe.read() or 0)
    print(json.dumps({"ends": ends, "calls": calls, "seconds": time.monotonic() - begun}))


if __name__ == "__main__":
    main()
