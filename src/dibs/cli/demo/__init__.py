"""`dibs demo`: real files, a durable queue, several worker processes, and every result checked."""
