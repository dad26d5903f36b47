-- The fold law (contract 3): requests merged into a successor, and ranges of revisions.

-- moved(old, rule, new) -> the start time of a waiting job after an update, by the rule for run_at.
CREATE OR REPLACE FUNCTION moved(old bigint, rule integer, new bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE rule WHEN 0 THEN new WHEN 1 THEN old WHEN 2 THEN greatest(old, new) ELSE least(old, new) END
$$;

-- folded(successor, request, at, now, number) -> the successor with one more request merged into it, or a new successor
-- if it is NULL. `lo` and `hi` change as in dibs.model.fold.
CREATE OR REPLACE FUNCTION folded(s successor, r request, at bigint, now_ms bigint, number bigint) RETURNS successor
LANGUAGE plpgsql AS $$
DECLARE
    rule integer := r.how & 3;
    makes_job boolean := r.how & 64 = 0;
BEGIN
    IF s.revision IS NULL THEN
        RETURN (r.payload, CASE WHEN makes_job THEN r.attributes END, r.priority, r.overrides, r.retention, r.how & 4 = 0,
                CASE WHEN makes_job THEN at ELSE 0 END,
                CASE WHEN rule IN (0, 2) THEN at END, CASE WHEN rule IN (0, 3) THEN at END,
                r.how & 8 = 0, now_ms, CASE WHEN makes_job THEN number ELSE 0 END, number, number, 1,
                r.key, makes_job)::successor;
    END IF;
    IF makes_job AND s.creates IS FALSE THEN
        s := set_data(s, r);
        s.creates := true;
        s.run_at := at;
        s.seq := number;
        s.enqueued_at := now_ms;
    END IF;
    IF r.how & 4 = 0 THEN
        s := set_data(s, r);
        s.replaces := true;
    END IF;
    IF s.creates IS NOT FALSE THEN
        s.run_at := moved(s.run_at, rule, at);
    END IF;
    IF rule = 0 THEN
        s.lo := at;
        s.hi := at;
    ELSIF rule = 2 THEN
        s.lo := greatest(s.lo, at);
        s.hi := CASE WHEN s.hi IS NULL THEN NULL ELSE greatest(s.hi, at) END;
    ELSIF rule = 3 THEN
        s.lo := CASE WHEN s.lo IS NULL THEN NULL ELSE least(s.lo, at) END;
        s.hi := least(s.hi, at);
    END IF;
    s.resets := s.resets OR r.how & 8 = 0;
    s.revision := number;
    s.enqueues := s.enqueues + 1;
    RETURN s;
END $$;

-- join_range(job) -> the job as it ends. A successor that makes no job adds its revisions and its number of requests to
-- the job, and is removed.
CREATE OR REPLACE FUNCTION join_range(j live) RETURNS live LANGUAGE plpgsql AS $$
BEGIN
    IF (j.next).creates IS FALSE THEN
        j.revision := (j.next).revision;
        j.enqueues := j.enqueues + (j.next).enqueues;
        j.next := NULL;
    END IF;
    RETURN j;
END $$;

-- drop_next(queue, job, now) -> the events to log. Removes the successor. The revisions of its enqueues become a
-- dropped range, which remembers that they were cancelled (contract 1, When an enqueue is done). The range is joined to
-- the latest one if no revision of the current lies between the two. Otherwise the ranges inside the current or the
-- outcome stay, at most eight.
CREATE OR REPLACE FUNCTION drop_next(qu queues, j live, now_ms bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    o ended;
    ranges bigint[];
    kept bigint[] := '{}';
    i integer;
BEGIN
    SELECT * INTO o FROM ended WHERE q = j.q AND id = j.id FOR UPDATE;
    ranges := coalesce(o.dropped, '{}') || coalesce(j.dropped, '{}');
    IF cardinality(ranges) > 0 AND j.revision < ranges[cardinality(ranges) - 1] THEN
        kept := ranges;
        kept[cardinality(kept)] := (j.next).revision;
    ELSE
        FOR i IN 1 .. cardinality(ranges) BY 2 LOOP
            IF j.first <= ranges[i] AND ranges[i + 1] <= j.revision
               OR o.first <= ranges[i] AND ranges[i + 1] <= o.revision
                  AND (o.expires_at IS NULL OR o.expires_at > now_ms) THEN
                kept := kept || ranges[i] || ranges[i + 1];
            END IF;
        END LOOP;
        kept := kept || (j.next).first || (j.next).revision;
    END IF;
    UPDATE ended SET dropped = NULL WHERE q = j.q AND id = j.id AND dropped IS NOT NULL;
    UPDATE live SET next = NULL, dropped = latest_dropped(kept) WHERE q = j.q AND id = j.id;
    IF qu.log_level = 'off' THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY[next_event('cancelled', j.id, j.next, now_ms, now_ms)];
END $$;

-- latest_dropped(ranges) -> the newest eight of the ranges.
CREATE OR REPLACE FUNCTION latest_dropped(ranges bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(ranges) > 16 THEN ranges[cardinality(ranges) - 15:] ELSE ranges END
$$;
