-- The partitions of `ids` that new events change: of the old rows of their ids, and of the new rows.
WITH fresh AS (
    SELECT queue, id, max(finished) AS last_end FROM ended('events') GROUP BY queue, id
)
SELECT DISTINCT queue, utc_day(last_end) AS date FROM fresh
UNION
SELECT ids.queue, ids.date FROM ids JOIN fresh ON fresh.queue = ids.queue AND fresh.id = ids.id
