"""A small Django project, which tests/frameworks/test_django_*.py run by its own commands and servers."""
