"""Workers: a supervisor and the worker processes that claim, run and settle jobs (contract 3, Leases)."""

from dibs.client.work_report import QueueReport, WorkReport
from dibs.worker.work_session import run

__all__ = ["QueueReport", "WorkReport", "run"]
