"""`dibs move` from another storage to Postgres and back: all jobs, outcomes and settings stay the same."""

from __future__ import annotations

from dibs.cli.commands.move import move
from dibs.storage.postgres import PostgresStorage
from dibs.storage.registry import open_storage
from tests.cli.test_move import everything, filled, silent


async def test_there_and_back_again(storage: PostgresStorage) -> None:
    async with open_storage("memory:") as elsewhere, open_storage("memory:") as third:
        await filled(elsewhere)
        before = await everything(elsewhere)
        await move(elsewhere, storage, [*before], wait=False, advance=silent)
        here = await everything(storage)
        await move(storage, third, [*before], wait=False, advance=silent)

        assert before == here
        assert before == await everything(third)
        assert {"q": {}, "q!fail": {}} == await everything(storage)
