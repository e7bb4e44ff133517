"""The command line: help that teaches, faults that name what to do, never a traceback."""

from pathlib import Path

import pytest

from markbook import __version__
from markbook.cli import COMMANDS, main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(list(argv))
    except SystemExit as stop:  # the argument parser's own way out
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ((), ("--help",)):
        code, out, _ = run(capsys, *argv)
        assert code == 0
        assert all(f"markbook {name}" in out for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert "Example" in out
    assert f"markbook {name} " in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"markbook {__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["trian"], "'trian' is not a command of markbook; did you mean 'train'?"),
        (["train", "nowhere.toml"], "nowhere.toml: there is no such recipe file."),
        (["train", "--rollout.group-size", "1"], "rollout.group_size = 1 must be between 2"),
        (["train", "--resume", "x", "--seed", "3"], "leave out --seed"),
        (["train", "--resume", "nowhere"], "nowhere: holds no run"),
        (["show", "nowhere"], "nowhere"),
        (["train", "--data", "nowhere.jsonl"], "model"),
    ],
)
def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    argv: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.startswith("markbook: ")
    assert says in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["train", "--rollout.grup-size", "3"], "--rollout.group-size"),
        (["train", "--rollout.group-size", "many"], "many"),
        (["train", "--model.dtype", "float16"], "float16"),
    ],
)
def test_misspelt_flags_get_a_suggestion(
    capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert says in out + err


def test_the_version_is_that_of_the_package() -> None:
    import importlib.metadata

    assert importlib.metadata.version("markbook") == __version__
