"""The worker loop of one process: claim jobs, start their runs, and settle them."""
