-- The layout of one place: run once, in the transaction that makes the file ours.
--
-- An id is one row of `slots`: all of it packed in `body`, and beside it what is asked for by index. Nothing
-- is decided in SQL. Times are ms since the epoch; numbers are drawn from `place`.

CREATE TABLE place (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    -- The highest time a step was made at: the clock never steps back.
    now INTEGER NOT NULL,
    -- The last seq, revision, fence or offset that was drawn.
    number INTEGER NOT NULL
) STRICT;

INSERT INTO place VALUES (1, 0, 0);

CREATE TABLE queues (
    queue TEXT PRIMARY KEY,
    settings BLOB NOT NULL,
    -- Drawn whenever a claim might find more than before.
    work INTEGER NOT NULL,
    -- Drawn whenever an id was removed.
    gone INTEGER NOT NULL,
    -- The bytes of the log, and the number of the last event that was trimmed.
    log_size INTEGER NOT NULL,
    trimmed INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE slots (
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    -- Of the current: w waiting, a active under a lease, h handed off; NULL without one.
    state TEXT CHECK (state IN ('w', 'a', 'h')),
    priority INTEGER,
    run_at INTEGER,
    seq INTEGER,
    lease TEXT,
    asked INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    -- Of the outcome: its kind and when it expires, NULL for never.
    ended TEXT,
    expires_at INTEGER,
    -- Drawn when something about the id came to an end: who waits for it looks again.
    changed INTEGER NOT NULL,
    -- A dibs.model.job.Slot as MessagePack.
    body BLOB NOT NULL,
    PRIMARY KEY (queue, id)
) STRICT;

-- The order of claims. One step down this index for each priority in use, then the due ones of it.
CREATE INDEX slots_in_line ON slots (queue, priority, run_at, seq) WHERE state = 'w';
CREATE INDEX slots_by_time ON slots (queue, run_at) WHERE state = 'w';
CREATE INDEX slots_held ON slots (queue, lease) WHERE lease IS NOT NULL;
CREATE INDEX slots_asked ON slots (queue, lease) WHERE asked = 1;
CREATE INDEX slots_expiring ON slots (queue, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE leases (
    queue TEXT NOT NULL,
    lease TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    PRIMARY KEY (queue, lease)
) STRICT, WITHOUT ROWID;

CREATE INDEX leases_expiring ON leases (queue, expires_at);

-- What an enqueue with a request_key was answered: a packed dibs.model.results.EnqueueResult.
CREATE TABLE request_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    answer BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX request_keys_expiring ON request_keys (queue, expires_at);

-- The logs: a packed dibs.model.events.Event a row, its number is its offset.
CREATE TABLE events (
    queue TEXT NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (queue, number)
) STRICT, WITHOUT ROWID;
