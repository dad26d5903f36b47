"""The history checker: it finds contradictions in recorded calls, or in the event log of a queue.

Its time grows nearly linearly with the number of calls.
"""

from dibs_conformance.history.check import CheckResult as CheckResult
from dibs_conformance.history.check import check as check
from dibs_conformance.steps import InvalidHistory as InvalidHistory
from dibs_conformance.steps import RecordedStep as RecordedStep
from dibs_conformance.steps import read_file as read_file
from dibs_conformance.steps import read_steps as read_steps
from dibs_conformance.steps import write_steps as write_steps
