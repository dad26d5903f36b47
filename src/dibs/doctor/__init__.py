"""The examination behind `dibs doctor`: faults and risks of a storage and of the workers on it, as values."""

from dibs.doctor.examination import Report, examine, examine_open
from dibs.model.findings import Finding

__all__ = ["Finding", "Report", "examine", "examine_open"]
