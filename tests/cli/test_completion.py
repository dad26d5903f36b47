"""Shell completion: completions of commands and options, and the files of --install-completion."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dibs.cli import main
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

    return [line.partition(",")[2] for line in output.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("cou",), ["counts"]),
        (("--vers",), ["--version"]),
        (("counts", "--w"), ["--watch"]),
        (("list", "q", "--state", "f"), ["failed"]),
        (("spark", "hi"), ["history"]),
        (("spark", "report", "--ou"), ["--out"]),
    ],
)
def test_verbs_options_and_choices_are_completed(words: tuple[str, ...], offered: list[str]) -> None:
    assert offered == completed(*words)


TAKING_A_QUEUE = [
    ("enqueue",), ("show",), ("list",), ("cancel",), ("retry",), ("amend",), ("signal",), ("finish",),
    ("counts",), ("events",), ("failures",), ("workers",), ("configure",), ("pause",), ("resume",),
    ("prune",), ("purge",), ("spark", "history", "--queue"),
]  # fmt: skip


@pytest.mark.parametrize("words", TAKING_A_QUEUE, ids=" ".join)
def test_names_of_queues_are_completed(
    shell: Shell, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("emails", "emails.bulk", "reports"):
        shell.type("enqueue", queue, "1")
    monkeypatch.setenv("DIBS_URL", shell.url)

    assert ["emails", "emails.bulk"] == completed(*words, "em")
    assert [] == completed(*words, "x")


def test_every_command_with_a_queue_completes_it() -> None:
    """Compare the list above with the parameters of all commands."""
    taking = {
        name
        for name, command in ((name, main._load_command(name)) for name in main.BUILT_IN)
        if any(
            param.name in ("queue", "queues") and isinstance(param, click.Argument)
            for param in command.params
        )
    }

    assert taking == {words[0] for words in TAKING_A_QUEUE if len(words) == 1}


def test_the_queues_of_the_option_url_are_completed_and_used_ones_left_out(shell: Shell) -> None:
    for queue in ("emails", "reports"):
        shell.type("enqueue", queue, "1")

    assert ["reports"] == completed("counts", "--url", shell.url, "emails", "")


@pytest.mark.long
@pytest.mark.parametrize(
    "url", ["file:./nowhere", "redis://127.0.0.1:1", "memory:", "foo:", "postgresql://u:p@127.0.0.1:1/db"]
)
def test_a_completion_is_silent_after_an_error(shell: Shell, url: str) -> None:
    environment = {COMPLETION_VARIABLE: "bash_complete", "COMP_WORDS": "dibs counts e", "COMP_CWORD": "2"}
    done = subprocess.run(
        [program(shell)], env={**os.environ, **environment, "DIBS_URL": url}, capture_output=True, check=True
    )

    assert (b"", b"") == (done.stdout.strip(), done.stderr)
    assert ["dibs"] == [path.name for path in shell.folder.iterdir()]


def program(shell: Shell) -> Path:
    """Write a program with the name `dibs`: click takes the name of its environment variable from it."""
    path = shell.folder / "dibs"
    path.write_text(f"#!{sys.executable}\nfrom dibs.cli.main import main\nmain()\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")
def test_a_real_bash_completes(shell: Shell) -> None:
    program(shell)
    script = shell.folder / "completion.sh"
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
