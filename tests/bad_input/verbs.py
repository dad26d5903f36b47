"""Bad input to the verbs of a storage, as other programs and third-party workers call them.

The kit tries each wrong type of an argument and each bad name of a queue: `bad_calls`.
"""

from __future__ import annotations

from dibs import BatchRefused, Refused
from tests.bad_input.world import Row, rows

ARGUMENTS = rows(
    ("storage.claim(name, lease, 0)", Refused, "limit"),
    ("storage.claim(name, lease, -1)", Refused, "limit"),
    ("storage.claim(name, lease, 'x')", Refused, "limit"),
    ("storage.claim(name, lease, True)", Refused, "limit"),
    ("storage.reap(name, 0)", Refused, "limit"),
    ("storage.prune(name, 0)", Refused, "limit"),
    ("storage.list(name, 'waiting', limit=0)", Refused, "limit"),
    ("storage.list(name, 'asleep')", Refused, "state"),
    ("storage.list(name, 5)", Refused, "state"),
    ("storage.split(name, 0)", Refused, "parts"),
    ("storage.split(name, 1001)", Refused, "parts"),
    ("storage.split(name, 2, state='asleep')", Refused, "state"),
    ("storage.events(name, limit=0)", Refused, "limit"),
    ("storage.events(name, after='nonsense')", Refused, "after"),
    ("storage.events(name, after=5)", Refused, "after"),
    ("storage.grant([name], 0, 'me')", Refused, "ttl"),
    ("storage.grant([name], 'x', 'me')", Refused, "ttl"),
    ("storage.grant([name], 1000, '')", Refused, "holder"),
    ("storage.grant([name], 1000, 5)", Refused, "holder"),
    ("storage.grant([name], 1000, 'x' * 513)", Refused, "holder"),
    ("storage.grant(name, 1000, 'me')", Refused, "queues"),
    ("storage.grant(5, 1000, 'me')", Refused, "queues"),
    ("storage.renew(name, lease, 1000)", Refused, "queues"),
    ("storage.renew([name], lease, 0)", Refused, "ttl"),
    ("storage.drop([name], lease, 0)", Refused, "limit"),
    ("storage.drop(name, lease, 1)", Refused, "queues"),
    ("storage.counts(name)", Refused, "queues"),
    ("storage.wait(name, timeout=0)", Refused, "queues"),
    ("storage.wait([name], for_='rain', timeout=0)", Refused, "for_"),
    ("storage.wait([name], for_='ids', ids='seen', timeout=0)", Refused, "ids"),
    ("storage.wait([name], for_='ids', ids=[5], timeout=0)", Refused, "id"),
    ("storage.cancel(name, 'seen')", Refused, "ids"),
    ("storage.cancel(name, 5)", Refused, "ids"),
    ("storage.cancel(name, ['seen', 5])", Refused, "id"),
    ("storage.cancel(name, ['seen'], running='x')", Refused, "running"),
    ("storage.forget(name, 'seen')", Refused, "ids"),
    ("storage.forget(name, ['seen', None])", Refused, "id"),
    ("storage.retry_failed(name, 'failed')", Refused, "ids"),
    ("storage.retry_failed(name, ['failed', b'x'])", Refused, "id"),
    ("storage.retry_failed(name, ['failed'], delay=-1)", Refused, "delay"),
    ("storage.retry_failed(name, ['failed'], delay='1m')", Refused, "delay"),
    ("storage.get(name, 'seen')", Refused, "ids"),
    ("storage.get(name, [['seen']])", Refused, "id"),
    ("storage.report(name, 'held', fence, b'NaN')", Refused, "progress"),
    ("storage.report(name, 'held', fence, '1')", Refused, "progress"),
    ("storage.report(name, 'held', 'x', b'1')", Refused, "fence"),
    ("storage.report(name, 5, fence, b'1')", Refused, "id"),
    ("storage.report(name, 'held', fence)", Refused, "progress"),
    ("storage.report(name, 'held', fence, memo='x')", Refused, "memo"),
    ("storage.report(name, 'held', fence, memo=b'x' * (2**20 + 1))", Refused, "memo"),
    ("storage.amend(name, 'ended', JobPatch(attributes={'a': b'x'}))", Refused, "attributes['a']"),
    ("storage.amend(name, 5, JobPatch(priority=1))", Refused, "id"),
    ("storage.amend(name, 'seen', JobPatch(priority=1001))", Refused, "priority"),
    ("storage.amend(name, 'seen', JobPatch(run_at=1, delay=1))", Refused, "run_at"),
    ("storage.amend(name, 'seen', JobPatch(payload='x'))", Refused, "payload"),
    ("storage.amend(name, 'seen', JobPatch(attributes={'a': b'NaN'}))", Refused, "attributes['a']"),
    ("storage.amend(name, 'seen', JobPatch(lease=0))", Refused, "lease"),
    ("storage.amend(name, 'seen', JobPatch(lease='x'))", Refused, "lease"),
    ("storage.amend(name, 'seen', JobPatch(retention=5))", Refused, "retention"),
    ("storage.finish(name, 'handed', Complete(), 'x')", Refused, "revision"),
    ("storage.finish(name, 'handed', Complete(), -1)", Refused, "revision"),
    ("storage.finish(name, 5, Complete(), revision)", Refused, "id"),
    ("storage.finish(name, 'handed', Complete(result='x'), revision)", Refused, "result"),
    ("storage.finish(name, 'handed', Complete(result=b'x' * (2**20 + 1)), revision)", Refused, "result"),
    ("storage.finish(name, 'handed', Complete(retention=5), revision)", Refused, "retention"),
    ("storage.configure(name, SettingsPatch(max_active=-1))", Refused, "max_active"),
    ("storage.configure(name, SettingsPatch(max_waiting=0))", Refused, "max_waiting"),
    ("storage.configure(name, SettingsPatch(when_full='drop_old'))", Refused, "when_full"),
    ("storage.configure(name, SettingsPatch(fail_handler=1))", Refused, "fail_handler"),
    ("storage.configure(name, SettingsPatch(log_level='loud'))", Refused, "log_level"),
    ("storage.configure(name, SettingsPatch(log_age=-1))", Refused, "log_age"),
    ("storage.configure(name, SettingsPatch(paused=1))", Refused, "paused"),
    ("storage.get(name, ['seen'], now=5)", Refused, "now"),
    ("storage.enqueue(name, [EnqueueRequest(job=NewJob(id=''))])", BatchRefused, "id"),
    ("storage.enqueue(name, [EnqueueRequest(job=NewJob(id=5))])", BatchRefused, "id"),
    ("storage.enqueue(name, [EnqueueRequest(job=NewJob(id='a'))] * 1001)", Refused, "requests"),
    (
        "storage.enqueue(name, [EnqueueRequest(job=NewJob(id='a', data=JobData(payload='x')))])",
        BatchRefused,
        "payload",
    ),
    (
        "storage.enqueue(name, [EnqueueRequest(job=NewJob(id='a', delay='x'))])",
        BatchRefused,
        "delay",
    ),
    (
        "storage.enqueue(name, [EnqueueRequest(job=NewJob(id='a', data=JobData(key='k' * 129)))])",
        BatchRefused,
        "key",
    ),
    (
        "storage.enqueue(name, [EnqueueRequest(job=NewJob(id='a', data=JobData(memo=b'm')))])",
        BatchRefused,
        "memo",
    ),
    (
        (
            "storage.enqueue(name, [EnqueueRequest(job=NewJob(id='a', data=JobData(priority=1)), "
            "on_conflict=Update(create=False))])"
        ),
        BatchRefused,
        "data",
    ),
    ("storage.enqueue(name + '!fail', [])", Refused, "queue"),
    (
        "storage.import_(name, [ExportRecord(id='', slot=Slot())])",
        Refused,
        "id",
    ),
    ("storage.import_(name, [ExportRecord(id=5, slot=Slot())])", Refused, "id"),
    ("storage.settle_and_claim(name, [], lease, 0)", Refused, "limit"),
    ("storage.export(name, limit=0)", Refused, "limit"),
    ("storage.grant([name], 1000, '\\ud800')", Refused, "holder"),
    ("storage.report(name, 'held', fence, b'')", Refused, "progress"),
    ("storage.configure(name, SettingsPatch(log_bytes=-1))", Refused, "log_bytes"),
    ("storage.amend(name, 'seen', JobPatch(retention=LESS))", Refused, "retention.completed"),
    ("storage.finish(name, 'handed', Cancelled(retention=LESS), revision)", Refused, "retention.completed"),
)

#: The records of imports that no storage has exported.
RECORDS = [
    Row(f"storage.import_(name, [ExportRecord(id='a', slot={slot})])", Refused, field)
    for slot, field in (
        ("Slot(replace(JOB, seq=2**53 + 1))", "current.seq"),
        ("Slot(replace(JOB, revision=0))", "current.revision"),
        ("Slot(replace(JOB, run=RUN))", "current.attempts"),
        ("Slot(JOB, NEXT)", "successor"),
        ("Slot(JOB, None, None, ((5, 4),))", "dropped"),
        ("Slot(replace(JOB, data=JobData(memo=bytes(2**20 + 1))))", "memo"),
        ("Slot(replace(JOB, data=JobData(key='k' * 129)))", "key"),
        ("Slot(replace(JOB, data=JobData(priority=1001)))", "priority"),
        ("Slot(None, None, replace(ENDED, attributes={'x': b'{'}))", "attributes['x']"),
        ("Slot(None, None, replace(ENDED, expires_at=-1))", "outcome.expires_at"),
    )
]

VERBS = [*ARGUMENTS, *RECORDS]
