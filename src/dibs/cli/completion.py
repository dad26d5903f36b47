"""Shell completion: names of queues, and click's scripts for bash, zsh and fish."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import rich_click as click
from attrs import frozen
from click.shell_completion import CompletionItem

from dibs.cli.errors import UsageError
from dibs.cli.output import print_lines

PROGRAM: Final = "dibs"
#: Environment variable that the scripts set to ask `dibs` for completions.
COMPLETION_VARIABLE: Final = "_DIBS_COMPLETE"
#: Value of `--install-completion` and `--show-completion` without a shell: use the shell of $SHELL.
CURRENT_SHELL: Final = "yours"


@frozen
class ShellFiles:
    """The files that completion needs in one shell, as paths relative to the home directory."""

    #: The completion script.
    script: str
    #: The file that the shell reads when it starts; empty if the shell finds the script without it.
    profile: str = ""
    #: The line in `profile` that loads the script.
    line: str = ""


SHELLS: Final = {
    "bash": ShellFiles(".bash_completions/dibs.sh", ".bashrc", "source ~/.bash_completions/dibs.sh"),
    "zsh": ShellFiles(".zfunc/_dibs", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    # fish loads every script of this directory.
    "fish": ShellFiles(".config/fish/completions/dibs.fish"),
}


def completion_script(shell: str) -> str:
    """Return the completion script of a shell. Raises UsageError for an unknown shell."""
    # Imported here, because only the two completion options need it.
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    completion = get_completion_class(shell) if shell in SHELLS else None
    if completion is None:
        raise UsageError(f"dibs has no completion for the shell {shell!r}; use one of {', '.join(SHELLS)}")
    return completion(click.Group(PROGRAM), {}, PROGRAM, COMPLETION_VARIABLE).source()


def install_script(shell: str) -> Path:
    """Write the completion script of a shell and return its path.

    Also append the line that loads the script to the shell's profile, unless the profile has this line.
    """
    script, files = completion_script(shell), SHELLS[shell]
    path = Path.home() / files.script
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, "utf-8")
    if files.profile:
        profile = Path.home() / files.profile
        before = profile.read_text("utf-8", "replace") if profile.exists() else ""
        if files.line not in before.splitlines():
            gap = "" if before.endswith("\n") or not before else "\n"
            with profile.open("a", encoding="utf-8") as file:
                file.write(f"{gap}{files.line}\n")
    return path


def _shell_name(shell: str) -> str:
    return Path(os.environ.get("SHELL", "")).name if shell == CURRENT_SHELL else shell


def _print_script_and_exit(ctx: click.Context, _param: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        click.echo(completion_script(_shell_name(shell)))
        ctx.exit()


def _install_script_and_exit(ctx: click.Context, _param: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        name = _shell_name(shell)
        print_lines(f"installed {install_script(name)}: start a new {name} to complete dibs commands")
        ctx.exit()


install_option = click.option(
    "--install-completion", metavar="[SHELL]", is_flag=False, flag_value=CURRENT_SHELL, is_eager=True,
    expose_value=False, callback=_install_script_and_exit,
    help="Install completion for a shell: bash, zsh or fish. Default: that of $SHELL.",
)  # fmt: skip
show_option = click.option(
    "--show-completion", metavar="[SHELL]", is_flag=False, flag_value=CURRENT_SHELL, is_eager=True,
    expose_value=False, callback=_print_script_and_exit,
    help="Print the completion script, to install it yourself.",
)  # fmt: skip


#: Longest time in s that a completion may take.
TIME_LIMIT: Final = 1.0


def complete_queue(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the queues of the storage whose names begin with the incomplete word; none after any error."""
    try:
        names = asyncio.run(_read_names(ctx.params.get("url")))
    except Exception:  # noqa: BLE001 - an error message would be printed into the command line of the user
        return []
    taken = ctx.params.get("queues") or ()
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in taken]


async def _read_names(url: str | None) -> list[str]:
    from dibs.cli.storage_access import connect  # noqa: PLC0415 - only a completion needs the storage here
    from dibs.model.worker_record import without_reserved  # noqa: PLC0415 - as above

    async with asyncio.timeout(TIME_LIMIT), connect(url) as storage:
        return sorted(info.name for info in without_reserved(await storage.queues()))
