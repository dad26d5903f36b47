"""Bad input to schedules that are made at run time."""

from __future__ import annotations

from dibs import Refused
from tests.bad_input.world import rows

SCHEDULES = rows(
    ("task.schedule('', task.bind('a'), every=60)", Refused, "name"),
    ("task.schedule(5, task.bind('a'), every=60)", Refused, "name"),
    ("task.schedule('x' * 504, task.bind('a'), every=60)", Refused, "name"),
    ("task.schedule('a\\0', task.bind('a'), every=60)", Refused, "name"),
    ("task.schedule('a', task.bind('a'))", Refused, "cron"),
    ("task.schedule('a', task.bind('a'), cron='0 3 * * *', every=60)", Refused, "cron"),
    ("task.schedule('a', task.bind('a'), cron='61 * * * *')", Refused, "cron"),
    ("task.schedule('a', task.bind('a'), cron='0 0 31 2 *')", Refused, "cron"),
    ("task.schedule('a', task.bind('a'), cron=5)", Refused, "cron"),
    ("task.schedule('a', task.bind('a'), cron='* * * * * *')", Refused, "cron"),
    ("task.schedule('a', task.bind('a'), cron='0 3 * * *', tz='Mars/Phobos')", Refused, "tz"),
    ("task.schedule('a', task.bind('a'), cron='0 3 * * *', tz=5)", Refused, "tz"),
    ("task.schedule('a', task.bind('a'), every=60, tz='UTC')", Refused, "tz"),
    ("task.schedule('a', task.bind('a'), every=0)", Refused, "every"),
    ("task.schedule('a', task.bind('a'), every='5 parsecs')", Refused, "every"),
    ("task.schedule('a', task.bind('a'), every=4e8)", Refused, "every"),
    ("task.schedule('a', task.bind('a'), every=60, catch_up='no')", Refused, "catch_up"),
    ("task.schedule('a', task.bind('a'), every=60, overlap='both')", Refused, "overlap"),
    ("task.schedule('a', task.bind('a'), every=60, overlap=None)", Refused, "overlap"),
    ("task.schedule('a', 'an argument', every=60)", Refused, "call"),
    ("task.schedule('a', queue.bind(1), every=60)", Refused, "call"),
    ("task.schedule('a', every=60)", Refused, "address"),
    ("task.schedule('a', task.bind(5), every=60)", Refused, "address"),
    ("task.schedule('a', task.options(id='x').bind('a'), every=60)", Refused, "id"),
    ("task.schedule('a', task.options(delay=1).bind('a'), every=60)", Refused, "delay"),
    ("task.schedule('a', task.options(run_at=at).bind('a'), every=60)", Refused, "run_at"),
    ("task.schedule('a', task.options(request_key='k').bind('a'), every=60)", Refused, "request_key"),
    ("task.schedule('a', task.options(on_conflict=Reject()).bind('a'), every=60)", Refused, "on_conflict"),
    ("task.schedule('a', task.options(start_by=60).bind('a'), every=60)", Refused, "start_by"),
    ("queue.schedules.set('a', {'x': 1}, every=60)", Refused, "call"),
    ("queue.schedules.get('')", Refused, "name"),
    ("queue.schedules.list(limit=0)", Refused, "limit"),
    ("queue.schedules.pause(None)", Refused, "name"),
    ("queue.schedules.resume('')", Refused, "name"),
    ("queue.schedules.remove(b'a')", Refused, "name"),
)
