"""`dibs demo`: one job for each file of a folder, run by worker processes, with every result checked."""
