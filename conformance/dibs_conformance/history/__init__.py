"""The history checker: rules in near-linear time over what clients recorded, or over a queue's own log."""

from dibs_conformance.history.check import CheckResult as CheckResult
from dibs_conformance.history.check import check as check
from dibs_conformance.history.step import InvalidHistory as InvalidHistory
from dibs_conformance.history.step import Step as Step
from dibs_conformance.history.step import read_file as read_file
from dibs_conformance.history.step import read_steps as read_steps
from dibs_conformance.history.step import write_steps as write_steps
