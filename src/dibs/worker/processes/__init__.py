"""Child processes of a worker: the fork server, spawning, their main functions, logs and signals."""
