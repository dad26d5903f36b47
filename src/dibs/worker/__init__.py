"""Who runs jobs: a supervisor and its worker processes (contract 3, Leases; design, decisions 8 and 9)."""

from dibs.worker.work_report import QueueReport, WorkReport
from dibs.worker.work_session import run

__all__ = ["QueueReport", "WorkReport", "run"]
