-- A request key remembers the id of its request. A repeat with another id, as a caller without an id of its own makes it,
-- then gets an answer about a job that exists.

-- NULL for a key that was stored before this migration.
ALTER TABLE request_keys ADD COLUMN id text COLLATE "C";

-- The type of the result changes, which CREATE OR REPLACE does not allow.
DROP FUNCTION enqueue(
    text, bigint, boolean, text[], bytea[], smallint[], bigint[], integer[], text[], text[], text[], text[], boolean[]);

-- enqueue(queue, now, one array per field) -> one row of arrays in the order of the requests, and one more row for
-- each existing outcome that a request wants. `statuses` NULL means: all queued as new jobs, with first = revision.
-- `plain` says that no id is repeated and that no request has Reject, request_key or want_outcome. A field that is
-- NULL in every request may be passed as a NULL array. `repeats` says which requests repeat a request_key, and
-- `first_ids` has the id of the first request with that key; NULL for a key without id.
CREATE FUNCTION enqueue(
    queue text, manual bigint, plain boolean, ids text[], payloads bytea[], priorities smallint[],
    whens bigint[], hows integer[], attributes text[], overrides text[], retentions text[],
    keys text[], wants boolean[]
) RETURNS TABLE (
    statuses text[], founds text[], firsts bigint[], revisions bigint[], repeats boolean[],
    first_ids text[], place integer, kept ended
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint;
    r request;
    known request_keys;
    answer record;
    told text[] := '{}';
    i integer;
    -- Assigns a transaction id. prune() keeps rows of ids that ended during a running transaction, and finds running
    -- transactions by their ids.
    myself xid8 := pg_current_xact_id();
BEGIN
    now_ms := tick(manual);
    IF plain THEN
        revisions := enqueue_new(qu, now_ms, ids, payloads, priorities, whens, attributes, overrides,
                                 retentions);
        IF revisions IS NOT NULL THEN
            IF qu.log_level = 'all' THEN
                told := notes_of(qu, 'queued', ids, now_ms);
                PERFORM tell(qu, now_ms, told);
            END IF;
            PERFORM ring(qu, true, cardinality(told) > 0, NULL);
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    FOR i IN 1 .. cardinality(ids) LOOP
        IF keys[i] IS NOT NULL THEN
            -- Of two concurrent requests with the same new key, the second waits here for the first one's answer.
            INSERT INTO request_keys VALUES (qu.q, keys[i], '', '', 0, 0, 0) ON CONFLICT DO NOTHING;
            SELECT * INTO known FROM request_keys WHERE q = qu.q AND key = keys[i] FOR UPDATE;
            IF known.expires_at > now_ms THEN
                statuses[i] := known.status;
                founds[i] := known.found;
                firsts[i] := known.first;
                revisions[i] := known.revision;
                repeats[i] := true;
                first_ids[i] := known.id;
                CONTINUE;
            END IF;
        END IF;
        r := (ids[i], payloads[i], coalesce(priorities[i], 0), attributes[i], overrides[i], retentions[i],
              start_time(whens[i], now_ms), coalesce(hows[i], 0))::request;
        answer := admit(qu, now_ms, r);
        statuses[i] := answer.status;
        founds[i] := answer.was;
        firsts[i] := answer.first;
        revisions[i] := answer.revision;
        repeats[i] := false;
        first_ids[i] := NULL;
        told := told || answer.told;
        IF keys[i] IS NOT NULL THEN
            UPDATE request_keys SET status = answer.status, found = answer.was, first = answer.first,
                revision = answer.revision, expires_at = now_ms + qu.request_key_age, id = ids[i]
            WHERE q = qu.q AND key = keys[i];
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, NULL);
    RETURN NEXT;
    statuses := NULL;
    FOR i IN 1 .. coalesce(cardinality(wants), 0) LOOP
        IF wants[i] THEN
            place := i;
            SELECT e.* INTO kept FROM ended e
            WHERE e.q = qu.q AND e.id = ids[i] AND (e.expires_at IS NULL OR e.expires_at > now_ms);
            IF FOUND THEN
                RETURN NEXT;
            END IF;
        END IF;
    END LOOP;
END $$;
