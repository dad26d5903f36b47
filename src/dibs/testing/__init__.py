"""For the tests of your own service: an app in memory, a clock moved by hand, and runs when you say so."""

from dibs.testing.rehearsal import BlockingRehearsal, Rehearsal, using

__all__ = ["BlockingRehearsal", "Rehearsal", "using"]
