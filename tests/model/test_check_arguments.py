"""The arguments that tests/bad_input cannot make: a time set by hand, and a record of another id."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import Refused
from dibs.model.job import Slot
from dibs.model.results import ExportRecord
from dibs.storage.memory import MemoryStorage
from tests.bad_input.world import JOB


@pytest.mark.parametrize("now", [-1, 2**53, "soon"])
async def test_a_time_that_no_clock_shows_is_refused(now: Any) -> None:
    async with MemoryStorage(clock="manual") as storage:
        with pytest.raises(Refused) as caught:
            await storage.reap("q", 1, now=now)

    assert "now" == caught.value.field


async def test_a_record_of_another_id_is_refused() -> None:
    async with MemoryStorage() as storage:
        with pytest.raises(Refused, match="the record of id 'b' has a job with the id 'a'") as caught:
            await storage.import_("q", [ExportRecord(id="b", slot=Slot(JOB))])

        assert "current.id" == caught.value.field
        assert [] == await storage.queues()
