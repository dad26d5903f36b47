"""The worker loop of one process: claim jobs, start their runs, settle them."""
