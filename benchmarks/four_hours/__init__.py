"""A job of four hours on Celery, RQ and dibs, with a deploy in the middle. See `__main__.py`."""
