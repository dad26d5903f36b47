"""The plan of a call of `work`: the checks of its arguments."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import Refused
from dibs.worker.work_plan import MOST_PROCESSES, check_arguments


@pytest.mark.long
@pytest.mark.parametrize("processes", [-1, MOST_PROCESSES + 1, 1.5, "2", True])
def test_an_impossible_number_of_processes_is_refused(processes: Any) -> None:
    with pytest.raises(Refused) as refused:
        check_arguments("empty", processes, {"lease": 15.0, "heartbeat": 5.0})

    assert "processes" == refused.value.field
