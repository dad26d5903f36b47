"""Tests of the declarations of Overrides."""

from __future__ import annotations

from dibs.client.options.job_settings import JOB_SETTINGS
from dibs.model.overrides import DECLARATIONS, Overrides, pack_overrides, readable, unpack_overrides
from dibs.model.retry import Fixed


def test_every_override_is_declared_and_is_a_setting_of_enqueue() -> None:
    assert set(DECLARATIONS) == set(Overrides.__struct_fields__)
    assert set(DECLARATIONS) <= JOB_SETTINGS


def test_packed_overrides_are_json_without_the_fields_that_are_not_set() -> None:
    set_here = Overrides(timeout=None, max_retries=2, backoff=Fixed(5))

    assert b'{"timeout":null,"max_retries":2,"backoff":{"type":"fixed","seconds":5}}' == pack_overrides(
        set_here
    )
    assert set_here == unpack_overrides(pack_overrides(set_here))


def test_readers_see_seconds_and_their_own_form_of_a_time() -> None:
    set_here = Overrides(timeout=1500, lease=90_000, max_stalls=None, start_by=7)

    assert {"timeout": 1.5, "lease": 90.0, "max_stalls": None, "start_by": "7 ms"} == readable(
        set_here, lambda ms: f"{ms} ms"
    )
    assert {} == readable(None, str)
