-- Queues and their settings.

-- queue_of(name) -> the row of the queue; inserts it if the queue is new.
CREATE OR REPLACE FUNCTION queue_of(wanted text) RETURNS queues LANGUAGE plpgsql AS $$
DECLARE
    found_queue queues;
BEGIN
    LOOP
        SELECT * INTO found_queue FROM queues WHERE name = wanted;
        IF FOUND THEN
            RETURN found_queue;
        END IF;
        INSERT INTO queues (name) VALUES (wanted) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- know_queues(names): insert the rows of new queues. Called in a separate, short transaction: a row that a long
-- transaction inserts would block every other first enqueue to the queue until that transaction ends.
CREATE OR REPLACE FUNCTION know_queues(names text[]) RETURNS void LANGUAGE plpgsql {pinned} AS $$
DECLARE
    wanted text;
BEGIN
    FOR wanted IN SELECT u.name FROM unnest(names) AS u (name) ORDER BY u.name COLLATE "C" LOOP
        PERFORM queue_of(wanted);
    END LOOP;
END $$;

-- know_fail_queue(queue) -> the setting fail_handler of a queue. If it is true, inserts the row of the fail queue, in a
-- separate transaction like know_queues().
CREATE OR REPLACE FUNCTION know_fail_queue(queue text) RETURNS boolean LANGUAGE plpgsql {pinned} AS $$
DECLARE
    handled boolean := coalesce((SELECT fail_handler FROM queues WHERE name = queue), false);
BEGIN
    IF handled AND right(queue, 5) <> '!fail' THEN
        PERFORM queue_of(queue || '!fail');
    END IF;
    RETURN handled;
END $$;

-- configure(queue, patch, now, most shares) -> the settings after the change. The keys of `patch` are the settings to
-- change. If the shares would be more than `most_shares`, nothing changes, and the answer has them all.
CREATE OR REPLACE FUNCTION configure(queue text, patch jsonb, manual bigint, most_shares integer DEFAULT 1000) RETURNS queues
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    before queues := queue_of(queue);
    after queues;
    now_ms bigint := tick(manual);
    logged text[] := '{}';
    merged_shares jsonb;
BEGIN
    -- A change of `fair` waits for the steps of begin_fair_step(), also in open transactions of callers; another does not.
    IF patch ? 'fair' THEN
        PERFORM 1 FROM queues WHERE q = before.q FOR UPDATE;
    END IF;
    SELECT * INTO before FROM queues WHERE q = before.q FOR NO KEY UPDATE;
    merged_shares := jsonb_strip_nulls(before.shares || coalesce(patch -> 'shares', '{}'));
    IF (SELECT count(*) FROM jsonb_object_keys(merged_shares)) > most_shares THEN
        before.shares := merged_shares;
        RETURN before;
    END IF;
    UPDATE queues SET
        paused = coalesce((patch ->> 'paused')::boolean, paused),
        max_active = CASE WHEN patch ? 'max_active' THEN (patch ->> 'max_active')::bigint ELSE max_active END,
        retention = coalesce(patch -> 'retention', retention),
        log_level = coalesce(patch ->> 'log_level', log_level),
        log_age = coalesce((patch ->> 'log_age')::bigint, log_age),
        log_bytes = coalesce((patch ->> 'log_bytes')::bigint, log_bytes),
        request_key_age = coalesce((patch ->> 'request_key_age')::bigint, request_key_age),
        fail_handler = coalesce((patch ->> 'fail_handler')::boolean, fail_handler),
        log_results = coalesce((patch ->> 'log_results')::integer, log_results),
        per_key = CASE WHEN patch ? 'per_key' THEN (patch ->> 'per_key')::bigint ELSE per_key END,
        rate = CASE WHEN patch ? 'rate' THEN rate_of(patch -> 'rate') ELSE rate END,
        key_rate = CASE WHEN patch ? 'key_rate' THEN rate_of(patch -> 'key_rate') ELSE key_rate END,
        max_waiting = CASE WHEN patch ? 'max_waiting' THEN (patch ->> 'max_waiting')::bigint ELSE max_waiting END,
        when_full = coalesce(patch ->> 'when_full', when_full),
        fair = coalesce((patch ->> 'fair')::boolean, fair),
        shares = merged_shares
    WHERE q = before.q RETURNING * INTO after;
    PERFORM limits_changed(before, after, now_ms);
    IF after.max_waiting IS NOT NULL THEN
        INSERT INTO bounds (q) VALUES (after.q) ON CONFLICT DO NOTHING;
    END IF;
    IF 'all' IN (before.log_level, after.log_level) AND after IS DISTINCT FROM before THEN
        IF before.paused <> after.paused THEN
            logged := logged || queue_event(CASE WHEN after.paused THEN 'paused' ELSE 'resumed' END, '', now_ms);
        END IF;
        before.paused := after.paused;
        IF before IS DISTINCT FROM after THEN
            logged := logged || queue_event('configured', '', now_ms);
        END IF;
        PERFORM append_log(after.q, now_ms, logged);
    END IF;
    PERFORM notify_waits(after, true, cardinality(logged) > 0, NULL);
    RETURN after;
