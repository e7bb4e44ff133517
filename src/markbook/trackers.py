"""Optional trackers: the numbers of `metrics.jsonl` and `timings.jsonl`, sent on as they come.

By default each of them writes into the run's directory and nothing leaves the machine; the
variables named here, set in the user's own environment, say otherwise:

| tracker     | where, unless changed        | changed by                             |
|-------------|------------------------------|----------------------------------------|
| tensorboard | `RUN/tensorboard`            |                                        |
| wandb       | `RUN/wandb`, offline         | WANDB_MODE, WANDB_DIR, WANDB_PROJECT   |
| trackio     | `RUN/trackio`                | TRACKIO_DIR, TRACKIO_SPACE_ID          |
| mlflow      | `RUN/mlflow.db` (SQLite)     | MLFLOW_TRACKING_URI                    |

A resumed run goes on in the same tracker run. Steps between the last checkpoint and the kill are
logged again: TensorBoard drops the first copy, the others keep both, which are equal. Of a killed
process, trackio may lack the last half second and wandb the last 15; the run's own files don't.

The run's own files are the record. So a tracker that fails on the way does not stop the run: that
is told once on the standard error stream, and the run goes on without that tracker. One that
can't start does stop the run, before any compute is spent.
"""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from markbook.errors import MarkbookError, suggestion
from markbook.storage import write_atomically

PROJECT = "markbook"
"""The project, or experiment, that runs are filed under."""
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}
"""The trackers there are, and the modules that each needs."""


class Tracker(Protocol):
    """Somewhere that metrics are sent to."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the finite numbers of one step."""

    def close(self) -> None:
        """Send what is still waiting and let go."""


def check_trackers(names: Iterable[str]) -> None:
    """Raise `MarkbookError` for a tracker that is not known or whose packages are missing."""
    for name in names:
        if name not in PACKAGES:
            known = ", ".join(PACKAGES)
            raise MarkbookError(
                f"train.trackers: {name!r} is not one of {known}{suggestion(name, PACKAGES)}"
            )
        needed = PACKAGES[name]
        if name == "mlflow" and os.environ.get("MLFLOW_TRACKING_URI"):
            needed = needed[:1]  # the others are for the SQLite file
        missing = [module for module in needed if not _is_installed(module)]
        if missing:
            raise MarkbookError(
                f"train.trackers: {name!r} needs {', '.join(missing)}, which is not installed; "
                "run pip install 'markbook[trackers]'."
            )


def _is_installed(module: str) -> bool:
    """Say whether a package is there; a mere folder of that name, as W&B makes one, is not."""
    found = find_spec(module)
    return found is not None and found.origin is not None


def open_trackers(
    names: Iterable[str],
    run_dir: Path,
    run_name: str,
    recipe: Mapping[str, Any],
    *,
    resumed: bool,
) -> list[Tracker]:
    """Open trackers for a run, or again for one that is resumed.

    `recipe` is shown beside the run where a tracker can. The step that a resumed run
    goes on from is taken from the first `log`. Raises `MarkbookError` for
    an unknown name, a missing package, and a tracker that can't start.
    """
    names = list(dict.fromkeys(names))
    check_trackers(names)
    opened: list[Tracker] = []
    for name in names:
        try:
            tracker = OPENERS[name](run_dir, run_name, recipe, resumed)
        except Exception as error:  # whatever a tracker raises, the user has to know and to choose
            for one in opened:
                one.close()
            raise MarkbookError(
                f"train.trackers: {name!r} can't start ({type(error).__name__}: {error}); mend "
                "its settings, or leave it out."
            ) from error
        opened.append(Forgiving(name, tracker))
    return opened


