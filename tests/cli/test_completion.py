"""Shell completion: completions of commands and options, and the files of --install-completion."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dibs.cli.completion import COMPLETION_VARIABLE, SHELLS
from dibs.cli.main import app
from tests.cli.shell import Shell


def completed(*words: str) -> list[str]:
    """Return the completions for the last of these words."""
    environment = {
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(("dibs", *words)),
        "COMP_CWORD": str(len(words)),
    }
    output = CliRunner(env=environment).invoke(app, prog_name="dibs").stdout

    return [line.partition(",")[2] for line in output.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("cou",), ["counts"]),
        (("--vers",), ["--version"]),
        (("counts", "--w"), ["--watch"]),
        (("list", "q", "--state", "f"), ["failed"]),
        (("spark", "hi"), ["history"]),
        (("spark", "report", "--o"), ["--out"]),
    ],
)
def test_verbs_options_and_choices_are_completed(words: tuple[str, ...], offered: list[str]) -> None:
    assert offered == completed(*words)


@pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")
def test_a_real_bash_completes(shell: Shell) -> None:
    program, script = shell.folder / "dibs", shell.folder / "completion.sh"
    program.write_text(f"#!{sys.executable}\nfrom dibs.cli.main import main\nmain()\n")
    program.chmod(0o755)
    script.write_text(shell.type("--show-completion", "bash").stdout)
    typed = f". {script}; COMP_WORDS=(dibs cou); COMP_CWORD=1; _dibs_completion dibs; echo ${{COMPREPLY[*]}}"
    path = f"{shell.folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", typed], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )

    assert "counts" == done.stdout.strip()


@pytest.mark.parametrize("name", SHELLS)
def test_the_script_and_the_profile_line_are_written_once(
    shell: Shell, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{name}")
    home, profile = SHELLS[name], tmp_path / (SHELLS[name].profile or "none")
    profile.write_text("mine")
    codes = [shell.type("--install-completion", *named).exit_code for named in ([], [name])]

    assert [0, 0] == codes
    assert f"{COMPLETION_VARIABLE}={name}_complete" in (tmp_path / home.script).read_text()
    assert ["mine", *filter(None, [home.line])] == profile.read_text().splitlines()


@pytest.mark.parametrize("words", [("--install-completion", "dash"), ("--show-completion",)])
def test_an_unknown_shell_is_a_usage_error(
    shell: Shell, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/dash")
    result = shell.type(*words)

    assert (2, "", []) == (result.exit_code, result.stdout, [*tmp_path.iterdir()])
    assert "no completion for the shell 'dash'; use one of bash, zsh, fish" in result.stderr
