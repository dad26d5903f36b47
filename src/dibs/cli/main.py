"""The way in: which verbs there are, and the one that is meant; its module is imported only to run it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

import rich_click as click

from dibs.cli import completion, outside
from dibs.cli.output import Code, warn
from dibs.cli.refusals import tell
from dibs.version import VERSION


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
OURS: Final = {verb.name: verb for verb in VERBS}

#: How help looks. Subcommands have it from here, those of other packages, too, if rich-click draws them.
LOOKS: Final = {
    # What is written in a help text is what is read: `[tool.dibs]` is no style.
    "text_markup": None,
    "text_paragraph_linebreaks": "\n\n",
    "padding_helptext_first_line": (0, 0, 1, 0),
    # Colours are for terminals and for whoever sets FORCE_COLOR; rich-click adds logs of GitHub's.
    "force_terminal": None,
    "show_arguments": True,
    "style_commands_table_expand": False,
}


class Verbs(click.RichGroup):
    """A group that knows its verbs by name and summary, and loads the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for verb in VERBS:
            self.add_command(_stub(verb.name, verb.panel, verb.summary))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name our own in the order of the table, then those of others."""
        return [*OURS, *(name for name in _origins(ctx) if name not in OURS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return what help and completion need to know of a verb."""
        if cmd_name in OURS:
            return self.commands[cmd_name]
        origin = _origins(ctx).get(cmd_name)
        return None if origin is None else _stub(cmd_name, "From other packages", f"From {origin}.")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb itself, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name else command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb that was typed; Ctrl-C is told in a line of our own, where click would add another."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            warn("interrupted")
            return Code.INTERRUPTED

    def main(self, args: Sequence[str] | None = None, *of_click: Any, **extra: Any) -> Any:
        """Run, and turn every error into one line and an exit code."""
        words = sys.argv[1:] if args is None else [*args]
        try:
            code = super().main(words, *of_click, **{**extra, "standalone_mode": False})
        except click.Abort:
            warn("interrupted")
            code = Code.INTERRUPTED
        except Exception as error:  # noqa: BLE001 - the last door: whatever comes here is told, not thrown
            code = tell(error, as_json="--json" in words)
        # What a verb of another package returns need not be meant for the shell.
        sys.exit(code if isinstance(code, int) else Code.DONE)


def _origins(ctx: click.Context) -> dict[str, str]:
    if outside.GROUP not in ctx.meta:
        # Help asks for each panel, and to look through all that is installed takes 10 ms.
        ctx.meta[outside.GROUP] = outside.origins()
    found: dict[str, str] = ctx.meta[outside.GROUP]
    return found


def _stub(name: str, panel: str, summary: str) -> click.Command:
    return click.RichCommand(name=name, help=summary, panel=panel)


def _load(name: str) -> click.Command:
    verb = OURS.get(name)
    if verb is None or verb.extra:
        return outside.load(name, verb.extra if verb else "")
    command: click.Command = import_module(f"dibs.cli.verbs.{name}").command
    return command


@click.group(
    "dibs",
    cls=Verbs,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "rich_help_config": LOOKS,
    },
)
@click.option_panel("Options")
@click.version_option(
    VERSION, prog_name="dibs", message="%(prog)s %(version)s", help="Print the version and leave."
)
@completion.install
@completion.show
@click.pass_context
def app(ctx: click.Context) -> None:
    """A job queue in which calling dibs on an id means nobody else runs it.

    See it work, on the files of this machine, with nothing set up:

        dibs demo

    Then your own. A queue is a name, a job is JSON, a place is a URL:

        export DIBS_URL=file:./jobs
        dibs enqueue emails '{"to": "ada@example.org"}' --id welcome-42
        dibs counts
        dibs show emails welcome-42
        dibs worker my_app:app

    The place is --url, else $DIBS_URL, else url under [tool.dibs] in the
    nearest pyproject.toml. With --json a verb prints JSON for programs. The
    --help of each verb has an example.

    Exit codes: 0 done, 1 refused, 2 wrong words, 3 unknown outcome.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # An id may hold what this terminal's encoding cannot say; that is no reason to stop.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()
