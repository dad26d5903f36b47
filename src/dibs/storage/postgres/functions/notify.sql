-- Notifications of waits, and the state of queues for a client that waits.

-- notify_waits(queue, work, logged, ids): notify listeners of new work, of log entries (`logged`) and of ended ids.
-- Postgres sends the notification at commit, and equal notifications once. Without a listening client it sends none,
-- because NOTIFY takes a lock at commit for which all writers of the database wait.
CREATE OR REPLACE FUNCTION notify_waits(qu queues, work boolean, logged boolean, ids text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    kinds text := '';
    named text := '';
BEGIN
    IF greatest(qu.work_until, qu.events_until, qu.ids_until) < clock_timestamp() THEN
        RETURN;
    END IF;
    IF work AND qu.work_until > clock_timestamp() THEN
        kinds := kinds || 'w';
    END IF;
    IF logged AND qu.events_until > clock_timestamp() THEN
        kinds := kinds || 'e';
    END IF;
    IF cardinality(ids) > 0 AND qu.ids_until > clock_timestamp() THEN
        kinds := kinds || 'i';
        named := to_json(ids)::text;
        IF octet_length(named) > 7000 THEN
            named := '';
        END IF;
    END IF;
    IF kinds <> '' THEN
        PERFORM pg_notify('{channel}', qu.q || ' ' || kinds || ' ' || named);
    END IF;
END $$;

-- watch(queues, kind, now) -> a row for each existing queue, for a client that waits for work, events, ids or progress.
-- Afterwards, changes of these queues send notifications for at least 30 s, at most a minute. `due` is true if a claim
-- would find a job. `unheard` is true if no client was known to listen before, so that a change may have happened
-- without a notification. A wait for progress also ends with a run, so it needs the notifications of both.
CREATE OR REPLACE FUNCTION watch(names text[], kind text, manual bigint)
RETURNS TABLE (
    name text, q integer, now_ms bigint, due boolean, next_due bigint, ends_at bigint, hidden boolean,
    unheard boolean
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    ahead record;
    heard timestamptz;
    shown bigint;
    until timestamptz := clock_timestamp() + interval '1 minute';
BEGIN
    now_ms := tick(manual);
    IF kind = 'events' THEN
        shown := shown_until();
    END IF;
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY k.q LOOP
        heard := CASE kind WHEN 'work' THEN qu.work_until WHEN 'events' THEN qu.events_until
                 WHEN 'ids' THEN qu.ids_until ELSE least(qu.progress_until, qu.ids_until) END;
        unheard := heard < clock_timestamp();
        IF heard < clock_timestamp() + interval '30 seconds' THEN
            UPDATE queues k SET
                work_until = CASE kind WHEN 'work' THEN until ELSE work_until END,
                events_until = CASE kind WHEN 'events' THEN until ELSE events_until END,
                ids_until = CASE WHEN kind IN ('ids', 'progress') THEN until ELSE ids_until END,
                progress_until = CASE kind WHEN 'progress' THEN until ELSE progress_until END
            WHERE k.q = qu.q;
        END IF;
        name := qu.name;
        q := qu.q;
        due := false;
        next_due := NULL;
        IF kind = 'work' AND NOT qu.paused THEN
            ahead := look_ahead(qu, now_ms);
            due := ahead.due AND (qu.max_active IS NULL OR qu.max_active > (
                SELECT count(*) FROM active_runs(qu.q, NULL)));
            next_due := ahead.next_due;
        ELSIF kind = 'events' THEN
            ends_at := (SELECT max(e.n) FROM events e WHERE e.q = qu.q AND e.n <= shown);
            hidden := EXISTS (SELECT 1 FROM events e WHERE e.q = qu.q AND e.n > shown);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
