"""The verb `configure`."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis.stateful import rule
from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from dibs.model.job import OutcomeRetention
from dibs.model.requests import Settings, SettingsPatch, StartRate
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.matching import match
from dibs_conformance.oracle.queue import OracleWorld
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    StepFields,
    Verb,
    read_races,
    read_scenes,
)

#: The retention of outcomes, in ms, that the settings patch "short outcomes" configures.
SHORT_RETENTION = 5
#: Keyed by name, because the report of a failure prints the name. No patch trims the log. A storage without
#: the capability `limits` or `fair` refuses some of them.
SETTINGS_PATCHES: dict[str, SettingsPatch] = {
    "pause": SettingsPatch(paused=True),
    "fail handler": SettingsPatch(fail_handler=True),
    "no fail handler": SettingsPatch(fail_handler=False),
    "results in the log": SettingsPatch(log_results=100),
    "resume": SettingsPatch(paused=False),
    "one active": SettingsPatch(max_active=1),
    "any active": SettingsPatch(max_active=None),
    "one of a key": SettingsPatch(per_key=1),
    "any of a key": SettingsPatch(per_key=None),
    "one start": SettingsPatch(rate=StartRate(1, 60_000)),
    "one start of a key": SettingsPatch(key_rate=StartRate(1, 60_000)),
    "any start": SettingsPatch(rate=None, key_rate=None),
    "turns": SettingsPatch(fair=True),
    "no start of a key": SettingsPatch(shares={"k": 0}),
    "log size": SettingsPatch(log_bytes=32_000_000),
    "log age": SettingsPatch(log_age=43_200_000),
    "key age": SettingsPatch(request_key_age=1_800_000),
    "short outcomes": SettingsPatch(
        retention=OutcomeRetention(
            completed=SHORT_RETENTION, failed=SHORT_RETENTION, cancelled=SHORT_RETENTION
        )
    ),
    "long outcomes": SettingsPatch(retention=OutcomeRetention()),
    "all events": SettingsPatch(log_level="all"),
    "some active": SettingsPatch(max_active=4),
    "some starts": SettingsPatch(rate=StartRate(1, 5, 3)),
    "some starts of a key": SettingsPatch(key_rate=StartRate(3, 10, 2)),
    "one waiting": SettingsPatch(max_waiting=1),
    "two wait": SettingsPatch(max_waiting=2, when_full="drop_new"),
    "no limits": SettingsPatch(per_key=None, rate=None, key_rate=None, max_waiting=None),
}
#: Only a claim or an end must obey a `configure` that has returned before it began. A call that overlaps may
#: take effect later and obey the former settings, so most settings change while no call overlaps.
ONLY_IN_SETUP = frozenset(
    {
        *("short outcomes", "long outcomes", "all events", "fail handler", "no fail handler"),
        *("results in the log", "some active", "some starts", "some starts of a key", "no limits"),
        *("one waiting", "two wait", "turns", "no start of a key"),
    }
)


def step(oracle: Oracle, queue: str, patch: SettingsPatch, now: int) -> Settings:
    found = oracle.queue(queue)
    changes = {name: value for name, value in asdict(patch).items() if value is not UNSET}
    if patch.shares is not UNSET:
        merged = {**found.settings.shares, **patch.shares}
        changes["shares"] = {key: share for key, share in merged.items() if share is not None}
    found.change_settings(replace(found.settings, **changes), now)
    return found.settings


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    expected = step(world.oracle, part.call.queue, part.request["patch"], now)
    if part.answered:
        match(world.numbering, (part.call.queue, ""), expected, part.answer, "settings")


class ConfigureCalls(LockstepCore):
    """`configure`, called in lockstep."""

    def configure(self, queue: str, patch: SettingsPatch) -> None:
        args = {"patch": patch}
        work = self.storage.configure(queue, patch, now=self.now)
        answer = self.call("configure", {"queue": queue, **args}, work)
        self.compare(queue, "", step(self.oracle, queue, patch, self.now), answer)
        self.check_token(queue)


class ConfigureRules(MachineBase):
    @rule(queue=some.queues, patch=some.settings_patches)
    def configure(self, queue: str, patch: SettingsPatch) -> None:
        self.lockstep.configure(queue, patch)


def setting_texts(settings: Struct) -> dict[str, str]:
    """Return the fields that are set, each as JSON text."""
    fields = asdict(settings).items()
    return {name: msgspec.json.encode(value).decode() for name, value in fields if value is not UNSET}


def recorded_request(queue: str, patch: SettingsPatch, **_: Any) -> StepFields:
    changes = {name: getattr(patch, name) for name in ("paused", "max_active")}
    known = {name: value for name, value in changes.items() if value is not UNSET}
    return [{"op": "configure", "queue": queue, "patch": setting_texts(patch), **known}]


def recorded_reply(requested: StepFields, answer: Settings) -> StepFields:
    return [{**one, "status": "configured", "settings": setting_texts(answer)} for one in requested]


VERB = Verb(
    name="configure",
    section="3, Queues as a whole",
    weight=2,
    arguments=lambda action, _, __: {"patch": SETTINGS_PATCHES[action.configure_to]},
    apply=apply,
    races=read_races("""
        configure beside configure (3, Queues as a whole): / configure log size / configure key age
        configure beside settle (2): keyed; claim one / configure one of a key / claim; settle / claim
    """),
    scenes=read_scenes("""
        configure: leases / configure log size
        close a key: keyed; claim one / configure one of a key
    """),
    encoding=CallEncoding(recorded_request, recorded_reply),
    valid={
        "patch": SettingsPatch(
            paused=False,
            max_active=1,
            retention=OutcomeRetention(completed=1, failed=1, cancelled=1, keep_payload=("failed",)),
            log_level="all",
            log_age=5,
            log_bytes=50_000,
            request_key_age=5,
            fail_handler=True,
            log_results=4,
        )
    },
)
