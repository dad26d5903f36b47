"""Workers: a supervisor, and the worker processes that claim jobs, run them and settle them.

To settle a run is to store its result or error, or to schedule a retry.
"""

from dibs.client.work_report import QueueReport, WorkReport
from dibs.worker.work_session import run

__all__ = ["QueueReport", "WorkReport", "run"]
