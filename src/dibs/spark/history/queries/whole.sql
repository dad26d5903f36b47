-- Rows of several files as they are.
SELECT * FROM merged
