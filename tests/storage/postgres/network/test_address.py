"""The options of dibs and of the driver in a Postgres URL, and messages without secrets."""

from __future__ import annotations

import pytest

from dibs.errors import ConfigurationError, UnknownOption
from dibs.storage.postgres import open_url
from dibs.storage.postgres.network.address import parse_url


def test_the_url_is_shown_without_its_password() -> None:
    storage = open_url("postgresql://ann:s3cret%2F@db.example:6432/jobs?sslmode=require&schema=a%20b")

    assert "postgresql://ann@db.example:6432/jobs?sslmode=require&schema=a%20b" == storage.url
    assert "s3cret" not in repr(storage) + repr(storage.__dict__) + repr(storage._server.__dict__)


def test_a_password_in_the_query_is_hidden_as_well() -> None:
    assert "hidden" not in open_url("postgresql://h/db?user=u&password=hidden&sslpassword=hidden").url


def test_options_may_stand_in_the_query_or_be_given_by_name() -> None:
    assert ("x", 2.5) == (
        parse_url("postgresql://h/db?schema=x&poll=2.5", {}).schema,
        parse_url("postgres://h?poll=2.5", {}).poll,
    )
    assert "y" == parse_url("postgresql://h/db?schema=x", {"schema": "y"}).schema


def test_a_driver_s_own_parameters_go_through() -> None:
    assert "3" == parse_url("postgresql://h/db?connect_timeout=3", {}).params["connect_timeout"]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("postgresql://h/db?fsync=1", {}),
        ("postgresql://h/db", {"prefix": "x"}),
        ("postgresql://h?poll=soon", {}),
        ("postgresql://h?max_connections=0", {}),
        ("postgresql://h", {"max_connections": 2.5}),
    ],
)
def test_unknown_options_are_refused_and_the_known_listed(url: str, options: dict[str, str]) -> None:
    with pytest.raises(
        UnknownOption, match=r"known: allow_others, max_connections, poll, schema|invalid value"
    ):
        parse_url(url, options)


def test_a_url_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url("postgresql://u:pa%ss@h/db", {})

    assert "pa%ss" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_socket_is_named_by_its_folder() -> None:
    address = parse_url("postgresql:///db?host=/var/run/pg&port=5433", {})

    assert "/var/run/pg:5433" == address.hosts
    assert "host=%2Fvar%2Frun%2Fpg" in address.display_url
