"""Page models of queues: the overview, one queue with a page of its jobs, and their activity."""