class Forgiving:
    """A tracker whose faults are told once and then end it, not the run."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self._tracker: Tracker | None = tracker

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the numbers of one step, `step` itself left out of them."""
        numbers = {key: value for key, value in metrics.items() if key != "step"}
        self._attempt(f"at step {step}", lambda tracker: tracker.log(step, numbers))

    def close(self) -> None:
        """Close the tracker, if it is still in use."""
        self._attempt("as it was closed", lambda tracker: tracker.close())
        self._tracker = None

    def _attempt(self, when: str, action: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            action(self._tracker)
        except Exception as error:  # the run must outlive its tracker; the fault is told
            self._tracker = None
            print(
                f"markbook: tracker {self.name} failed {when} ({type(error).__name__}: {error}); "
                "the run goes on without it, and its own files have every number.",
                file=sys.stderr,
            )


class TensorBoard:
    """Event files, written record by record, so that a kill loses no finished step."""

    def __init__(self, run_dir: Path, name: str, recipe: Mapping[str, Any], resumed: bool) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory = run_dir / "tensorboard"
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a directory in the order of their names.
        path = directory / f"events.out.tfevents.{time.time_ns():020d}.{os.getpid()}.{name}"
        self._records = RecordWriter(path.open("xb"))
        self._write(file_version="brain.Event:2")
        self._recipe = "" if resumed else _as_code(recipe)
        self._begun = False

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()

    def _begin(self, step: int) -> None:
        """Say that a session starts here: TensorBoard drops what it has from that step on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        self._write(session_log=SessionLog(status=SessionLog.START), step=step)
        if self._recipe:
            plugin = SummaryMetadata.PluginData(plugin_name="text")
            value = Summary.Value(
                tag="recipe",
                metadata=SummaryMetadata(plugin_data=plugin),
                tensor=TensorProto(dtype="DT_STRING", string_val=[self._recipe.encode()]),
            )
            self._write(summary=Summary(value=[value]), step=step)
        self._begun = True

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one event with a scalar for each metric."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if not self._begun:
            self._begin(step)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._write(summary=Summary(value=values), step=step)

    def close(self) -> None:
        """Close the file."""
        self._records.close()


class WeightsAndBiases:
    """A Weights & Biases run, offline unless WANDB_MODE says otherwise."""

    def __init__(self, run_dir: Path, name: str, recipe: Mapping[str, Any], resumed: bool) -> None:
        if "WANDB_MODE" not in os.environ:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline is offline
        import wandb

        own = os.environ.get
        self._run = wandb.init(
            id=_remembered(run_dir, "wandb", lambda: secrets.token_hex(4)),
            name=name,
            config=dict(recipe),
            resume="allow" if resumed else "never",
            settings=wandb.Settings(console="off"),  # else it takes over the standard streams
            mode=own("WANDB_MODE", "offline"),
            dir=own("WANDB_DIR", str(run_dir)),
            project=own("WANDB_PROJECT", PROJECT),
        )
        # An axis of its own: W&B refuses to go back to an earlier step of its own counter.
        self._run.define_metric("*", step_metric="train_step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send one row, with the step as `train_step`."""
        self._run.log({"train_step": step, **metrics})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Trackio:
    """A Trackio run: `TRACKIO_DIR=RUN/trackio trackio show --project markbook` plots it.

    Trackio keeps one directory a process, so a second run of one process goes to the first's.
    """

    def __init__(self, run_dir: Path, name: str, recipe: Mapping[str, Any], resumed: bool) -> None:
        os.environ.setdefault("TRACKIO_DIR", str((run_dir / "trackio").resolve()))
        import trackio  # reads the variable once, as it is imported

        self._run = trackio.init(
            project=PROJECT,
            name=name,
            config=dict(recipe),
            resume="allow" if resumed else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue one row."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Write what is queued and finish the run."""
        import trackio

        trackio.finish()


class MLflow:
    """An MLflow run, in an SQLite file unless MLFLOW_TRACKING_URI says otherwise."""

    def __init__(self, run_dir: Path, name: str, recipe: Mapping[str, Any], resumed: bool) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        own = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(own or f"sqlite:///{(run_dir / 'mlflow.db').resolve()}")
        artifacts = None if own else (run_dir / "mlflow-artifacts").resolve().as_uri()
        self._run_id = _remembered(
            run_dir, "mlflow", lambda: self._new_run(name, recipe, artifacts)
        )
        if resumed:
            self._client.update_run(self._run_id, status="RUNNING")

    def _new_run(self, name: str, recipe: Mapping[str, Any], artifacts: str | None) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(PROJECT)
        experiment = (
            self._client.create_experiment(PROJECT, artifact_location=artifacts)
            if found is None
            else found.experiment_id
        )
        run_id = str(self._client.create_run(experiment, run_name=name).info.run_id)
        params = [Param(key, value) for key, value in _flat(recipe).items()]
        self._client.log_batch(run_id, params=params)
        return run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics in one go."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        values = [Metric(key, value, now, step) for key, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=values)

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run_id)


OPENERS: Mapping[str, Callable[[Path, str, Mapping[str, Any], bool], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def _remembered(run_dir: Path, tracker: str, make: Callable[[], str]) -> str:
    """Return the id that a tracker knows this run by, from `trackers.json`; make it once."""
    path = run_dir / "trackers.json"
    ids: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if tracker not in ids:
        ids[tracker] = make()
        write_atomically(path, json.dumps(ids, indent=2) + "\n")
    return ids[tracker]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested table's values as text under dotted names."""
    values: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            values |= _flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = str(value)
    return values


def _as_code(recipe: Mapping[str, Any]) -> str:
    """Return a recipe as an indented block, which Markdown shows as it is."""
    return "\n".join(f"    {key} = {value}" for key, value in _flat(recipe).items())
