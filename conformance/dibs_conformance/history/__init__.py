"""The history checker: it finds contradictions in recorded calls, or in the event log of a queue.

Its time grows nearly linearly with the number of calls.
"""

from dibs_conformance.history.check import CheckResult as CheckResult
from dibs_conformance.history.check import check as check
from dibs_conformance.history.step import InvalidHistory as InvalidHistory
from dibs_conformance.history.step import Step as Step
from dibs_conformance.history.step import read_file as read_file
from dibs_conformance.history.step import read_steps as read_steps
from dibs_conformance.history.step import write_steps as write_steps
