-- The tables of one storage. Database._prepare runs these statements once, in the transaction that marks the
-- file.
--
-- A slot (everything known of one id) is one row of `slots`. Its `body` is the whole slot as MessagePack; the
-- other columns repeat the values that queries search by. All decisions about a job are made in Python. All
-- times are ms since the epoch. seq, revision, fence, offset and the numbers below come from one counter,
-- storage.number.

CREATE TABLE storage (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    -- The highest time of any step. It makes sure that the clock of the storage never steps back.
    now INTEGER NOT NULL,
    -- The last number drawn.
    number INTEGER NOT NULL,
    -- Ms by which `now` is ahead of the system's clock; 0 for a right clock.
    lead INTEGER NOT NULL DEFAULT 0,
    -- The inode of the file that drew the latest numbers. A copy of the file has another one.
    inode INTEGER NOT NULL,
    -- us by which the numbers are ahead of `now`; raised in a copy.
    ahead INTEGER NOT NULL
) STRICT;

INSERT INTO storage VALUES (1, 0, 0, 0, 0, 0);

CREATE TABLE queues (
    queue TEXT PRIMARY KEY,
    -- A dibs.model.requests.Settings as MessagePack.
    settings BLOB NOT NULL,
    -- A number drawn by each step after which a claim may find more jobs.
    work INTEGER NOT NULL,
    -- A number drawn by each step that removes an id.
    removal INTEGER NOT NULL,
    -- Size of the queue's log in bytes.
    log_bytes INTEGER NOT NULL,
    -- Number of the last event that was removed from the log; 0 before the first removal.
    trimmed INTEGER NOT NULL,
    -- A number drawn by each report of progress.
    reported INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE slots (
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    -- State of the current job: w waiting, a active under a lease, h handed off; NULL without a current job.
    state TEXT CHECK (state IN ('w', 'a', 'h')),
    priority INTEGER,
    run_at INTEGER,
    seq INTEGER,
    lease TEXT,
    -- 1 if the cancellation of the current run was requested.
    cancel_requested INTEGER NOT NULL,
    -- 1 if the id has a successor, which is blocked until the current run ends.
    blocked INTEGER NOT NULL,
    -- Kind of the outcome (completed, failed, cancelled), and the time at which it expires, NULL for never.
    outcome TEXT,
    expires_at INTEGER,
    -- A number drawn each time when a run of the id ends or an enqueue is cancelled. Waits for the id compare it
    -- with their token.
    ending INTEGER NOT NULL,
    -- A dibs.model.job.Slot as MessagePack.
    body BLOB NOT NULL,
    -- The key of the current job, to which the limits of the queue apply.
    key TEXT,
    -- 1 for a waiting job out of the order of claims: its key had no room when a claim met it, or the keys take turns.
    filed INTEGER NOT NULL DEFAULT 0,
    -- A number drawn each time when a run of the id reports progress.
    reported INTEGER NOT NULL DEFAULT 0,
    -- 1 for a waiting job that came back from a failed run.
    retrying INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, id)
) STRICT;

-- The order of claims: the query `priorities` finds the priorities in use, then `due` reads each in order. If the keys take
-- turns, `next_turn` finds the key instead, and its first job in the index slots_filed.
CREATE INDEX slots_claim_order ON slots (queue, filed, priority, run_at, seq) WHERE state = 'w';
CREATE INDEX slots_by_time ON slots (queue, run_at) WHERE state = 'w';
CREATE INDEX slots_filed ON slots (queue, key, priority DESC, run_at, seq) WHERE filed = 1;
CREATE INDEX slots_runs_of_key ON slots (queue, key) WHERE lease IS NOT NULL AND key IS NOT NULL;
CREATE INDEX slots_by_lease ON slots (queue, lease) WHERE lease IS NOT NULL;
CREATE INDEX slots_cancel_requested ON slots (queue, lease) WHERE cancel_requested = 1;
CREATE INDEX slots_expiring ON slots (queue, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE leases (
    queue TEXT NOT NULL,
    lease TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    -- 1 once drop() was called for the lease and some of its jobs are still active.
    dropped INTEGER NOT NULL,
    PRIMARY KEY (queue, lease)
) STRICT, WITHOUT ROWID;

CREATE INDEX leases_expiring ON leases (queue, expires_at);

-- The output of the runs of an id: a dibs.storage.indexed.output.Output as MessagePack, at most a little over 1 MiB.
CREATE TABLE outputs (
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (queue, id)
) STRICT;

-- The result of each enqueue with a request_key: a dibs.model.results.EnqueueResult as MessagePack.
CREATE TABLE request_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    result BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX request_keys_expiring ON request_keys (queue, expires_at);

-- The clock of each key, in us, and with the empty key that of the queue (dibs.model.rates).
CREATE TABLE clocks (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    clock INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

-- Keys whose filed jobs all stay out of the order of claims: until `opens_at`, or, if that is NULL, until one of
-- the active runs of the key ends. The first filed job of any other key is in the order of claims.
CREATE TABLE closed_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    opens_at INTEGER,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX closed_keys_opening ON closed_keys (queue, opens_at) WHERE opens_at IS NOT NULL;

-- The keys with waiting jobs of each queue with `fair`, and with the empty key its jobs without a key. The key with the
-- lowest place is next; `starts` is the number of starts in its turn.
CREATE TABLE turns (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    place INTEGER NOT NULL,
    starts INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX turns_in_order ON turns (queue, place);

-- The logs of all queues: a dibs.model.events.LogEvent as MessagePack in each row. The number is the event's
-- offset.
CREATE TABLE events (
    queue TEXT NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (queue, number)
) STRICT, WITHOUT ROWID;
