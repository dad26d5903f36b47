-- The request keys of large writes are packed: one row for each batch instead of one for each key.
--
-- A row of `request_keys` with its two index entries took as much CPU time of the server as the job itself.

-- A key set belongs to one writer, which writes one batch after the other. `n` counts the batches from 1.
CREATE TABLE key_sets (
    q integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    n integer NOT NULL,
    -- The keys of the batch, 16 bytes each, in the order of its requests.
    members bytea NOT NULL,
    -- The statuses of the requests; NULL if each is `queued`.
    statuses text[],
    expires_at bigint NOT NULL,
    PRIMARY KEY (q, name, n)
);

-- Hashes cannot be compressed.
ALTER TABLE key_sets ALTER COLUMN members SET STORAGE EXTERNAL;

CREATE INDEX key_sets_expiry ON key_sets ((q + 0), expires_at);

-- enqueue_batch(queue, now, key set, batch number, keys, fields as for enqueue()) -> one row: whether the number is taken,
-- and the statuses, NULL if each is `queued`. If the number is taken, nothing was enqueued.
-- The row of the key set comes first. So of two writers with the same number, the second waits here until the first one's
-- jobs are committed, and then finds the number taken.
CREATE FUNCTION enqueue_batch(
    queue text, manual bigint, set_name text, number integer, keys bytea, plain boolean, ids text[], payloads bytea[],
    priorities smallint[], whens bigint[], hows integer[], attributes text[], job_keys text[],
    OUT taken boolean, OUT statuses text[]
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint := tick(manual);
BEGIN
    INSERT INTO key_sets (q, name, n, members, expires_at)
    VALUES (qu.q, set_name, number, keys, now_ms + qu.request_key_age) ON CONFLICT DO NOTHING;
    taken := NOT FOUND;
    IF taken THEN
        RETURN;
    END IF;
    SELECT e.statuses INTO enqueue_batch.statuses
    FROM enqueue(queue, manual, plain, ids, payloads, priorities, whens, hows, attributes, NULL, NULL, job_keys, NULL, NULL) e;
    IF enqueue_batch.statuses IS NOT NULL THEN
        UPDATE key_sets k SET statuses = enqueue_batch.statuses WHERE k.q = qu.q AND k.name = set_name AND k.n = number;
    END IF;
END $$;

-- prune(queue, most, now): as in 0027_traces.sql, and removes expired batches of key sets. Each counts as one key.
CREATE OR REPLACE FUNCTION prune(
    queue text, most integer, manual bigint, OUT outcomes bigint, OUT keys bigint, OUT told bigint
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    horizon_now xid8 := pg_snapshot_xmin(pg_current_snapshot());
    word text;
    found_some bigint;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    outcomes := 0;
    FOREACH word IN ARRAY '{completed,failed,cancelled}'::text[] LOOP
        found_some := prune_ended(qu, word, most - outcomes, now_ms, horizon_now);
        outcomes := outcomes + found_some;
    END LOOP;
    PERFORM prune_ended(qu, 'forgotten', most, now_ms, horizon_now);
    DELETE FROM traces WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM traces WHERE q = qu.q AND horizon < horizon_now
        ORDER BY n LIMIT 10000 FOR UPDATE SKIP LOCKED));
    DELETE FROM request_keys WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM request_keys WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at LIMIT most - outcomes FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS keys = ROW_COUNT;
    DELETE FROM key_sets WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM key_sets WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at LIMIT most - outcomes - keys FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS found_some = ROW_COUNT;
    keys := keys + found_some;
    told := trim_events(qu, now_ms);
    PERFORM prune_limits(qu, most, now_ms);
END $$;
