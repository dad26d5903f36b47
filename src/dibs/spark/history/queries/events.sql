-- The new events as they were read.
SELECT * FROM events_read
