"""The close of the storages of all apps, after which each app can be used again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dibs import Dibs
from dibs.client.connection.open_storage import close_all_apps, has_open_apps


async def test_apps_open_again_on_each_loop(tmp_path: Path) -> None:
    apps = [Dibs(f"file:{tmp_path}/{name}") for name in "ab"]
    for app in apps:
        await app.queue("mail").enqueue(1)
        await asyncio.to_thread(app.sync.queue("mail").enqueue, 2)
    handles = [app._storage_handle for app in apps]
    before = [handle.is_open for handle in handles]
    await close_all_apps()
    after = [handle.is_open for handle in handles]
    counts = [(await app.queue("mail").counts()).waiting for app in apps]
    blocking = [await asyncio.to_thread(app.sync.queue("mail").counts) for app in apps]

    assert ([True, True], [False, False]) == (before, after)
    assert [2, 2] == counts == [each.waiting for each in blocking]
    await close_all_apps()
    assert not has_open_apps()


async def test_a_closed_app_stays_closed_and_an_entered_one_can_be_left(tmp_path: Path) -> None:
    async with Dibs(f"file:{tmp_path}/jobs") as app:
        await app.queue("mail").enqueue(1)
        await close_all_apps()

        assert 1 == (await app.queue("mail").counts()).waiting
    assert not app._storage_handle.is_open
