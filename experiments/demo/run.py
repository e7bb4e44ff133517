"""The demo with three seeds: summary.json and figure.svg beside this file.

    python experiments/demo/run.py [--runs runs/demo-seeds] [--seeds 0 1 2]

Each seed builds its own base model and trains it, one after the other. A seed whose run is in the
folder already is not run again. The base is built afresh for each, so that the time is that of a
first start.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt  # after the choice of backend

HERE = Path(__file__).parent


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(seed: int, runs: Path) -> Path:
    """Return the directory of a seed's finished run."""
    run_dir = runs / f"seed-{seed}"
    if not (run_dir / "final").exists():
        begun = time.time()
        command = [sys.executable, "-m", "markbook", "demo", "--seed", str(seed), "--out"]
        environment = os.environ | {"MARKBOOK_CACHE": str(runs / "bases")}
        subprocess.run([*command, str(run_dir)], check=True, env=environment)
        (run_dir / "seconds.json").write_text(json.dumps(round(time.time() - begun)))
    return run_dir


def summarize(seed: int, run_dir: Path) -> dict[str, Any]:
    before, after = lines(run_dir / "evaluations.jsonl")
    keys = (
        "pass_at_1",
        "pass_at_1_low",
        "pass_at_1_high",
        "format_share",
        "completion_tokens_mean",
    )
    levels = [key for key in before if key.startswith("pass_at_1_level_")]
    return {
        "seed": seed,
        "held_out_problems": before["num_problems"],
        "samples_each": before["num_completions"] // before["num_groups"],
        "before": {key: before[key] for key in (*keys, "completion_tokens_mean", *levels)},
        "after": {key: after[key] for key in (*keys, "completion_tokens_mean", *levels)},
        "seconds_in_all": json.loads((run_dir / "seconds.json").read_text()),
    }


def draw(runs: dict[int, Path]) -> None:
    """Draw what each step's rollout scored, a line a seed, and the held-out marks as points."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    names = {"correct_share": ("correct", "#1b6ca8"), "format_share": ("format", "#c8781e")}
    for metric, (label, colour) in names.items():
        curves = [[m[metric] for m in lines(r / "metrics.jsonl")] for r in runs.values()]
        for curve in curves:
            axes.plot(curve, color=colour, alpha=0.25, linewidth=0.8)
        mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(mean, color=colour, linewidth=1.8, label=f"{label}, training problems")
    for number, run_dir in enumerate(runs.values()):
        marks = lines(run_dir / "evaluations.jsonl")
        errors = [
            [m["pass_at_1"] - m["pass_at_1_low"] for m in marks],
            [m["pass_at_1_high"] - m["pass_at_1"] for m in marks],
        ]
        axes.errorbar(
            [m["step"] + 0.8 * (number - 1) for m in marks],
            [m["pass_at_1"] for m in marks],
            yerr=errors,
            fmt="o",
            markersize=4,
            color="#12324a",
            label=None if number else "correct, held out (95 % interval)",
        )
    axes.set(xlabel="step", ylabel="share of completions", ylim=(0, 1.02))
    axes.set_title(f"markbook demo, {len(runs)} seeds", loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    mpl.rcParams["svg.hashsalt"] = "markbook"  # then the file repeats bit for bit
    figure.savefig(HERE / "figure.svg", metadata={"Date": None})


def write_table(seeds: list[dict[str, Any]]) -> None:
    """Put the figures into the README's table."""
    readme = HERE.parents[1] / "README.md"
    before, mark, rest = readme.read_text(encoding="utf-8").partition("<!-- figures:")
    first, end, after = rest.partition("<!-- end of figures -->")
    rows = [
        "| seed | correct before | correct after | format before | format after | seconds in all |",
        "|---|---|---|---|---|---|",
    ]
    for entry in seeds:
        marks = [
            f"{100 * entry[when][key]:.1f} %"
            for key in ("pass_at_1", "format_share")
            for when in ("before", "after")
        ]
        rows.append(f"| {entry['seed']} | {' | '.join(marks)} | {entry['seconds_in_all']} |")
    table = "\n".join([first.splitlines()[0], *rows, ""])
    readme.write_text(before + mark + table + end + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", default="runs/demo-seeds", type=Path)
    parser.add_argument("--seeds", default=[0, 1, 2], type=int, nargs="+")
    arguments = parser.parse_args()
    runs = {seed: run(seed, arguments.runs) for seed in arguments.seeds}
    facts = json.loads((next(iter(runs.values())) / "run.json").read_text())
    summary = {
        "command": "python experiments/demo/run.py",
        "versions": facts["versions"],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, of which the run uses 1",
        "seeds": [summarize(seed, run_dir) for seed, run_dir in runs.items()],
    }
    (HERE / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    draw(runs)
    write_table(summary["seeds"])
    for entry in summary["seeds"]:
        before, after = entry["before"], entry["after"]
        print(
            f"seed {entry['seed']}: pass@1 {before['pass_at_1']:.3f} -> {after['pass_at_1']:.3f}, "
            f"format {before['format_share']:.3f} -> {after['format_share']:.3f}, "
            f"{entry['seconds_in_all']} s"
        )


if __name__ == "__main__":
    main()
