-- The tables: queues, live jobs, outcomes, leases, request keys and the event log.
--
-- All tables are in one schema. An id of a queue has at most one row in `live` (its current job, with the successor
-- in the same row) and at most one row in `ended` (its outcome). Ids and names are compared byte by byte
-- (COLLATE "C"). Times are ms since the epoch. Only dibs writes to the tables, so they have keys and no further
-- constraints: each job would pay for checking them.

-- The applied migrations. Opening the storage reads this table first.
CREATE TABLE migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- The source of the numbers of jobs: seq (order), revision (enqueue) and fence (claim). Why not a row with a counter:
-- an update locks the row until commit, a sequence does not.
CREATE SEQUENCE numbers AS bigint MINVALUE 0 START 0;

-- The latest time of any step, in ms. tick() reads it, so that the clock of the storage never steps back.
CREATE SEQUENCE seen AS bigint MINVALUE 0 START 0;

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
    -- The times until which a client listens for work, for events and for ends of ids. ring() sends no
    -- notification after them. A new queue starts with a minute, because a client may wait for its first job.
    work_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    events_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    ids_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute'
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
    enqueues integer
);

CREATE TABLE live (
    q integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    -- w: waiting, a: active under a lease, h: handed off
    state "char" NOT NULL,
    priority smallint NOT NULL,
    run_at bigint NOT NULL,
    seq bigint NOT NULL,
    first bigint NOT NULL,
    revision bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    enqueues integer NOT NULL DEFAULT 1,
    attempts integer NOT NULL DEFAULT 0,
    retries integer NOT NULL DEFAULT 0,
    stalls integer NOT NULL DEFAULT 0,
    timeouts integer NOT NULL DEFAULT 0,
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
    PRIMARY KEY (q, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The order of claims. A claim reads it from the front of each priority in use.
CREATE INDEX live_line ON live (q, priority DESC, run_at, seq) WHERE state = 'w';
CREATE INDEX live_held ON live (q, lease) WHERE lease IS NOT NULL;
CREATE INDEX live_handed_off ON live (q, id) WHERE state = 'h';
CREATE INDEX live_blocked ON live (q, id) WHERE (next).seq IS NOT NULL;

CREATE TABLE ended (
    q integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    -- completed, failed or cancelled; forgotten marks a removed id, see admit() in 0004_enqueue.sql
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
    PRIMARY KEY (q, id)
);

-- For prune() and counts(). Why (q + 0) instead of q: with q, the planner uses this index to find single ids when it
-- plans while the table is empty, and the session keeps the plan. Reading 100 ids of a queue with 7,000 then took
-- 540 ms.
CREATE INDEX ended_expiry ON ended ((q + 0), kind, expires_at);

CREATE TABLE leases (
    lease uuid NOT NULL,
    q integer NOT NULL,
    holder text NOT NULL,
    expires_at bigint NOT NULL,
    dropped boolean NOT NULL DEFAULT false,
    PRIMARY KEY (lease, q)
);

CREATE INDEX leases_expiry ON leases ((q + 0), expires_at);

CREATE TABLE request_keys (
    q integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    status text NOT NULL,
    found text NOT NULL,
    first bigint NOT NULL,
    revision bigint NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (q, key)
);

CREATE INDEX request_keys_expiry ON request_keys ((q + 0), expires_at);

-- The event log. An entry holds the events of one step as a JSON list; each event is a list of the fields of
-- dibs.model.events.LogEvent. Readers see the entries in the order of `n`, up to shown_until() (0002_place.sql).
CREATE TABLE events (
    q integer NOT NULL,
    n bigint NOT NULL,
    at bigint NOT NULL,
    count integer NOT NULL,
    packed text NOT NULL,
    PRIMARY KEY (q, n)
);
