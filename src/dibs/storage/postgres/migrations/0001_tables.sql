-- What there is: queues, live jobs, outcomes, leases, request keys and the log of events.
--
-- Everything stands in one schema of its own. An id of a queue has at most one row in `live` (the current,
-- with its successor in the same row) and at most one in `ended` (its outcome). Ids and names are compared
-- byte by byte (COLLATE "C"). Times are ms since the epoch. What nobody but dibs writes has no constraints
-- beyond its keys: they would be paid for with every job.

-- Which migrations were applied; read before anything else by whoever opens the place.
CREATE TABLE migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- seq, revision and fence are drawn here. Drawing takes no lock that outlives it, so it is no hot row.
CREATE SEQUENCE numbers AS bigint MINVALUE 0 START 0;

-- The latest time that was seen, in ms, so that the clock of the place never steps back.
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
    -- How far the log was trimmed: the last entry that is gone.
    trimmed bigint NOT NULL DEFAULT 0,
    -- Until when somebody listens for work, events and ends: nobody is notified beyond.
    -- (A new queue: somebody may have waited for it to appear.)
    work_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    events_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute',
    ids_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute'
);

-- What was enqueued while an id was active: one list of updates, folded (contract 3, the fold law).
CREATE TYPE successor AS (
    payload bytea,
    attributes json,
    priority smallint,
    overrides json,
    retention jsonb,
    -- Whether the data above also replaces that of a run that comes back.
    replaces boolean,
    -- The reading for a run that ends, and the clamp for one that comes back.
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
    -- w waiting, a active under a lease, h handed off
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
    -- Only while active.
    fence bigint,
    claimed_at bigint,
    lease uuid,
    holder text,
    cancel_requested boolean,
    progress json,
    next successor,
    -- Ranges of successors that a cancel dropped while this row was there: first, last, first, last, ...
    dropped bigint[],
    PRIMARY KEY (q, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The line: a claim reads it from the front of each priority in use.
CREATE INDEX live_line ON live (q, priority DESC, run_at, seq) WHERE state = 'w';
CREATE INDEX live_held ON live (q, lease) WHERE lease IS NOT NULL;
CREATE INDEX live_handed_off ON live (q, id) WHERE state = 'h';
CREATE INDEX live_blocked ON live (q, id) WHERE (next).seq IS NOT NULL;

CREATE TABLE ended (
    q integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    -- completed, failed, cancelled; forgotten is only a trace, see admit() in 0004
    kind text NOT NULL,
    fence bigint NOT NULL,
    first bigint NOT NULL,
    revision bigint NOT NULL,
    ended_at bigint NOT NULL,
    -- NULL: kept for ever
    expires_at bigint,
    -- No transaction older than this one can have seen the id alive.
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
    -- What it was asked to do: all NULL unless retention says to keep it.
    payload bytea,
    priority smallint,
    attributes json,
    overrides json,
    retention jsonb,
    origin json,
    dropped bigint[],
    PRIMARY KEY (q, id)
);

-- For prune and for counts, and for nothing else: by (q + 0) no look at one id can be planned through it. While
-- the table is empty a planner thinks this index as good as the key, and a session keeps what it has planned:
-- 540 ms for a look at 100 ids among 7,000 of a queue.
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

-- One packed entry for what one step told: a JSON list of events, each a list as model.events.Event is.
-- Entries are in the order of n, and shown up to shown_until(), see 0002.
CREATE TABLE events (
    q integer NOT NULL,
    n bigint NOT NULL,
    at bigint NOT NULL,
    count integer NOT NULL,
    packed text NOT NULL,
    PRIMARY KEY (q, n)
);
