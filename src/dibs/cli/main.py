"""The way in: which verbs there are, and the one that is meant; its module is imported only to run it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from dibs.cli.output import Code, warn
from dibs.cli.refusals import WrongWords, tell


class Verb(NamedTuple):
    """A line of the table of contents."""

    name: str
    panel: str
    summary: str
    #: What brings the verb, when it lives outside the engine; empty for our own.
    extra: str = ""


SEE, JOBS, QUEUES, KIT = "See it work", "Jobs", "Queues", "For authors of storages"

VERBS: Final = (
    Verb("demo", SEE, "Watch real work go through a durable queue; takes less than a minute."),
    Verb("worker", SEE, "Run the handlers of an application until stopped."),
    Verb("enqueue", JOBS, "Put a job into a queue."),
    Verb("show", JOBS, "Show all there is of one id; without an id, explain the whole place."),
    Verb("list", JOBS, "List the jobs of a queue that are in one state."),
    Verb("cancel", JOBS, "Cancel jobs: queued ones at once, running ones if asked."),
    Verb("retry", JOBS, "Send failed jobs round again."),
    Verb("amend", JOBS, "Change a job that is queued already."),
    Verb("counts", QUEUES, "Count the jobs in each state; --watch keeps counting."),
    Verb("events", QUEUES, "Read the log of a queue; --follow waits for more."),
    Verb("pause", QUEUES, "Stop a queue from being claimed from; what runs, runs on."),
    Verb("resume", QUEUES, "Let a paused queue go on."),
    Verb("prune", QUEUES, "Remove what has expired."),
    Verb("move", QUEUES, "Move every queue to another place."),
    Verb("spark", QUEUES, "Keep the history of every run as tables, and draw a report of it."),
    Verb("certify", KIT, "Hold a storage against the contract.", extra="conformance"),
    Verb("check-history", KIT, "Hold a recorded history, or a queue's log, against it.", extra="conformance"),
)

#: Verbs that live in other packages register here, named as they are typed.
ENTRY_POINTS: Final = "dibs.commands"


class Verbs(TyperGroup):
    """A group that knows its verbs by name and summary, and loads the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for verb in VERBS:
            self.add_command(_stub(verb.name, verb.panel, verb.summary))

    def list_commands(self, ctx: Any) -> list[str]:
        """Name our own in the order of the table, then those of others."""
        return [*self.commands, *(point.name for point in _others())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what help and completion need to know of a verb."""
        if known := self.commands.get(cmd_name):
            return known
        for point in _others():
            if point.name == cmd_name:
                return _stub(cmd_name, "From other packages", f"From {_origin(point)}.")
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the verb itself, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _load(str(command.name)), rest

    def main(self, args: Any = None, prog_name: str | None = None, *_: Any, **extra: Any) -> Any:
        """Run, and turn every error into one line and an exit code."""
        extra["standalone_mode"] = False
        words = sys.argv[1:] if args is None else [*args]
        try:
            code = super().main(args, prog_name, **extra)
        except Exception as error:  # noqa: BLE001 - the last door: whatever comes here is told, not thrown
            code = tell(error, as_json="--json" in words)
        if code == Code.INTERRUPTED and not isinstance(code, Code):
            # Not from a verb that saw it coming and has said so itself.
            warn("interrupted")
        sys.exit(code or Code.DONE)


def _stub(name: str, panel: str, summary: str) -> TyperCommand:
    return TyperCommand(name, help=summary, rich_help_panel=panel)


def _others() -> list[EntryPoint]:
    ours = {verb.name for verb in VERBS}
    return [point for point in entry_points(group=ENTRY_POINTS) if point.name not in ours]


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _load(name: str) -> Any:
    verb = next((verb for verb in VERBS if verb.name == name), None)
    if verb is not None and not verb.extra:
        return _command(name, import_module(f"dibs.cli.verbs.{name}").command)
    return _command(name, _from_outside(name, verb.extra if verb else ""))


def _from_outside(name: str, extra: str) -> Callable[..., Any]:
    for point in entry_points(group=ENTRY_POINTS, name=name):
        try:
            return point.load()  # type: ignore[no-any-return]
        except ImportError as error:
            missing = error.name or "a module"
            raise WrongWords(f"{name} needs {missing}, which is not installed: {_install(extra)}") from error
    raise WrongWords(f"{name} is not installed: {_install(extra)}")


def _install(extra: str) -> str:
    return f"pip install 'dibs[{extra}]'" if extra else "install the package it comes from with its extras"


def _command(name: str, function: Any) -> Any:
    """Make a typer command of a function; an app of typer's own is taken as it is."""
    if isinstance(function, typer.Typer):
        return typer.main.get_command(function)
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name)(function)
    command = typer.main.get_command(single)
    command.name = name
    return command


app = typer.Typer(
    cls=Verbs, name="dibs", rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - the shape typer asks of a callback
    if wanted:
        typer.echo(f"dibs {version('dibs')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _globally(
    ctx: typer.Context,
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    r"""A job queue in which calling dibs on an id means nobody else runs it.

    See it work, on the files of this machine, with nothing set up:

      dibs demo

    Then your own. A queue is a name, a job is JSON, a place is a URL:

      export DIBS_URL=file:./jobs
      dibs enqueue emails '{"to": "ada@example.org"}' --id welcome-42
      dibs counts
      dibs show emails welcome-42
      dibs worker my_app:app

    The place is --url, else $DIBS_URL, else url under \[tool.dibs] in the
    nearest pyproject.toml. With --json a verb prints JSON for programs. The
    --help of each verb has an example.

    Exit codes: 0 done, 1 refused, 2 wrong words, 3 unknown outcome.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # An id may hold what this terminal's encoding cannot say; that is no reason to stop.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()