END $$;

-- limits_changed(before, after): called by configure(), which has locked the row of the queue. The clocks of a changed
-- rate begin again. After a change of a limit by key, the first job that it holds back of each key returns to the line,
-- where the next claim meets it; this costs the number of keys. So does a look at all keys that take turns.
CREATE OR REPLACE FUNCTION limits_changed(before queues, after queues, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
BEGIN
    IF after.fair THEN
        UPDATE turns t SET starts = 0 WHERE t.q = after.q
        AND coalesce(before.shares ->> t.key, '1') <> coalesce(after.shares ->> t.key, '1');
    END IF;
    IF after.rate IS DISTINCT FROM before.rate OR after.key_rate IS DISTINCT FROM before.key_rate THEN
        PERFORM charge_costs(before);
    END IF;
    IF after.rate IS DISTINCT FROM before.rate THEN
        DELETE FROM clocks WHERE q = after.q AND key = '';
    END IF;
    IF after.key_rate IS DISTINCT FROM before.key_rate THEN
        DELETE FROM clocks WHERE q = after.q AND key <> '';
    ELSIF (after.per_key, after.shares, after.fair) IS NOT DISTINCT FROM (before.per_key, before.shares, before.fair) THEN
        RETURN;
    END IF;
    DELETE FROM freed WHERE q = after.q;
    UPDATE queues SET has_held_back = true WHERE q = after.q AND NOT has_held_back AND limits_keys(after);
    IF after.fair <> before.fair THEN
        IF after.fair THEN
            PERFORM begin_turns(after);
        ELSE
            PERFORM end_turns(after);
        END IF;
    ELSIF after.fair THEN
        PERFORM look_at_keys(after, now_ms, ARRAY(SELECT key FROM turns WHERE q = after.q));
    ELSIF after.has_held_back THEN
        WITH RECURSIVE held_back AS (
            (SELECT coalesce(key, '') AS key FROM live WHERE q + 0 = after.q AND state = 'k' ORDER BY coalesce(key, '') LIMIT 1)
            UNION ALL
            SELECT (SELECT coalesce(l.key, '') FROM live l
                    WHERE l.q + 0 = after.q AND l.state = 'k' AND coalesce(l.key, '') > f.key
                    ORDER BY coalesce(l.key, '') LIMIT 1)
            FROM held_back f WHERE f.key IS NOT NULL)
        SELECT array_agg(key) INTO keys FROM held_back WHERE key IS NOT NULL;
        PERFORM bring_heads(after, keys);
    END IF;
END $$;

-- rate_of(json) -> a rate from an object with its fields; NULL for a JSON null.
CREATE OR REPLACE FUNCTION rate_of(given jsonb) RETURNS start_rate LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_typeof(given) = 'object'
        THEN ((given ->> 'starts')::bigint, (given ->> 'per')::bigint, (given ->> 'burst')::bigint)::start_rate END
$$;

-- queue_event(kind, id, now) -> an event about a queue, or about an id without a job; logged at level `all` only.
CREATE OR REPLACE FUNCTION queue_event(kind text, id text, now_ms bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_array(kind, id, now_ms)::text
$$;
