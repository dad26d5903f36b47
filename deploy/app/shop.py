"""The application that the compose file and the manifests run; put your own in its place."""

import logging

from dibs import Dibs

logger = logging.getLogger("shop")
# The storage is the one of the environment variable DIBS_URL.
app = Dibs()


@app.task(timeout=30, max_retries=5)
def greet(name: str) -> str:
    """Log a greeting, and return it."""
    greeting = f"Hello, {name}"
    logger.info(greeting)
    return greeting
