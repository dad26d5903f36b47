"""A backend for the task API of Django 6, and for its backport `django-tasks` on earlier versions."""
