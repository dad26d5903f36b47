"""Names of keys: no queue name can leave its slot or look like another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import UnknownOption
from dibs.storage.redis.keys import check_prefix, queue_prefix

HOSTILE = (
    "a{b}", "{", "}", "}{", "a:b", "a*", "a b", "a\nb", "%7B", "a%", "é", "e\u0301", "!fail", "A", "a",
)  # fmt: skip


def tag(key: str) -> str:
    """The part of a key that chooses its slot, as Redis Cluster reads it."""
    opened = key.index("{")
    return key[opened + 1 : key.index("}", opened)]


@pytest.mark.parametrize("queue", [name for name in HOSTILE if name != "!fail"])
def test_a_queue_and_its_fail_queue_share_a_slot(queue: str) -> None:
    assert tag(queue_prefix("dibs", queue)) == tag(queue_prefix("dibs", f"{queue}!fail")) != ""


def test_the_fail_queue_has_keys_of_its_own() -> None:
    assert "dibs:{emails}:" == queue_prefix("dibs", "emails")
    assert "dibs:{emails}:fail:" == queue_prefix("dibs", "emails!fail")


def test_a_queue_called_like_the_ending_alone_has_a_tag() -> None:
    assert "dibs:{%21fail}:" == queue_prefix("dibs", "!fail")


def test_hostile_names_stay_apart() -> None:
    names = [queue_prefix("dibs", queue) for queue in HOSTILE]

    assert len(HOSTILE) == len(set(names))


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_names_never_share_keys(one: str, other: str) -> None:
    assert (one == other) == (queue_prefix("dibs", one) == queue_prefix("dibs", other))


@given(st.text(min_size=1))
def test_a_name_opens_and_closes_no_tag(queue: str) -> None:
    key = queue_prefix("dibs", queue)

    assert (1, 1) == (key.count("{"), key.count("}"))


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a b", "a" * 101])
def test_a_prefix_that_would_break_a_tag_is_refused(prefix: str) -> None:
    with pytest.raises(UnknownOption):
        check_prefix(prefix)
