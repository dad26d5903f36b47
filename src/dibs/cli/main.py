"""The `dibs` command: the list of all commands, and a group that imports only the command to run.

As process 1 of a container, the command forks itself: Linux gives each orphan to PID 1, which must reap it.
It also drops a signal to PID 1 that has no handler, so a SIGTERM during the import of an application would be
lost.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn

import rich_click as click
from attrs import frozen

from dibs.cli import completion
from dibs.cli.errors import UsageError, print_error
from dibs.cli.output import ExitCode, print_warning
from dibs.version import VERSION

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

#: The code of the kernel for a signal that it sends itself, for example at Ctrl-C.
SI_KERNEL: Final = 0x80
#: The shell's exit code of a program that signal N has killed is 128 + N.
KILLED: Final = 128


def run_below_init() -> None:
    """Return at once, unless this process is PID 1: then fork, and return in the child.

    This process passes its signals on to the child, reaps all processes that end, and exits with the code of
    the child, which ends every other process of the container.
    """
    if sys.platform == "win32" or os.getpid() != 1:
        return
    # Blocked signals wait for `sigwaitinfo`. The kernel drops no blocked signal of PID 1.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    _serve(child)


def _serve(child: int) -> NoReturn:
    while True:
        info = signal.sigwaitinfo(signal.valid_signals())
        if info.si_signo == signal.SIGCHLD:
            _reap(child)
        # The kernel sends the signal of a key, for example of Ctrl-C, to the child as well.
        elif info.si_code != SI_KERNEL or info.si_signo == signal.SIGHUP:
            os.kill(child, info.si_signo)


def _reap(child: int) -> None:
    """Reap all processes that have ended, and exit if `child` is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else KILLED - code)
        if not pid:
            return


#: The entry point group. The name of an entry point is the name of the command, its object a command of
#: click.
ENTRY_POINT_GROUP: Final = "dibs.commands"


def packages_by_command() -> dict[str, str]:
    """Return the command names of installed packages, each with the name of its package."""
    return {point.name: _package_name(point) for point in _entry_points()}


def load_plugin(name: str, extra: str) -> click.Command:
    """Import the command `name`.

    `extra` is the extra of dibs that installs the command, or "" for a command of another package. Raises
    UsageError if the command or one of its modules is not installed; the message says what to install.
    """
    for point in _entry_points():
        if point.name == name:
            try:
                command = point.load()
            except ImportError as error:
                missing = error.name or "a module"
                raise UsageError(
                    f"{name} needs {missing}, which is not installed: {_install_hint(extra)}"
                ) from error
            if not isinstance(command, click.Command):
                package = _package_name(point)
                raise UsageError(
                    f"{name} cannot run: {point.value} of package {package} is not a click command; "
                    f"report this to the authors of {package}"
                )
            return command
    raise UsageError(f"{name} is not installed: {_install_hint(extra)}")


def _entry_points() -> EntryPoints:
    # Imported here, because built-in commands do not need it, and it is slow: it imports the email package.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group=ENTRY_POINT_GROUP)


def _package_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _install_hint(extra: str) -> str:
    return f"pip install 'dibs[{extra}]'" if extra else "install the command's package with its extras"


@frozen
class CommandInfo:
    """A line in the list of commands that `dibs --help` prints."""

    name: str
    #: Heading of the box that the command is listed in.
    panel: str
    summary: str
    #: The extra of dibs that installs the command; empty for commands of dibs itself.
    extra: str = ""


START, JOBS, QUEUES, STORAGES = "Getting started", "Jobs", "Queues", "Testing a storage"

COMMANDS: Final = (
    CommandInfo("demo", START, "Run a demo on real files: workers, retries and a crash, in about a minute."),
    CommandInfo("worker", START, "Run the tasks of an application until stopped."),
    CommandInfo("enqueue", JOBS, "Add a job to a queue."),
    CommandInfo("show", JOBS, "Show one job; without a queue and id, describe the storage."),
    CommandInfo("list", JOBS, "List the jobs of a queue in one state."),
    CommandInfo("cancel", JOBS, "Cancel waiting jobs; with --running, ask active ones to stop."),
    CommandInfo("failures", JOBS, "Count the failed jobs of all queues by type of error."),
    CommandInfo("retry", JOBS, "Enqueue failed jobs again: some, all, or those with one type of error."),
    CommandInfo("finish", JOBS, "End a job that was handed off."),
    CommandInfo("amend", JOBS, "Change the payload, attributes, priority or time of a job."),
    CommandInfo("signal", JOBS, "Send a value to a job that waits for it."),
    CommandInfo("flow", JOBS, "Draw a flow with the states of its nodes; list, cancel and retry flows."),
    CommandInfo("counts", QUEUES, "Count the jobs in each state; --watch repeats it."),
    CommandInfo("top", QUEUES, "Show queues, their rates, and what is wrong, again and again."),
    CommandInfo("events", QUEUES, "Print the event log of a queue; --follow waits for new events."),
    CommandInfo("web", QUEUES, "Serve the dashboard: queues, jobs and failures in a browser."),
    CommandInfo("mcp", QUEUES, "Serve a storage to an assistant by the Model Context Protocol."),
    CommandInfo("metrics", QUEUES, "Serve the metrics of a storage to Prometheus."),
    CommandInfo("workers", QUEUES, "List the workers that live, and the jobs that they hold."),
    CommandInfo("schedule", QUEUES, "List, make, pause, resume and remove schedules."),
    CommandInfo("configure", QUEUES, "Show and change the settings of a queue."),
    CommandInfo("pause", QUEUES, "Stop claims from a queue. Running jobs continue."),
    CommandInfo("resume", QUEUES, "Allow claims from a paused queue again."),
    CommandInfo("prune", QUEUES, "Remove expired outcomes, request keys and events."),
    CommandInfo("purge", QUEUES, "Remove all waiting jobs and all outcomes of queues."),
    CommandInfo("doctor", QUEUES, "Examine a storage and its workers, and say what to do."),
    CommandInfo("migrate", QUEUES, "Bring a storage to the layout of this version of dibs."),
    CommandInfo("move", QUEUES, "Move all queues to another storage."),
    CommandInfo("spark", QUEUES, "Keep the history of all runs in tables of Delta Lake, and report on it."),
    CommandInfo("certify", STORAGES, "Test a storage against the contract.", extra="conformance"),
    CommandInfo("check-history", STORAGES, "Check a recorded history or a queue's log.", extra="conformance"),
)
BUILT_IN: Final = {info.name: info for info in COMMANDS}

