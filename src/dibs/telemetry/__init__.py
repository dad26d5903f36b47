"""Logs, metrics and traces of an app. dibs itself imports none of these modules: import those you need."""
