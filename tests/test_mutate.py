"""The mutation script: which faults it makes, what it leaves alone, how a fault is noticed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from markbook import objective

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def load(name: str) -> ModuleType:
    """The tools are scripts, not part of the package."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mutants = load("mutants").mutants
load("trial")
mutate = load("mutate")


def after(source: str) -> list[str]:
    return [mutant.after for mutant in mutants(source)]


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("x = a + b", ["x = (a - b)"]),
        ("x = a / b", ["x = (a * b)"]),
        ("x = a // b % c", ["x = (a // b * c)", "x = (a * b) % c"]),
        ("x = a & ~b", ["x = (a | ~b)", "x = a & b"]),
        ("x = a < b", ["x = (a <= b)", "x = (a >= b)"]),
        ("x = a >= b", ["x = (a > b)", "x = (a < b)"]),
        ("x = a == b", ["x = (a != b)"]),
        ("x = a is not b", ["x = (a is b)"]),
        ("x = a in b", ["x = (a not in b)"]),
        ("x = a and not b", ["x = (a or not b)", "x = (not b)", "x = a", "x = a and b"]),
        ("x = -a", ["x = a"]),
        ("x = 0", ["x = 1"]),
        ("x = 3", ["x = 4", "x = 2"]),
        ("x = 0.5", ["x = 1.0", "x = (-0.5)"]),
        ("x = 0.0", ["x = 1.0"]),
        ("x = True", ["x = False"]),
        ("x = min(a, key=b)", ["x = max(a, key=b)"]),
        ("x = torch.maximum(a, b)", ["x = torch.minimum(a, b)"]),
        ("x = a.all()", ["x = a.any()"]),
        ("x = math.ceil(a)", ["x = math.floor(a)"]),
        ("x = a.detach()", ["x = a"]),
        ("x = a.clamp(low, high)", ["x = a"]),
        ("x = abs(a)", ["x = a"]),
        ("x = math.log(a)", ["x = math.log1p(a)"]),
        ("x = torch.where(a, b, c)", ["x = torch.where(a, c, b)"]),
        ("x = a if b else c", ["x = a", "x = c"]),
        ("x = a[b:c]", ["x = a[(b + 1):c]", "x = a[b:(c + 1)]"]),
        ("x = a[:-1]", ["x = a[:1]", "x = a[:-2]", "x = a[:-0]"]),
        (
            "x = a.sum(-1, dim=-1)",
            [
                "x = a.mean(-1, dim=-1)",
                *("x = a.sum(-2, dim=-1)", "x = a.sum(-0, dim=-1)"),
                *("x = a.sum(-1, dim=-2)", "x = a.sum(-1, dim=-0)"),
            ],
        ),
        ("x = [a for a in b if c]", ["x = [a for a in b if True]"]),
        ("x |= a", ["pass", "x &= a"]),
        ("x = x.double()", ["pass", "x = x"]),
        ("x[a] = b", ["pass"]),
        ("x.append(a)", ["pass"]),
        ("if f(a): pass", ["if (not f(a)): pass"]),
        ("while a: break", ["while (not a): break", "while a: continue"]),
        ("def f(a=1): pass", ["def f(a=2): pass", "def f(a=0): pass"]),
    ],
)
def test_the_faults_of_a_line(source: str, faults: list[str]) -> None:
    assert after(source) == faults


@pytest.mark.parametrize(
    ("returns", "faults"),
    [
        ("float", ["return None", "return (-a)"]),
        ('Float[Tensor, "rows"]', ["return None", "return (-a)"]),
        ("bool", ["return (not a)"]),
        ("str", ["return None"]),
    ],
)
def test_what_is_returned_is_turned_round(returns: str, faults: list[str]) -> None:
    assert after(f"def f(a) -> {returns}:\n    return a") == faults


@pytest.mark.parametrize(
    "source",
    [
        '"""A module of 3 or more lines."""',
        'def f():\n    """Return -1 or 1."""',
        'x = "1 + 1"',
        "x: Literal[1, 2]",
        "def f(x: Annotated[int, 3]) -> Annotated[int, 4]: pass",
        "@dataclass(frozen=True)\nclass A: pass",
        'if a == b:\n    raise ValueError(f"{a + 1} is over {3}")',
        "return None",
        "x = y",
        "assert_that = a, 'of 3'",
    ],
)
def test_what_only_says_something_is_left_alone(source: str) -> None:
    changed = [mutant for mutant in mutants(source) if mutant.before == mutant.after]
    assert not changed
    assert set(after(source)) <= {"if (a != b):", "pass"}


def test_a_fault_keeps_to_its_place_whatever_binds_tighter() -> None:
    values = {eval(fault.removeprefix("x = ")) for fault in after("x = 2 - 3 * 5")}
    assert values == {2 + 15, 2 - 3 / 5, 3 - 15, 1 - 15, 2 - 20, 2 - 10, 2 - 18, 2 - 12}


