"""Postgres keeps the contract: 20 examples by default, 1,000 with the marker `certify`."""

from __future__ import annotations

import pytest

from dibs_conformance import certify
from dibs_conformance.servers import PostgresServer
from tests.kit.postgres_locations import PostgresLocations

BUDGET = 600.0


def test_postgres_keeps_the_contract(postgres_server: PostgresServer) -> None:
    with PostgresLocations(postgres_server.url) as locations:
        report = certify(locations, examples=20, budget=BUDGET, seed=1)

    assert report.certified, report.text()


@pytest.mark.certify
def test_postgres_keeps_the_contract_for_long(postgres_server: PostgresServer) -> None:
    with PostgresLocations(postgres_server.url) as locations:
        report = certify(locations, examples=1000, budget=BUDGET)

    assert report.certified, report.text()
