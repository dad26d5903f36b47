"""RQ: an enqueue of the job."""

import os

import work
from redis import Redis
from rq import Queue, Retry

if __name__ == "__main__":
    queue = Queue(connection=Redis.from_url(os.environ["URL"]))
    retry = Retry(max=3) if os.environ["MODE"] == "retry" else None
    # Without job_timeout, RQ ends the run after three minutes.
    queue.enqueue(work.four_hours, job_timeout=int(work.HOUR * 6), retry=retry)
