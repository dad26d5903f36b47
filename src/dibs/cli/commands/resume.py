"""`dibs resume`: let workers claim jobs of paused queues again."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.commands.pause import queues_or_all, set_paused
from dibs.model.check_arguments import MOST_SHARE
from dibs.model.requests import SettingsPatch


@click.command("resume")
@queues_or_all
@click.option("--key", metavar="KEY", help="Allow jobs with this key again. A paused queue stays paused.")
@click.option(
    "--share",
    type=options.Number(1, MOST_SHARE),
    metavar="N",
    help="With --key, the starts in a turn of the key. Default: 1.",
)
@options.url
@options.json
async def command(
    queues: tuple[str, ...],
    *,
    all_queues: bool,
    key: str | None,
    share: int | None,
    url: str | None,
    json: bool,
) -> None:
    """Allow workers to claim jobs of paused queues again.

    Examples:
        dibs resume emails --url file:./jobs
        dibs resume emails --key acme --share 3 --url file:./jobs
    """
    if share is not None and key is None:
        raise click.UsageError("--share is of a key; pass --key, too.")
    patch = SettingsPatch(paused=False)
    if key is not None:
        patch = SettingsPatch(shares={key: None if share in (None, 1) else share})
    await set_paused(queues, url, all_queues=all_queues, patch=patch, key=key, json=json)
