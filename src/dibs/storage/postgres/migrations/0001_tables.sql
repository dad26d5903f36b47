-- The tables: queues, live jobs, outcomes, leases, request keys, the event log, and the state of limits.
--
-- All tables are in one schema. An id of a queue has at most one row in `live` (its current job, with the successor
-- in the same row) and at most one row in `ended` (its outcome). Ids and names are compared byte by byte
-- (COLLATE "C"). Times are ms since the epoch. Only dibs writes to the tables, so they have keys and no further
-- constraints: each job would pay for checking them. The functions that read and write them are in functions/.

-- The applied migrations. Opening the storage reads this table first. `functions` of the latest one is a hash of the
-- files in functions/ that this schema has.
CREATE TABLE migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    functions text
);

-- The source of the numbers of jobs: seq (order), revision (enqueue) and fence (claim). Why not a row with a counter:
-- an update locks the row until commit, a sequence does not.
CREATE SEQUENCE numbers AS bigint MINVALUE 0 START 0;

-- The latest time of any step, in ms. tick() reads it, so that the clock of the storage never steps back.
CREATE SEQUENCE seen AS bigint MINVALUE 0 START 0;

-- The ms by which the time of the storage is ahead of the server's clock: 0 for a right clock. A clock that was ahead
-- once does not stop the time. src/dibs/storage/clock.py has the same rule.
CREATE SEQUENCE lead AS bigint MINVALUE 0 START 0;

-- The incarnation that drew the latest numbers, as incarnation_now() returned it.
CREATE SEQUENCE incarnation AS bigint MINVALUE 0 START 0;

-- The us by which the first number of this incarnation was ahead of the time.
CREATE SEQUENCE ahead AS bigint MINVALUE 0 START 0;

-- Has no rows: a function that sets a sequence locks it. A role needs UPDATE or DELETE on it.
CREATE TABLE number_lock ();

-- A limit on how often runs start: `starts` in `per` ms, after a first burst of `burst` at once.
CREATE TYPE start_rate AS (starts bigint, per bigint, burst bigint);

CREATE TABLE queues (
    q integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    paused boolean NOT NULL DEFAULT false,
    max_active bigint,
    retention jsonb NOT NULL DEFAULT '{}',
    log_level text NOT NULL DEFAULT 'runs',
    log_age bigint NOT NULL DEFAULT 86400000,
    log_bytes bigint NOT NULL DEFAULT 67108864,
    request_key_age bigint NOT NULL DEFAULT 3600000,
    -- The number of the last log entry that was trimmed.
    trimmed bigint NOT NULL DEFAULT 0,
    -- The times until which a client listens for work, for events and for ends of ids. notify_waits() sends no
    -- notification after them. A new queue starts with a minute, because a client may wait for its first job.
    work_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    events_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    ids_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    fail_handler boolean NOT NULL DEFAULT false,
    log_results integer NOT NULL DEFAULT 0,
    per_key bigint,
    rate start_rate,
    key_rate start_rate,
    -- The time until which a client listens for progress.
    progress_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    -- True from the first job that a key holds back until a claim without limits by key finds none any more.
    has_held_back boolean NOT NULL DEFAULT false,
    max_waiting bigint,
    when_full text NOT NULL DEFAULT 'refuse',
    -- True from the first output of a run. The ends of a queue without output do not look for any.
    has_output boolean NOT NULL DEFAULT false,
    fair boolean NOT NULL DEFAULT false,
    -- The number of starts in a turn by key.
    shares jsonb NOT NULL DEFAULT '{}'
);

-- A row for each queue that has had a `max_waiting`. An enqueue to such a queue locks it before it counts the waiting jobs.
-- Why not the row of the queue: claims with limits lock that one, and an open transaction of a caller may hold this one long.
CREATE TABLE bounds (
    q integer PRIMARY KEY
);

-- The successor of an active job: the enqueues of its id that arrived during its run, merged into one (contract 3,
-- the fold law).
CREATE TYPE successor AS (
    payload bytea,
    attributes json,
    priority smallint,
    overrides json,
    retention jsonb,
    -- True if the data above also replaces the data of the current job when its run is retried or released.
    replaces boolean,
    -- The start time of the successor when the run ends. If the run is retried or released instead, the start time of
    -- its job is moved to the range `lo` to `hi`.
    run_at bigint,
    lo bigint,
    hi bigint,
    resets boolean,
    enqueued_at bigint,
    seq bigint,
    first bigint,
    revision bigint,
    enqueues integer,
    key text COLLATE "C",
    -- False while all merged requests are update-only. Such a successor has run_at and seq 0, and makes no job when its
    -- run ends.
    creates boolean
);

