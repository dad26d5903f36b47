-- Bring a file of layout 3 to layout 4: keys of jobs, limits, reports of progress, and the inode of the file.

ALTER TABLE storage ADD COLUMN inode INTEGER NOT NULL DEFAULT 0;
ALTER TABLE storage ADD COLUMN ahead INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN reported INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slots ADD COLUMN key TEXT;
ALTER TABLE slots ADD COLUMN filed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slots ADD COLUMN reported INTEGER NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS slots_claim_order;
-- The name of the same index in layout 1.
DROP INDEX IF EXISTS slots_in_line;
DROP INDEX IF EXISTS slots_by_time;
CREATE INDEX slots_claim_order ON slots (queue, priority, run_at, seq) WHERE state = 'w' AND filed = 0;
CREATE INDEX slots_by_time ON slots (queue, run_at) WHERE state = 'w' AND filed = 0;
CREATE INDEX slots_filed ON slots (queue, key, priority DESC, run_at, seq) WHERE filed = 1;
CREATE INDEX slots_runs_of_key ON slots (queue, key) WHERE lease IS NOT NULL AND key IS NOT NULL;

CREATE TABLE clocks (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    clock INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE closed_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    opens_at INTEGER,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX closed_keys_opening ON closed_keys (queue, opens_at) WHERE opens_at IS NOT NULL;
