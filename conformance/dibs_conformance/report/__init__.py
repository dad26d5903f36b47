"""The report of a certification: its values, and how it is shown as text, HTML, JSON or a badge."""

from dibs_conformance.report.report import CertificationReport as CertificationReport
from dibs_conformance.report.values import CONTRACT as CONTRACT
from dibs_conformance.report.values import LEVEL_TITLES as LEVEL_TITLES
from dibs_conformance.report.values import CapabilityReport as CapabilityReport
from dibs_conformance.report.values import Findings as Findings
from dibs_conformance.report.values import LawFailure as LawFailure
from dibs_conformance.report.values import LawReport as LawReport
from dibs_conformance.report.values import LevelReport as LevelReport
from dibs_conformance.report.values import NotTried as NotTried
from dibs_conformance.report.values import ReportData as ReportData
from dibs_conformance.report.values import SkippedTest as SkippedTest
from dibs_conformance.report.values import Verdict as Verdict
