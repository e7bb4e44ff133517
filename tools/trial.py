"""Try one source of a module: run its tests in a forked child that imports that source instead.

What the tests import from elsewhere (torch, hypothesis, ...) is imported once, before the fork.
Nothing of the package is: in the child Python's own import finds the tried source, so every
module that imports it gets that one.
"""

import ast
import gc
import importlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import IO, Literal, NoReturn

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch: only one thread lives on in
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a forked child, and numpy's would be started at import

import _hypothesis_pytestplugin  # type: ignore[import-untyped]
import pytest
import pytest_timeout  # type: ignore[import-untyped]
from hypothesis import HealthCheck, Phase, settings

UNTIMED = "not megabyte and not takes_long"
"""Tests with a stopwatch are left out: on a busy machine they would fail for anything."""

MEMORY_BYTES = 8 << 30
_NEVER_IMPORTED = 90

# Repeatable; and a failure counts as such, nobody will read its smallest example.
settings.register_profile(
    "trial",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)

Outcome = Literal["killed", "timed out", "survived"]


@dataclass(frozen=True)
class Module:
    """A module and the tests that guard it."""

    name: str
    """With its packages: `markbook.verify.units`."""
    path: Path
    tests: tuple[Path, ...]
    """In the order they are run in."""

    @property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    cpu_seconds: float
    output: str
    """What pytest printed."""


class Trial:
    """A running child; `poll` it until there is a result."""

    def __init__(self, module: Module, source: str, cpu_limit_s: int) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the trial runs
        self._kill_at = time.monotonic() + 60 + 10 * cpu_limit_s
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run_tests(module, source, cpu_limit_s, self._log)

    def poll(self) -> Result | None:
        """Return the result, or None while the child is running.

        Raises `RuntimeError` where the child's end says nothing about the source.
        """
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() > self._kill_at:  # it waits for something, and uses no CPU
                self.kill()
            return None
        self._log.seek(0)
        output = self._log.read().decode(errors="replace")
        self._log.close()
        return Result(_outcome(status, output), usage.ru_utime + usage.ru_stime, output)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


def _outcome(status: int, output: str) -> Outcome:
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL}
        return "timed out" if late else "killed"
    code = os.WEXITSTATUS(status)
    if code == _NEVER_IMPORTED:
        raise RuntimeError("the tests never import the module that they are said to guard")
    if code in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}:
        return "killed"
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest ended with exit code {code}:\n{output}")
    return "survived"


def _run_tests(module: Module, source: str, cpu_limit_s: int, log: IO[bytes]) -> NoReturn:
    code = -1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        finder = _Finder(module, source)
        sys.meta_path.insert(0, finder)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "trial"]
        arguments += ["-k", UNTIMED, *map(str, module.tests)]
        code = int(pytest.main(arguments, plugins=[pytest_timeout, _hypothesis_pytestplugin]))
        if not finder.served:
            code = _NEVER_IMPORTED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Finder(MetaPathFinder):
    """Lets `import` find the tried source under the module's own name."""

    def __init__(self, module: Module, source: str) -> None:
        self.module, self.source = module, source
        self.served = False

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != self.module.name:
            return None
        self.served = True
        loader = _Loader(fullname, str(self.module.path), self.source)
        return spec_from_file_location(fullname, self.module.path, loader=loader)


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, _: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


def warm_up(modules: Iterable[Module], root: Path, package: str) -> None:
    """Import once what the tests will import, except the package itself."""
    seen: set[Path] = set()
    todo = [path for module in modules for path in (module.path, *module.tests)]
    todo.append(root / "tests" / "conftest.py")
    while todo:
        path = todo.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        for name, members in _imports(path):
            if name.split(".")[0] == package:
                inside = root.joinpath("src", *name.split("."))
                todo += [inside.with_suffix(".py"), inside / "__init__.py"]
            else:
                loaded = importlib.import_module(name)
                for member in members:  # some packages load a member when it is asked for
                    getattr(loaded, member, None)
    gc.collect()
    gc.freeze()  # so that no child's collector goes through all of this, or copies its pages


def _imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]
