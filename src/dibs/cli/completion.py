"""Completion: click's scripts for three shells, shown, or put where each of them looks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import rich_click as click

from dibs.cli.output import say
from dibs.cli.refusals import WrongWords

PROGRAM: Final = "dibs"
#: What the scripts set when they ask for words.
VARIABLE: Final = "_DIBS_COMPLETE"
#: Stands for a shell that was not named: the one of $SHELL.
YOURS: Final = "yours"


class Home(NamedTuple):
    """Where a shell finds a completion, from the home directory."""

    script: str
    #: The file the shell reads when it starts, and the line there that makes it find the script.
    profile: str = ""
    line: str = ""


HOMES: Final = {
    "bash": Home(".bash_completions/dibs.sh", ".bashrc", "source ~/.bash_completions/dibs.sh"),
    "zsh": Home(".zfunc/_dibs", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    # Looks into that directory by itself.
    "fish": Home(".config/fish/completions/dibs.fish"),
}


def script_for(shell: str) -> str:
    """Return the script that makes a shell ask `dibs` for words. Raises WrongWords for one that has none."""
    # Needed by nobody who types a verb.
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    completion = get_completion_class(shell) if shell in HOMES else None
    if completion is None:
        raise WrongWords(f"there is no completion for {shell!r}; name one of {', '.join(HOMES)}")
    return completion(click.Group(PROGRAM), {}, PROGRAM, VARIABLE).source()


def put(shell: str) -> Path:
    """Write the script where the shell finds it, and into the shell's profile the line it needs; once."""
    script, home = script_for(shell), HOMES[shell]
    path = Path.home() / home.script
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, "utf-8")
    if home.profile:
        profile = Path.home() / home.profile
        before = profile.read_text("utf-8", "replace") if profile.exists() else ""
        if home.line not in before.splitlines():
            gap = "" if before.endswith("\n") or not before else "\n"
            with profile.open("a", encoding="utf-8") as end:
                end.write(f"{gap}{home.line}\n")
    return path


def _named(shell: str) -> str:
    return Path(os.environ.get("SHELL", "")).name if shell == YOURS else shell


def _show(ctx: click.Context, _param: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        click.echo(script_for(_named(shell)))
        ctx.exit()


def _install(ctx: click.Context, _param: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        name = _named(shell)
        say(f"{name} completes dibs from its next start on, by {put(name)}")
        ctx.exit()


install = click.option(
    "--install-completion", metavar="[SHELL]", is_flag=False, flag_value=YOURS, is_eager=True,
    expose_value=False, callback=_install, help="Let bash, zsh or fish complete verbs and options.",
)  # fmt: skip
show = click.option(
    "--show-completion", metavar="[SHELL]", is_flag=False, flag_value=YOURS, is_eager=True,
    expose_value=False, callback=_show, help="Print the script for it, to put it where you want.",
)  # fmt: skip
