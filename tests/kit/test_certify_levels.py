"""Each storage of dibs reaches its highest level: with few histories by default, with a budget with the
marker `certify`. The marker also adds many histories of L0, on more kinds of servers.

DIBS_CERTIFY_BUDGET=3600 nox -s certify -- postgres

The command gives each storage one hour of new examples. The report of a failed run holds its seed.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from attrs import evolve

from dibs_conformance import certify
from dibs_conformance.levels import LEVELS
from dibs_conformance.report import Findings
from dibs_conformance.sequential.levels import one_call_at_a_time
from dibs_conformance.servers import PostgresServer, RedisServer
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.postgres_locations import PostgresLocations
from tests.kit.redis_locations import RedisLocations

#: Seconds for each storage with the marker `certify`.
BUDGET = float(os.environ.get("DIBS_CERTIFY_BUDGET", "240"))
#: Histories on each level by default: the fewest with which every kind of fault occurs.
FEW = 9


def reaches(target: str, level: str, examples: int | None = FEW) -> None:
    """Certify a storage and print the report.

    `pytest -rP` shows the report, with its seed, also for a passed test.
    """
    report = certify(target, level, BUDGET, 20_261_121 if examples else None, examples=examples)
    sys.stdout.write(f"{report.text()}\n")

    assert report.certified, report.text()


def test_memory_reaches_l3() -> None:
    reaches("memory:", "L3")


def test_file_reaches_l3(tmp_path: Path) -> None:
    reaches(f"file:{tmp_path}?fsync=1", "L3")


def test_redis_reaches_l4(redis_server: RedisServer) -> None:
    reaches(redis_server.url, "L4")


def test_postgres_reaches_l4(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 164 locations of L0 are emptied schemas here, and new schemas in the long form.

    New schemas take 35 s of the server's CPU time, and emptied ones 12 s.
    """
    with PostgresLocations(postgres_server.url) as emptied:

        def one_call_at_a_time_in_emptied_schemas(plan: LevelPlan) -> Findings:
            return one_call_at_a_time(evolve(plan, locations=Locations(emptied)))

        monkeypatch.setitem(LEVELS, "L0", one_call_at_a_time_in_emptied_schemas)
        reaches(postgres_server.url, "L4")


@pytest.mark.certify
def test_memory_reaches_l3_for_long() -> None:
    reaches("memory:", "L3", None)


@pytest.mark.certify
@pytest.mark.parametrize("options", ["", "?fsync=1"])
def test_file_reaches_l3_for_long(tmp_path: Path, options: str) -> None:
    reaches(f"file:{tmp_path}{options}", "L3", None)


@pytest.mark.certify
def test_redis_reaches_l4_for_long(redis_server: RedisServer) -> None:
    reaches(redis_server.url, "L4", None)


@pytest.mark.certify
def test_postgres_reaches_l4_for_long(postgres_server: PostgresServer) -> None:
    reaches(postgres_server.url, "L4", None)


@pytest.mark.parametrize("server", ["redis_cluster", "valkey_server"])
def test_servers_like_redis_keep_the_contract(server: str, request: pytest.FixtureRequest) -> None:
    report = certify(RedisLocations(request.getfixturevalue(server).url), examples=8, budget=BUDGET, seed=2)

    assert report.certified, report.text()


#: Storage -> the fixture of its server, and the attribute with its URL.
SERVERS = {
    "redis": ("redis_server", "url"),
    "redis by its socket": ("redis_server", "socket_url"),
    "redis cluster": ("redis_cluster", "url"),
    "redis as valkey": ("valkey_server", "url"),
    "postgres": ("postgres_server", "url"),
}


@pytest.mark.certify
@pytest.mark.parametrize("storage", SERVERS)
def test_a_server_keeps_the_contract_for_long(storage: str, request: pytest.FixtureRequest) -> None:
    fixture, attribute = SERVERS[storage]
    url = getattr(request.getfixturevalue(fixture), attribute)
    with PostgresLocations(url) if storage == "postgres" else nullcontext(RedisLocations(url)) as locations:
        report = certify(locations, examples=1000, budget=600)

    assert report.certified, report.text()


@pytest.mark.certify
@pytest.mark.parametrize("storage", ["memory", "file"])
def test_a_storage_keeps_the_contract_for_long(storage: str, tmp_path: Path) -> None:
    report = certify(f"{storage}:{tmp_path}", examples=2000)

    assert report.certified, report.text()
