"""Numbers after Postgres lost its latest writes: a promoted standby, a restored backup, a dump, a crash."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from dibs.storage.postgres import open_url
from dibs_conformance.servers import PostgresServer, start_postgres
from dibs_conformance.servers.postgres import start_standby
from dibs_conformance.servers.processes import wait_until
from tests.storage.address import again
from tests.storage.failovers import (
    QUEUE,
    SKEWS,
    check_after_loss,
    play_rounds,
    skewed_clock,
)
from tests.storage.postgres.standby import asked_of, caught_up


def stop_streaming(standby: PostgresServer) -> None:
    """Cut the standby off from its primary, as a broken network does."""
    asked_of(standby, "ALTER SYSTEM SET primary_conninfo = ''")
    asked_of(standby, "SELECT pg_reload_conf()")
    assert wait_until(lambda: not asked_of(standby, "SELECT count(*) FROM pg_stat_wal_receiver"), 30)


def pid_of_wal_writer(server: PostgresServer) -> int:
    """Return the process that writes the WAL, or 0 while the server recovers."""
    try:
        return int(asked_of(server, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"))
    except (psycopg.OperationalError, TypeError):
        return 0


def run(*command: str | Path, given: bytes = b"") -> bytes:
    return subprocess.run(command, input=given, check=True, capture_output=True).stdout


def tool(server: PostgresServer, name: str) -> Path:
    program = server.found.path / name
    if not program.exists():
        pytest.skip(f"no {name} beside Postgres {server.version}")
    return program


async def fail_over_once(skew: int) -> None:
    """Lose the writes of some rounds in a failover, and compare all numbers."""
    with start_postgres() as primary, start_standby(primary, skewed_clock(skew)) as standby:
        async with open_url(primary.url) as storage:
            kept = await play_rounds(storage, 3)
            await asyncio.to_thread(caught_up, (primary, standby))
            await asyncio.to_thread(stop_streaming, standby)
            lost = await play_rounds(storage)
        primary.kill()
        assert await asyncio.to_thread(asked_of, standby, "SELECT pg_promote()")
        assert asked_of(standby, "SELECT pg_is_in_recovery()") is False
        # The first write comes from a program that uses SQL alone.
        late = f"SELECT dibs.complete_job('{QUEUE}', 'a', {lost.fences[-1]})"
        asked_of(standby, f"SELECT dibs.enqueue_job('{QUEUE}', 'a')")
        claimed = asked_of(standby, f"SELECT fence FROM dibs.claim_jobs('{QUEUE}')")
        assert "lost" == asked_of(standby, late)
        assert claimed > max(kept.numbers + lost.numbers)
        asked_of(standby, f"SELECT dibs.complete_job('{QUEUE}', 'a', {claimed})")
        async with open_url(standby.url) as storage:
            await check_after_loss(storage, kept, lost, more_events=1)


@pytest.mark.parametrize("skew", SKEWS)
async def test_a_promoted_standby_repeats_no_number(postgres_server: PostgresServer, skew: int) -> None:
    tool(postgres_server, "pg_basebackup")
    await fail_over_once(skew)


@pytest.mark.chaos
@pytest.mark.parametrize("skew", SKEWS)
async def test_no_number_repeats_in_many_failovers(postgres_server: PostgresServer, skew: int) -> None:
    tool(postgres_server, "pg_basebackup")
    for _ in range(20):
        await fail_over_once(skew)


async def test_a_restored_base_backup_repeats_no_number(postgres_server: PostgresServer) -> None:
    """The backup starts without recovery, so its timeline is that of the lost server."""
    tool(postgres_server, "pg_basebackup")
    with start_postgres() as primary, PostgresServer(primary.found, primary.options) as restored:
        async with open_url(primary.url) as storage:
            kept = await play_rounds(storage, 3)
            await asyncio.to_thread(restored.copy_primary, primary)
            lost = await play_rounds(storage)
        primary.kill()
        (restored.data / "standby.signal").unlink()
        restored.environ |= skewed_clock(-10)
        restored.start()
        async with open_url(restored.url) as storage:
            await check_after_loss(storage, kept, lost)


async def test_a_restored_copy_of_a_stopped_server_repeats_no_number(tmp_path: Path) -> None:
    """The lost server was restarted after the copy, so a whole incarnation is lost."""
    with start_postgres() as server:
        async with open_url(server.url) as storage:
            kept = await play_rounds(storage, 3)
        server.stop()
        backup = tmp_path / "backup"
        run("cp", "-a", server.data, backup)
        server.start()
        async with open_url(server.url) as storage:
            lost = await play_rounds(storage)
        server.kill()
        shutil.rmtree(server.data)
        run("cp", "-a", backup, server.data)
        server.start()
        async with open_url(server.url) as storage:
            await check_after_loss(storage, kept, lost)


async def test_a_schema_restored_from_a_dump_repeats_no_number(postgres_server: PostgresServer) -> None:
    """The server runs on; only the schema is a copy, with the values that its sequences had."""
    with start_postgres() as server:
        async with open_url(server.url) as storage:
            kept = await play_rounds(storage, 3)
            dump = run(tool(postgres_server, "pg_dump"), server.url)
            lost = await play_rounds(storage)
        asked_of(server, "DROP SCHEMA dibs CASCADE")
        run(tool(postgres_server, "psql"), "--set", "ON_ERROR_STOP=1", server.url, given=dump)
        async with open_url(server.url) as storage:
            await check_after_loss(storage, kept, lost)


async def test_a_crash_that_loses_commits_repeats_no_number(postgres_server: PostgresServer) -> None:
    """With synchronous_commit = off, the death of one server process loses the latest commits."""
    if int(postgres_server.version.split(".")[0]) < 15:
        pytest.skip("before Postgres 15, a crash of a server process is not noticed")
    with start_postgres(synchronous_commit="off", wal_writer_delay="10s") as server:
        async with open_url(server.url) as storage:
            kept = await play_rounds(storage, 3)
            asked_of(server, "CHECKPOINT")
            pid = pid_of_wal_writer(server)
            os.kill(pid, signal.SIGSTOP)
            lost = await play_rounds(storage, 3)
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: pid_of_wal_writer(server) not in (0, pid), 60)
            await again(lambda: storage.counts([QUEUE]))
            await check_after_loss(storage, kept, lost)
