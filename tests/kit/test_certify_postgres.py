"""Postgres keeps the contract: 1,000 examples with the marker `certify`.

By default Postgres has its examples in test_certify_levels.py, which tests all levels.
"""

from __future__ import annotations

import pytest

from dibs_conformance import certify
from dibs_conformance.servers import PostgresServer
from tests.kit.postgres_locations import PostgresLocations

BUDGET = 600.0


@pytest.mark.certify
def test_postgres_keeps_the_contract_for_long(postgres_server: PostgresServer) -> None:
    with PostgresLocations(postgres_server.url) as locations:
        report = certify(locations, examples=1000, budget=BUDGET)

    assert report.certified, report.text()