def test_a_fault_within_an_f_string() -> None:
    assert after('x = f"<{tags[-1]}>" + y') == [
        "x = (f'<{tags[-1]}>' - y)",
        "x = f'<{tags[1]}>' + y",
        "x = f'<{tags[-2]}>' + y",
        "x = f'<{tags[-0]}>' + y",
    ]


def test_a_line_may_hold_letters_of_several_bytes() -> None:
    assert after("x = '\u00e9\u4f60' + y  # \u00e9") == ["x = ('\u00e9\u4f60' - y) # \u00e9"]


def test_a_fault_is_named_by_its_function_and_lines() -> None:
    source = "class A:\n    def f(self):\n        return self.g(\n            1\n        )\n"
    for above in ("", "# a new first line\n"):
        found = [m.key for m in mutants(above + source)]
        assert found == [
            ("A.f", "return self.g( 1 )", "return None"),
            ("A.f", "1", "2"),
            ("A.f", "1", "0"),
        ]


def test_every_mutant_of_a_module_is_another_module_that_compiles() -> None:
    source = Path(objective.__file__).read_text(encoding="utf-8")
    found = mutants(source)
    assert len(found) > 100
    assert len({mutant.source for mutant in found} | {source}) == len(found) + 1
    for mutant in found:
        compile(mutant.source, "mutant", "exec")
        assert mutant.before != mutant.after
        line = mutant.source.splitlines()[mutant.line - 1]
        assert mutant.after.startswith(" ".join(line.split()))


def test_the_list_of_equivalent_mutants_names_each_once_and_why() -> None:
    faults = {"stats": mutants("def f(a, b):\n    g(a)\n    g(a)\n    return a - b\n")}
    right = {("stats", "f", "return a - b", "return (a + b)"): "Because."}
    assert mutate.faults_of_list(right, faults) == []
    assert mutate.faults_of_list({("batch", "f", "x", "y"): "Not asked for now."}, faults) == []
    wrong = {
        ("stats", "f", "return a - b", "return (a + b)"): "",
        ("stats", "f", "return a + b", "return (a - b)"): "The line is no more.",
        ("stats", "f", "g(a)", "pass"): "There are two such lines.",
        ("nowhere", "f", "g(a)", "pass"): "There is no such module.",
    }
    assert [said.split(":")[0] for said in mutate.faults_of_list(wrong, faults)] == [
        "an entry has no reason",
        "an entry names 0 mutants instead of 1",
        "an entry names 2 mutants instead of 1",
        "an entry names 0 mutants instead of 1",
    ]


def test_modules_are_chosen_by_name_or_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.parse([]).names == list(mutate.PURE)
    assert mutate.parse(["--module", "stats"]).names == ["stats"]
    folder = mutate.parse(["--module", "verify"]).names
    assert "verify.units" in folder
    assert all(name.startswith("verify.") for name in folder)
    for arguments in (["--module", "stat"], ["--line", "3"]):
        with pytest.raises(SystemExit) as stopped:
            mutate.parse(arguments)
        assert stopped.value.code == 2
    assert "--module stat: no such module; there are advantage, " in capsys.readouterr().err


def test_every_module_of_the_pure_layer_has_its_tests() -> None:
    for name in mutate.PURE:
        module = mutate.find_module(name, TOOLS.parent)
        assert module.path.is_file()
        assert all(path.is_file() for path in module.tests)


TOY = {
    "src/toy/__init__.py": "",
    "src/toy/core.py": "def count(n):\n    while n > 3:\n        n -= 1\n    return n\n",
    "src/toy/shell.py": "from toy.core import count\n",
    "tests/test_core.py": "from toy.shell import count\n\n\ndef test_it():\n    assert count(9) == 3\n",
    "tests/test_other.py": "def test_it():\n    pass\n",
}
TRY = """
import sys, time
from pathlib import Path
import trial

root = Path(sys.argv[1])
core = root / "src/toy/core.py"
for test, old, new in [
    ("core", "", ""), ("core", "n > 3", "n > 2"), ("core", "n > 3", "n >= 4"),
    ("core", "n -= 1", "n += 1"), ("core", "return", "retrun"), ("other", "", ""),
]:
    module = trial.Module("toy.core", core, (root / f"tests/test_{test}.py",))
    trial.warm_up([module], root, "toy")
    assert not any(name.startswith("toy") for name in sys.modules)
    running = trial.Trial(module, module.source.replace(old, new), cpu_limit_s=1)
    try:
        while not (result := running.poll()):
            time.sleep(0.01)
        print(result.outcome)
    except RuntimeError as fault:
        print(fault)
"""


def test_a_trial_notices_faults_hangs_and_idle_tests(tmp_path: Path) -> None:
    for name, text in TOY.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{TOOLS}{os.pathsep}{tmp_path / 'src'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "survived",
        "killed",
        "survived",
        "timed out",
        "killed",
        "the tests never import the module that they are said to guard",
    ]
