"""Serdes that encrypt or sign: keys, their rotation, and the bytes that reach a storage."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.fernet import Fernet

from dibs import (
    BadHandler,
    ConfigurationError,
    Dibs,
    EncryptedSerde,
    MessagePackSerde,
    Refused,
    Serde,
    SignedSerde,
    current_job,
)
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.run_outcome import MAX_MISMATCHES
from dibs.testing import using
from tests.client.options.test_serde import REFUSED, VALUES
from tests.worker.jobs import outcome

OLD, NEW = Fernet.generate_key().decode(), EncryptedSerde.new_key()
BOTH = [EncryptedSerde, SignedSerde]
Make = Callable[..., Serde]
QUEUE = "letters"


def shout(text: str) -> str:
    return text.upper()


def call_with_class(value: type[int]) -> None: ...


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda value: repr(value)[:30])
def test_a_value_comes_back_as_the_requested_type(make: Make, value: Any, kind: Any) -> None:
    serde = make(OLD, serde=MessagePackSerde())

    assert isinstance(serde, Serde)
    assert serde.decode(serde.encode(value), kind) == value


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_value_that_the_inner_format_refuses_is_refused(make: Make, value: Any) -> None:
    with pytest.raises(Refused):
        make(OLD).encode(value)


def test_encrypted_bytes_hide_the_value_and_signed_bytes_show_it() -> None:
    assert b"swordfish" not in EncryptedSerde(OLD).encode("swordfish")
    assert SignedSerde(OLD).encode("swordfish").startswith(b'"swordfish".')


def test_the_names_tell_apart_serdes_of_other_formats() -> None:
    assert EncryptedSerde(OLD).name == "encrypted-json"
    assert SignedSerde(OLD, serde=MessagePackSerde()).name == "signed-messagepack"


@pytest.mark.parametrize("make", BOTH)
def test_a_key_is_rotated_in_three_deployments(make: Make) -> None:
    deployments = [make(OLD), make([OLD, NEW]), make([NEW, OLD]), make(NEW)]

    for before, after in itertools.pairwise(deployments):
        assert before.decode(after.encode("x")) == "x"
        assert after.decode(before.encode("x")) == "x"
    with pytest.raises(ValueError, match="a key of this"):
        deployments[0].decode(deployments[3].encode("x"))


@pytest.mark.parametrize("make", BOTH)
def test_changed_bytes_are_refused_without_showing_the_value(make: Make) -> None:
    raw = make(OLD).encode("swordfish")

    for position in (0, len(raw) // 2, len(raw) - 2):
        changed = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is compared below
            make(OLD).decode(changed)
        assert "it was changed" in str(raised.value)
        assert "swordfish" not in str(raised.value)
        # The traceback shows no other error, whose text could contain the signature or the value.
        assert raised.value.__suppress_context__


@pytest.mark.parametrize("make", BOTH)
def test_plain_json_of_a_sender_without_a_key_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="key"):
        make(OLD).decode(b'"x"')


@pytest.mark.parametrize("make", BOTH)
def test_a_repr_shows_no_key(make: Make) -> None:
    assert OLD not in repr(make(OLD))
    assert "JsonSerde" in repr(make(OLD))


@pytest.mark.parametrize(
    ("make", "keys", "message"),
    [
        (EncryptedSerde, [], "keys is empty"),
        (SignedSerde, [], "keys is empty"),
        (EncryptedSerde, [OLD, "swordfish"], r"keys\[1\] is no Fernet key"),
        (EncryptedSerde, "swordfish", r"keys\[0\] is no Fernet key"),
        (EncryptedSerde, [5], r"keys\[0\] is of type int"),
        (SignedSerde, [OLD, "swordfish"], r"keys\[1\] has 9 bytes"),
    ],
)
def test_a_bad_key_is_refused_without_showing_it(make: Make, keys: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        make(keys)
    assert "swordfish" not in str(raised.value)


@pytest.mark.parametrize("make", BOTH)
def test_a_type_that_the_inner_format_cannot_send_is_refused_at_the_declaration(make: Make) -> None:
    with pytest.raises(BadHandler, match="a function or a class cannot be sent"):
        Dibs("memory:").task(serde=make(OLD))(call_with_class)


async def test_payload_result_and_steps_reach_a_storage_encrypted(any_app: Dibs) -> None:
    name = f"letters-{os.urandom(6).hex()}"

    storage, stored = any_app.storage, list[str]()

    async def print_letter(text: str) -> str:
        await current_job().step("print", str.upper, text)
        stored.append(repr(await storage.get(name, ["a"])))
        return f"sent {text}"

    # A worker in this process need not import the handler, which reads the storage of this test.
    print_letter.__qualname__ = "print_letter"
    serde = EncryptedSerde(OLD)
    send = any_app.task(queue=name, serde=serde, retention=60, max_retries=0)(print_letter)
    ticket = await send.options(id="a").enqueue("swordfish")
    await any_app.work([name], until="empty")
    stored.append(repr(await storage.get(name, ["a"])))

    assert await ticket.result() == "sent swordfish"
    assert len(stored) == 2
    assert not any("swordfish" in text.lower() for text in stored)


async def test_a_job_with_an_unknown_key_is_retried_until_a_worker_has_the_key() -> None:
    app = Dibs("memory:")
    app.task(queue=QUEUE, serde=EncryptedSerde(OLD), max_retries=0)(shout)
    payload = EncryptedSerde(NEW).encode({"args": ["swordfish"]})
    async with using(app) as rehearsal:
        await app.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a", data=JobData(payload=payload)))])
        await rehearsal.run_until_empty()
        failed = await outcome(app, QUEUE, "a")

    assert failed.error is not None
    assert (MAX_MISMATCHES, "PayloadMismatch") == (failed.retries, failed.error.type)
    assert "was not encrypted with a key of this EncryptedSerde" in failed.error.message
    assert "swordfish" not in repr(failed)