#: Style of help pages. Subcommands inherit it, also those of other packages if they use rich-click.
HELP_STYLE: Final = {
    # Print help texts as they are: `[tool.dibs]` would otherwise be read as a style.
    "text_markup": None,
    "text_paragraph_linebreaks": "\n\n",
    "padding_helptext_first_line": (0, 0, 1, 0),
    # Colours for terminals and FORCE_COLOR only; rich-click would use them in logs of GitHub Actions, too.
    "force_terminal": None,
    "show_arguments": True,
    "style_commands_table_expand": False,
}


class LazyGroup(click.RichGroup):
    """A command group that imports a command only to run it, so that help and completion are fast."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for info in COMMANDS:
            self.add_command(_stub_command(info.name, info.panel, info.summary))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in commands in the order of COMMANDS, then those of other packages."""
        return [*BUILT_IN, *(name for name in _plugin_packages(ctx) if name not in BUILT_IN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with its name and summary only, for help and completion."""
        if cmd_name in BUILT_IN:
            return self.commands[cmd_name]
        package = _plugin_packages(ctx).get(cmd_name)
        return None if package is None else _stub_command(cmd_name, "From other packages", f"From {package}.")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command that `args` names, and return it with the remaining arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load_command(name) if name else command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, on an event loop if it is an `async def`. Print one line for Ctrl-C."""
        try:
            result = super().invoke(ctx)
            return asyncio.run(result) if inspect.iscoroutine(result) else result
        except KeyboardInterrupt:
            print_warning("interrupted")
            return ExitCode.INTERRUPTED

    def main(self, args: Sequence[str] | None = None, *click_args: Any, **extra: Any) -> Any:
        """Run the command line, and exit with a code and one line on stderr for any error."""
        arguments = sys.argv[1:] if args is None else [*args]
        try:
            code = super().main(arguments, *click_args, **{**extra, "standalone_mode": False})
        except click.Abort:
            print_warning("interrupted")
            code = ExitCode.INTERRUPTED
        except Exception as error:  # noqa: BLE001 - each error becomes a line and an exit code
            code = print_error(error, as_json=_asks_for_json(arguments))
        # A command of another package may return a value that is not an exit code.
        sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    pairs = pairwise(arguments)
    return "--json" in arguments or "--format=json" in arguments or ("--format", "json") in pairs


def _plugin_packages(ctx: click.Context) -> dict[str, str]:
    if ENTRY_POINT_GROUP not in ctx.meta:
        # Cached, because help asks once per panel, and a search of the installed packages takes 10 ms.
        ctx.meta[ENTRY_POINT_GROUP] = packages_by_command()
    found: dict[str, str] = ctx.meta[ENTRY_POINT_GROUP]
    return found


def _stub_command(name: str, panel: str, summary: str) -> click.Command:
    return click.RichCommand(name=name, help=summary, panel=panel)


def _load_command(name: str) -> click.Command:
    info = BUILT_IN.get(name)
    if info is None or info.extra:
        return load_plugin(name, info.extra if info else "")
    command: click.Command = import_module(f"dibs.cli.commands.{name}").command
    return command


@click.group(
    "dibs",
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "rich_help_config": HELP_STYLE,
    },
)
@click.option_panel("Options")
@click.version_option(
    VERSION, prog_name="dibs", message="%(prog)s %(version)s", help="Print the version and exit."
)
@completion.install_option
@completion.show_option
@click.pass_context
def app(ctx: click.Context) -> None:
    """A job queue for Python that runs at most one job of an id at a time.

    Try it on files of this machine. It needs no server and no setup:

        dibs demo

    Then use it. A job is JSON with an id, a queue is a name, and a URL says
    where the jobs are stored:

        export DIBS_URL=file:./jobs
        dibs enqueue emails '{"args": ["ada@example.org"]}' --id welcome-42
        dibs counts
        dibs show emails welcome-42
        dibs worker my_app:app

    The storage is --url, else $DIBS_URL, else url under [tool.dibs] in the
    nearest pyproject.toml. With --json a command prints JSON for programs.
    `dibs COMMAND --help` explains a command with an example.

    Exit codes: 0 done, 1 refused by the storage, 2 usage error, 3 outcome
    unknown, 4 output not written, 130 interrupted.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as by `>&-`.

    Otherwise the next file or socket would get its number, and programs that jobs start would write into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # `open` takes the lowest free number. It is the number of this stream: those below it are open.
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)  # noqa: FBT003 - its only form
            setattr(sys, name, os.fdopen(number, mode))


def main() -> None:
    """Run the command line. `dibs` and `python -m dibs` call this function."""
    run_below_init()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # Print characters that the terminal's encoding does not have, in an id for example, as escapes.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()
