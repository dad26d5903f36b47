"""Tests of failing servers (level L4): accepted jobs are kept, and refused calls have no effect."""
