"""A worker with a short lease: `python -m tests.soak.worker LEASE`, with LEASE in seconds.

The short form of the soak uses it instead of `dibs worker`, whose lease of 15 s would make it long.
"""

from __future__ import annotations

import asyncio
import sys

from tests.soak.app import app

if __name__ == "__main__":
    LEASE = float(sys.argv[1])
    asyncio.run(app.work(processes=2, lease=LEASE, heartbeat=LEASE / 4))
