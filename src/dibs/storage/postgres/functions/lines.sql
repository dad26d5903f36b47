-- The start of each line, from which claims read it. A *line* has the waiting and active jobs of a queue and priority.
--
-- The start is exact: no waiting job that a claim can see is below it. A start that is too high would hide a job for
-- ever.
--
-- - Who makes a job wait writes its row, and then compares its place with the newest c or p in `marks`, see
--   note_start(). If the job is below, the writer adds an l. It locks `marks` first, so that its l is newer than each c
--   of a raise that does not see the lock.
-- - Who raises the start (a worker, after many claims) needs three steps. propose_starts() adds a p and commits. Then
--   raise_starts() reads from pg_locks which transactions have `live` open for writing: only these may have compared with
--   the old start. When none of them is left, it looks once more from the old start, and adds a c at the lower place.
-- - A transaction of a caller may stay open for hours. After a second, raise_starts() no longer waits: it adds an o for
--   each such transaction, at the old start, or at the begin of the line if it has locked `marks`. Its jobs come to be
--   seen by its commit alone, and from then on claims begin at the o. The next raise looks from there. Why not an
--   advisory lock for each line: any role that may connect can hold one.

-- note_start(queue, priority, run_at, seq): a job has begun to wait at this place. Called after its row was written. A
-- transaction with a snapshot does not see the newest rows of `marks`, so it adds an l in any case.
CREATE OR REPLACE FUNCTION note_start(wanted integer, level smallint, at bigint, after bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    m marks;
    s record;
    blind boolean := has_snapshot();
BEGIN
    SELECT * INTO m FROM marks k WHERE k.q = wanted AND k.priority = level AND k.kind IN ('c', 'p')
    ORDER BY k.q, k.priority DESC, k.n DESC LIMIT 1;
    IF m.q IS NULL AND NOT blind THEN
        INSERT INTO marks VALUES (wanted, level, nextval('numbers'), 'c', 0, 0);
    ELSIF blind OR (at, after) < (m.run_at, m.seq) THEN
        LOCK TABLE marks IN ROW EXCLUSIVE MODE;
        s := line_start(wanted, level);
        -- An l that is low enough need not be repeated: a raise that begins now sees this transaction. One that has
        -- proposed does not, and may remove that l.
        IF blind OR m.kind = 'p' OR (at, after) < (s.run_at, s.seq) THEN
            INSERT INTO marks VALUES (wanted, level, nextval('numbers'), 'l', at, after);
        END IF;
    END IF;
END $$;

-- note_starts(queue, priorities, times): note_start() for several jobs.
CREATE OR REPLACE FUNCTION note_starts(wanted integer, priorities smallint[], times bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM note_start(wanted, x.level, x.at, 0) FROM (
        SELECT u.level, min(u.at) AS at FROM unnest(priorities, times) AS u (level, at) GROUP BY u.level) x;
END $$;

-- lock_marks() -> true if no other transaction raises starts. Then none does until this one ends.
CREATE OR REPLACE FUNCTION lock_marks() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE marks IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- next_line(queue, above) -> the highest priority in use below `above`, where claims of it begin, and the next priority
-- in use below it; NULL for a priority that does not exist. It leaves out the closed lines, in which no job waits. As a
-- rule, it reads two rows.
CREATE OR REPLACE FUNCTION next_line(
    wanted integer, above integer, OUT priority smallint, OUT run_at bigint, OUT seq bigint, OUT below smallint
) LANGUAGE plpgsql AS $$
DECLARE
    newest "char";
BEGIN
    LOOP
        SELECT k.priority, k.kind, k.run_at, k.seq, (
            SELECT b.priority FROM marks b WHERE b.q = wanted AND b.priority < k.priority
            ORDER BY b.q, b.priority DESC, b.n DESC LIMIT 1)
        INTO priority, newest, run_at, seq, below
        FROM marks k WHERE k.q = wanted AND k.priority < coalesce(next_line.priority, above)
        ORDER BY k.q, k.priority DESC, k.n DESC LIMIT 1;
        IF newest <> 'c' THEN
            SELECT s.run_at, s.seq INTO run_at, seq FROM line_start(wanted, priority) s;
        END IF;
        EXIT WHEN priority IS NULL OR run_at < 9223372036854775807;
    END LOOP;
END $$;

-- line_start(queue, priority) -> where claims of a line begin: at the newest c, or at the lowest l after it, or o after it
-- whose transaction has committed. Postgres raises an error for the id of a transaction that it has not begun, so an o of
-- another incarnation is not asked about.
CREATE OR REPLACE FUNCTION line_start(wanted integer, level smallint, OUT run_at bigint, OUT seq bigint)
LANGUAGE plpgsql AS $$
DECLARE
    m marks;
BEGIN
    FOR m IN
        SELECT * FROM marks k WHERE k.q = wanted AND k.priority = level
        ORDER BY k.q, k.priority DESC, k.n DESC
    LOOP
        CONTINUE WHEN CASE WHEN m.kind = 'o' AND m.incarnation = incarnation_now('numbers'::regclass)
            THEN coalesce(pg_xact_status(m.writer), 'committed') <> 'committed' ELSE m.kind = 'p' END;
        IF run_at IS NULL OR (m.run_at, m.seq) < (run_at, seq) THEN
            run_at := m.run_at;
            seq := m.seq;
        END IF;
        EXIT WHEN m.kind = 'c';
    END LOOP;
END $$;

-- lines_of(queue) -> the rows of next_line(), from the highest priority.
CREATE OR REPLACE FUNCTION lines_of(
    wanted integer, OUT priority smallint, OUT run_at bigint, OUT seq bigint
) RETURNS SETOF record LANGUAGE plpgsql ROWS 2 AS $$
DECLARE
    w record;
BEGIN
    priority := 32767;
    LOOP
        w := next_line(wanted, priority);
        priority := w.priority;
        EXIT WHEN priority IS NULL;
        run_at := w.run_at;
        seq := w.seq;
        RETURN NEXT;
        EXIT WHEN w.below IS NULL;
    END LOOP;
END $$;

-- first_waiting(queue, priority, start) -> the place of the first waiting job of a line; the highest place if none
-- waits.
CREATE OR REPLACE FUNCTION first_waiting(
    wanted integer, level smallint, since bigint, after bigint, OUT run_at bigint, OUT seq bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT l.run_at, l.seq INTO run_at, seq FROM live l
    WHERE l.q = wanted AND l.state = 'w' AND l.priority = level AND (l.run_at, l.seq) >= (since, after) AND l.fence IS NULL
    ORDER BY l.run_at, l.seq LIMIT 1;
    IF NOT FOUND THEN
        run_at := 9223372036854775807;
        seq := 0;
    END IF;
END $$;

-- propose_starts(queues, now) -> the numbers of all proposals for these queues; NULL if `marks` is locked. A line
-- without due jobs is first proposed to begin at the present time, because its next job is due then. If it has none a
-- second later, it begins at its next job, or is closed. A line has one proposal at most, because writers compare with
-- the newest one only.
CREATE OR REPLACE FUNCTION propose_starts(names text[], manual bigint) RETURNS bigint[] LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := tick(manual);
    w record;
    place record;
    last_mark marks;
    proposals bigint[] := '{}';
BEGIN
    IF NOT lock_marks() THEN
        RETURN NULL;
    END IF;
    FOR w IN SELECT k.q, l.* FROM queues k, LATERAL lines_of(k.q) l WHERE k.name = ANY (names) LOOP
        SELECT * INTO last_mark FROM marks k WHERE k.q = w.q AND k.priority = w.priority AND k.kind IN ('c', 'p')
        ORDER BY k.q, k.priority DESC, k.n DESC LIMIT 1;
        IF last_mark.kind = 'p' THEN
            proposals := proposals || last_mark.n;
            CONTINUE;
        END IF;
        place := first_waiting(w.q, w.priority, w.run_at, w.seq);
        IF place.run_at > now_ms AND w.run_at > now_ms - 1000 THEN
            place.run_at := now_ms;
            place.seq := 0;
        END IF;
        IF (place.run_at, place.seq) > (w.run_at, w.seq) THEN
            proposals := proposals || nextval('numbers');
            INSERT INTO marks
            VALUES (w.q, w.priority, proposals[cardinality(proposals)], 'p', place.run_at, place.seq);
        END IF;
    END LOOP;
    RETURN proposals;
END $$;

-- open_writers(table) -> the other transactions that have a table of dibs open for writing: their virtual ids, and their
-- ids, NULL before their first write. A virtual id is not used twice.
CREATE OR REPLACE FUNCTION open_writers(wanted regclass) RETURNS TABLE (transaction text, writer xid8)
LANGUAGE sql VOLATILE AS $$
    SELECT l.virtualtransaction, (
        -- An id in pg_locks has 32 bits. The lowest is that of the transaction, the others are of its savepoints.
        SELECT min(x.id + CASE WHEN x.id - n.next > 2147483648 THEN -4294967296
                               WHEN n.next - x.id > 2147483648 THEN 4294967296 ELSE 0 END) FROM (
            SELECT (n.next >> 32 << 32) + t.transactionid::text::bigint AS id FROM pg_locks t
            WHERE t.locktype = 'transactionid' AND t.virtualtransaction = l.virtualtransaction
              AND t.mode = 'ExclusiveLock') x)::text::xid8
    FROM pg_locks l, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) n
    WHERE l.locktype = 'relation' AND l.relation = wanted AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.pid IS DISTINCT FROM pg_backend_pid()
$$;

-- raise_starts(queues, proposals, seen, patient) -> the transactions that the proposals still wait for; if there are none,
-- the starts have risen. NULL if another transaction writes `marks`. `proposals` is the answer of propose_starts(), after
-- its commit. `seen` NULL reads the open transactions, else it is the answer of the last call. Not `patient`: raise the
-- starts at once, and note the open transactions. Another call may have raised a line, and made a new proposal, in
-- between. So only the given proposals count, whose writers this caller has waited for, if they still exist.
CREATE OR REPLACE FUNCTION raise_starts(names text[], proposals bigint[], seen text[], patient boolean) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_variable
DECLARE
    left_over text[];
    writers xid8[];
    -- The transactions that have locked `marks`: their jobs may be anywhere in the line.
    low xid8[];
    p marks;
    w record;
    place record;
    fresh bigint;
    noted marks[];
BEGIN
    SELECT coalesce(array_agg(o.transaction), '{}'), coalesce(array_agg(o.writer), '{}') INTO left_over, writers
    FROM open_writers('live') o WHERE seen IS NULL OR o.transaction = ANY (seen);
    IF patient AND cardinality(left_over) > 0 THEN
        RETURN left_over;
    ELSIF NOT lock_marks() THEN
        RETURN NULL;
    END IF;
    -- The number of each c, before the look for writers of `marks`: an l of a later one has a higher number.
    fresh := nextval('numbers');
    low := ARRAY(SELECT o.writer FROM open_writers('marks') o);
    IF patient AND cardinality(low) > 0 THEN
        RETURN NULL;
    END IF;
    FOR p IN
        SELECT m.* FROM queues k JOIN marks m ON m.q = k.q WHERE k.name = ANY (names) AND m.n = ANY (proposals)
    LOOP
        w := line_start(p.q, p.priority);
        place := first_waiting(p.q, p.priority, w.run_at, w.seq);
        IF (place.run_at, place.seq) > (p.run_at, p.seq) THEN
            place.run_at := p.run_at;
            place.seq := p.seq;
        END IF;
        noted := ARRAY(SELECT m FROM marks m WHERE m.q = p.q AND m.priority = p.priority AND m.kind = 'o');
        DELETE FROM marks m WHERE m.q = p.q AND m.priority = p.priority AND m.n < fresh;
        INSERT INTO marks VALUES (p.q, p.priority, fresh, 'c', place.run_at, place.seq);
        -- A transaction that an earlier raise has noted keeps its place if it is lower.
        INSERT INTO marks
        SELECT p.q, p.priority, nextval('numbers'), 'o', x.place[1], x.place[2], x.writer,
               incarnation_now('numbers'::regclass) FROM (
            SELECT o.writer, CASE WHEN o.writer = ANY (low) THEN ARRAY[0, 0]::bigint[] ELSE least(
                ARRAY[w.run_at, w.seq],
                (SELECT min(ARRAY[b.run_at, b.seq]) FROM unnest(noted) b WHERE b.writer = o.writer)) END AS place
            FROM unnest(writers || low) AS o (writer) WHERE o.writer IS NOT NULL GROUP BY o.writer) x;
    END LOOP;
    RETURN '{}';
END $$;
