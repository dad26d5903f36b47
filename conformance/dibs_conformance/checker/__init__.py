"""The history checker: rules in near-linear time over what clients recorded, or over a queue's own log."""

from dibs_conformance.checker.check import Checked as Checked
from dibs_conformance.checker.check import check as check
from dibs_conformance.checker.step import Step as Step
from dibs_conformance.checker.step import Unreadable as Unreadable
from dibs_conformance.checker.step import read_file as read_file
from dibs_conformance.checker.step import read_steps as read_steps
from dibs_conformance.checker.step import write_steps as write_steps