-- A requested job. `how` encodes its on_conflict in bits: 3 is the rule for run_at (0 always, 1 never, 2 later, 3
-- earlier), 4 keeps the data, 8 keeps the counts, 16 rejects, 32 also rejects if a failed outcome is kept, 64 marks
-- an update-only request, which leaves an id without a live job unchanged, 128 supersedes the active run, and 256 wakes
-- a parked job (with rule 1).
CREATE TYPE request AS (
    id text,
    payload bytea,
    priority smallint,
    attributes json,
    overrides json,
    retention jsonb,
    run_at bigint,
    how integer,
    key text
);

-- A claim leaves its jobs in the line (the index live_line), so that it changes no index entry: Postgres updates a row
-- without new index entries (HOT) if no indexed column changes and the page has room. The fill factor leaves that room.
-- No index and no condition of one may name a column that a claim changes (fence, claimed_at, lease, holder, attempts).
-- Later claims begin behind the active jobs, see `marks`.
CREATE TABLE live (
    q integer NOT NULL,
    -- Before the first column of variable size: each claim compares the columns of all conditions of indexes, and behind
    -- `id` these three took 0.2 us of a claimed job.
    retries integer NOT NULL DEFAULT 0,
    stalls integer NOT NULL DEFAULT 0,
    timeouts integer NOT NULL DEFAULT 0,
    id text COLLATE "C" NOT NULL,
    -- w: waiting, or active under a lease if it has a fence; k: waiting, held back by its key, or in a queue whose keys
    -- take turns; h: active, handed off
    state "char" NOT NULL,
    priority smallint NOT NULL,
    run_at bigint NOT NULL,
    seq bigint NOT NULL,
    first bigint NOT NULL,
    revision bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    enqueues integer NOT NULL DEFAULT 1,
    attempts integer NOT NULL DEFAULT 0,
    payload bytea NOT NULL,
    attributes json,
    overrides json,
    retention jsonb,
    error json,
    origin json,
    -- The columns from here to `progress` are NULL while the job waits.
    fence bigint,
    claimed_at bigint,
    lease uuid,
    holder text,
    cancel_requested boolean,
    progress json,
    next successor,
    -- Revision ranges of successors that were cancelled during the life of this row: first, last, first, last, ...
    dropped bigint[],
    key text COLLATE "C",
    -- The bytes that a run stored for later runs of the job.
    memo bytea,
    -- The key of a job that is active under a lease.
    busy_key text COLLATE "C",
    PRIMARY KEY (q, id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The order of claims, for the jobs in the line and for those that keys hold back. A claim reads it from the front of each
-- priority in use. The condition keeps the planner from finding single ids in it, see ended_expiry.
CREATE INDEX live_line ON live (q, state, priority DESC, run_at, seq) WHERE state IN ('w', 'k');
-- The handed-off jobs, and the retrying ones with their later runs. One index for both, because each index costs every
-- enqueue.
CREATE INDEX live_returned ON live (q, state, id) WHERE state = 'h' OR greatest(retries, stalls, timeouts) > 0;
CREATE INDEX live_asked ON live (q, id) WHERE cancel_requested;
CREATE INDEX live_blocked ON live (q, id) WHERE (next).seq IS NOT NULL;
-- The jobs that each key holds back in the order of claims. Why (q + 0) in two of these indexes: see ended_expiry.
CREATE INDEX live_held_back ON live ((q + 0), (coalesce(key, '')), priority DESC, run_at, seq) WHERE state = 'k';
-- The runs under leases of each key.
CREATE INDEX live_keyed ON live ((q + 0), busy_key) WHERE busy_key IS NOT NULL;

-- The claims under a lease, one row for each call and priority: the jobs of the lease are found by them. A claim took
-- jobs from (first_run_at, first_seq) to (last_run_at, last_seq), and other claims may have jobs there, too. renew()
-- deletes a row whose jobs are no longer active.
CREATE TABLE claims (
    q integer NOT NULL,
    lease uuid NOT NULL,
    n bigint NOT NULL,
    priority smallint NOT NULL,
    first_run_at bigint NOT NULL,
    first_seq bigint NOT NULL,
    last_run_at bigint NOT NULL,
    last_seq bigint NOT NULL,
    PRIMARY KEY (q, lease, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The place (run_at, seq) where claims of a priority begin to read the line: no waiting job is below it. Without it,
-- each claim steps over the index entries of all jobs that were claimed since the oldest snapshot of the database:
-- 120,000 of them take 19 ms. Rows are only added and deleted, and read from the highest `n`, so a reader meets no dead
-- row. Kinds: c: claims begin here; l: a job came to wait below that place, and claims begin here if it is lower; p:
-- the proposal of a higher place, which only writers of waiting jobs read; o: `writer`, a transaction that was open when
-- the start rose, may have made a job wait from this place on, and claims begin here once it has committed. In another
-- `incarnation` of the server or the schema, as after a restored dump, the id of the writer means nothing, and claims
-- begin here at once. See functions/lines.sql.
CREATE TABLE marks (
    q integer NOT NULL,
    priority smallint NOT NULL,
    n bigint NOT NULL,
    kind "char" NOT NULL,
    run_at bigint NOT NULL,
    seq bigint NOT NULL,
    writer xid8,
    incarnation bigint
);

CREATE UNIQUE INDEX marks_newest ON marks (q, priority DESC, n DESC);

CREATE TABLE ended (
    q integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    -- completed, failed or cancelled; forgotten marks a removed id, see begin_live()
    kind text NOT NULL,
    fence bigint NOT NULL,
    first bigint NOT NULL,
    revision bigint NOT NULL,
    ended_at bigint NOT NULL,
    -- NULL for an outcome that never expires.
    expires_at bigint,
    -- Every transaction that ran when the job ended has a lower id. prune() keeps the row while one of them runs,
    -- because it may have read the id as live.
    horizon xid8 NOT NULL,
    result bytea,
    error json,
    enqueues integer NOT NULL,
    enqueued_at bigint NOT NULL,
    run_at bigint NOT NULL,
    claimed_at bigint,
    holder text,
    attempts integer NOT NULL,
    retries integer NOT NULL,
    stalls integer NOT NULL,
    timeouts integer NOT NULL,
    -- The data of the job; NULL unless the retention keeps it.
    payload bytea,
    priority smallint,
    attributes json,
    overrides json,
    retention jsonb,
    origin json,
    dropped bigint[],
    key text COLLATE "C",
    memo bytea,
    -- The last progress that the run reported.
    progress json,
    PRIMARY KEY (q, id)
);

-- The answer to a request: the columns of its row in `enqueue`, `was` as `found`, and
--
-- - `logged`: the events to log
-- - `left_room`: the number of new jobs that max_waiting still allows
-- - `repeated`, `first_id`: true for a known request_key, and the id of its first request
-- - `over`, `before`: true if the request ended a run, and the outcome of the id before that end
CREATE TYPE admission AS (
    status text,
    was text,
    first bigint,
    revision bigint,
    logged text[],
    left_room bigint,
    repeated boolean,
    first_id text,
    over boolean,
    before ended
);

-- A row of enqueue().
CREATE TYPE enqueued AS (
    statuses text[],
    founds text[],
    firsts bigint[],
    revisions bigint[],
    repeats boolean[],
    first_ids text[],
    place integer,
    kept ended
);

-- For prune() and counts(). Why (q + 0) instead of q: with q, the planner uses this index to find single ids when it
-- plans while the table is empty, and the session keeps the plan. Reading 100 ids of a queue with 7,000 then took
-- 540 ms.
CREATE INDEX ended_expiry ON ended ((q + 0), kind, expires_at);

-- Ids whose runs ended without a row of `ended`, as hashes, for enqueues that run at the same time: see begin_live().
-- One row for each step. `n` is above the fences of these runs. prune() keeps a row while a transaction runs that ran
-- when the jobs ended; each of these transactions has a lower id than `horizon`.
CREATE TABLE traces (
    q integer NOT NULL,
    n bigint NOT NULL,
    horizon xid8 NOT NULL,
    hashes integer[] NOT NULL,
    PRIMARY KEY (q, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE leases (
    lease uuid NOT NULL,
    q integer NOT NULL,
    holder text NOT NULL,
    expires_at bigint NOT NULL,
    dropped boolean NOT NULL DEFAULT false,
    PRIMARY KEY (lease, q)
);

CREATE INDEX leases_expiry ON leases ((q + 0), expires_at);

-- The answers to requests with a request key, and the ids of these requests.
CREATE TABLE request_keys (
    q integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    status text NOT NULL,
    found text NOT NULL,
    first bigint NOT NULL,
    revision bigint NOT NULL,
    expires_at bigint NOT NULL,
    id text COLLATE "C",
    PRIMARY KEY (q, key)
);

CREATE INDEX request_keys_expiry ON request_keys ((q + 0), expires_at);

-- The request keys of large writes are packed: one row for each batch instead of one for each key, because a row of
-- `request_keys` with its two index entries took as much CPU time of the server as the job itself. A key set belongs to
-- one writer, which writes one batch after the other. `n` counts the batches from 1.
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

-- The event log. An entry holds the events of one step as a JSON list; each event is a list of the fields of
-- dibs.model.events.LogEvent. Readers see the entries in the order of `n`, up to shown_until().
CREATE TABLE events (
    q integer NOT NULL,
    n bigint NOT NULL,
    at bigint NOT NULL,
    count integer NOT NULL,
    packed text NOT NULL,
    PRIMARY KEY (q, n)
);

-- The clock of each key, in us, and of the queue itself, which has the key ''. dibs.model.rates has the arithmetic.
-- Only claims and configure() write it, under their lock on the row of the queue.
CREATE TABLE clocks (
    q integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    clock bigint NOT NULL,
    -- The first ms in which the clock allows a start.
    opens bigint NOT NULL,
    -- True if jobs that the key holds back wait for `opens`.
    waits boolean NOT NULL DEFAULT false,
    PRIMARY KEY (q, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX clocks_opening ON clocks ((q + 0), waits, opens);

-- Keys that the next claim looks at again. It has no unique index, so that no settle waits for another.
CREATE TABLE freed (
    q integer NOT NULL,
    key text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX freed_queue ON freed (q);

-- The keys with waiting jobs of each queue with `fair`, and with the key '' its jobs without a key. Only claims and
-- configure() write it, under their lock on the row of the queue. See functions/turns.sql.
CREATE TABLE turns (
    q integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- The key with the lowest place is next; NULL for a key that left, until its jobs are looked for.
    place bigint,
    -- The number of starts since the turn began.
    starts integer NOT NULL,
    -- The number of its jobs in the state k.
    waiting bigint NOT NULL,
    -- The priority of the job that a claim takes first; NULL if it may take none.
    top smallint,
    -- The time at which a job of a higher priority falls due, or the clock of the key allows a start.
    wakes_at bigint,
    PRIMARY KEY (q, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX turns_order ON turns (q, top DESC, place) WHERE top IS NOT NULL;
CREATE INDEX turns_waking ON turns ((q + 0), wakes_at) WHERE wakes_at IS NOT NULL;

-- The changes of the numbers of waiting jobs of keys that no claim has read yet, in queues with `fair`. A step appends, so
-- that it waits for no turn.
CREATE TABLE turn_changes (
    q integer NOT NULL,
    -- The order of the changes. A key gets it as its place if it joins the others.
    n bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    change bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX turn_changes_order ON turn_changes (q, n);

-- The costs of settled runs that charge_costs() has not charged yet. A settle appends, so that it waits for no clock.
CREATE TABLE costs (
    q integer NOT NULL,
    -- The order of the settlements of one ms.
    n bigint NOT NULL,
    -- The key of the run; NULL for none.
    key text COLLATE "C",
    -- The time of the settlement, in ms.
    at bigint NOT NULL,
    -- In thousandths of a start.
    cost bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX costs_queue ON costs (q);

-- The output of ids, a row for each report, see functions/output.sql. The oldest row of an id may have lost its first
-- chunks to the bound, or all of them: its last removed chunk is what a reader has missed.
CREATE TABLE output (
    q integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    -- The `first` of the job or the outcome to which the chunks belong. It differs from the `first` of the report only
    -- after retry_failed().
    owner bigint NOT NULL,
    -- The number of its chunks that were removed.
    removed integer NOT NULL DEFAULT 0,
    -- The bytes of its other chunks, with 64 more for each.
    size bigint NOT NULL,
    -- The sum of the sizes of all reports of the id up to this one, when they were new. So the bytes of an id are a
    -- difference of two rows.
    total bigint NOT NULL,
    at bigint NOT NULL,
    attempt integer NOT NULL,
    fence bigint NOT NULL,
    first bigint NOT NULL,
    revision bigint NOT NULL,
    holder text NOT NULL,
    chunks bytea[] NOT NULL,
    PRIMARY KEY (q, id, n)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
