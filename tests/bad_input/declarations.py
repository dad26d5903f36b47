"""Bad input to declarations, which need no storage: handlers, schedules, settings and values."""

from __future__ import annotations

from dibs import BadHandler, ConfigurationError, DuplicateHandler, Refused, UnknownTask
from tests.bad_input.world import rows

HANDLERS = rows(
    ("app.task(5)", BadHandler, "5"),
    ("app.task(lambda: None)", BadHandler, "lambda"),
    ("app.task(queue='')(send)", Refused, "queue"),
    ("app.task(queue=5)(send)", Refused, "queue"),
    ("app.task(queue='q' * 501)(send)", Refused, "queue"),
    ("app.task(queue='q\\0')(send)", Refused, "queue"),
    ("app.task(queue='q!fail')(send)", Refused, "queue"),
    ("app.task(queue='q-task')(send)", DuplicateHandler, "handler"),
    ("app.task(queue='new', nonsense=1)(send)", Refused, "nonsense"),
    ("app.task(queue='new', serde='json')(send)", Refused, "serde"),
    ("app.task(queue='new', timeout=0)(send)", Refused, "timeout"),
    ("app.task(queue='new', timeout='x')(send)", Refused, "timeout"),
    ("app.task(queue='new', timeout=inf)(send)", Refused, "timeout"),
    ("app.task(queue='new', max_retries=-1)(send)", Refused, "max_retries"),
    ("app.task(queue='new', max_retries='x')(send)", Refused, "max_retries"),
    ("app.task(queue='new', max_timeouts=1.5)(send)", Refused, "max_timeouts"),
    ("app.task(queue='new', max_stalls=True)(send)", Refused, "max_stalls"),
    ("app.task(queue='new', backoff=5)(send)", Refused, "backoff"),
    ("app.task(queue='new', backoff=[1, 2])(send)", Refused, "backoff"),
    ("app.task(queue='new', size=0)(send)", Refused, "size"),
    ("app.task(queue='new', size=101)(send)", Refused, "size"),
    ("app.task(queue='new', size='x')(send)", Refused, "size"),
    ("app.task(queue='new', queue_priority='x')(send)", Refused, "queue_priority"),
    ("app.task(queue='new', executor='rocket')(send)", BadHandler, "executor"),
    ("app.task(queue='new', executor=5)(send)", BadHandler, "executor"),
    ("app.task(queue='new', max_active=-1)(send)", Refused, "max_active"),
    ("app.task(queue='new', max_active='x')(send)", Refused, "max_active"),
    ("app.task(queue='new', retention='x')(send)", Refused, "retention.completed"),
    ("app.task(queue='new', exact_arguments=1)(send)", Refused, "exact_arguments"),
    ("app.task(queue='new', every=0)(hook)", Refused, "every"),
    ("app.task(queue='new', every=-1)(hook)", Refused, "every"),
    ("app.task(queue='new', every='soon')(hook)", Refused, "every"),
    ("app.task(queue='new', every=nan)(hook)", Refused, "every"),
    ("app.task(queue='new', cron='x')(hook)", Refused, "cron"),
    ("app.task(queue='new', cron='* * * *')(hook)", Refused, "cron"),
    ("app.task(queue='new', cron='60 * * * *')(hook)", Refused, "cron"),
    ("app.task(queue='new', cron=5)(hook)", Refused, "cron"),
    ("app.task(queue='new', cron='0 0 30 2 *')(hook)", Refused, "cron"),
    ("app.task(queue='new', cron='0 0 * * *', tz='Mars')(hook)", Refused, "tz"),
    ("app.task(queue='new', cron='0 0 * * *', tz=5)(hook)", Refused, "tz"),
    ("app.task(queue='new', cron='0 0 * * *', every=5)(hook)", Refused, "cron"),
    ("app.task(queue='new', cron='0 0 * * *', catch_up='x')(hook)", Refused, "catch_up"),
    ("app.task(queue='new', tz='UTC')(hook)", Refused, "tz"),
    ("app.queue('new').handler(5)", BadHandler, "5"),
    ("app.queue('new').handler(max_retries=-1)(hook)", Refused, "max_retries"),
    ("app.queue('new').handler(nonsense=1)(hook)", Refused, "nonsense"),
    ("app.queue('new').handler(every=5)(hook)", Refused, "every"),
    ("app.queue('new').on_failure(5)", BadHandler, "5"),
    ("app.queue('new').handler(exact_arguments='no')(hook)", Refused, "exact_arguments"),
    ("app.queue('new').on_failure(timeout=-1)(hook)", Refused, "timeout"),
    ("app.queue('new').on_failure(exact_arguments=False)(hook)", Refused, "exact_arguments"),
    ("task.after(5)", BadHandler, "5"),
    ("app.lifespan(5)", BadHandler, "5"),
    ("app.get_task('nonsense')", UnknownTask, "nonsense"),
    ("app.get_task(5)", UnknownTask, "5"),
)

VALUES = rows(
    ("Retry(delay=1, at=at)", Refused, "at"),
    ("Retry(at=datetime(2030, 1, 1))", Refused, "at"),
    ("Dibs(5)", ConfigurationError, "url"),
    ("Dibs(b'memory:')", ConfigurationError, "url"),
)

DECLARATIONS = [*HANDLERS, *VALUES]
