-- The columns of a job (j) and its run, a successor (j.next) and an outcome (o). Queries insert them as {job}, {run},
-- {successor}, {outcome} and {settings}, and those of claimed jobs as {started}, {arrays} and {claimed};
-- postgres/codec/rows.py reads them in this order.

-- name: job
j.id, j.payload, j.attributes::text, j.priority, j.overrides::text, j.retention::text,
j.run_at, j.enqueued_at, j.seq, j.first, j.revision, j.enqueues,
j.attempts, j.retries, j.stalls, j.timeouts, j.error::text, j.origin::text,
j.key, j.memo

-- name: started
-- The columns of a job (l) that a claim has started.
l.priority, l.ctid AS spot, l.fence, l.id, l.payload, l.run_at, l.enqueued_at, l.seq, l.attempts, l.memo,
rest_of(l.seq, l.attributes, l.overrides, l.retention, l.first, l.revision, l.enqueues, l.retries, l.stalls, l.timeouts,
        l.error, l.origin, l.key) AS rest

-- name: arrays
-- The same columns as arrays. `spots` are the positions of the rows, with which a settlement finds them. `memos` and `rests`
-- are NULL if each element is.
t.priority, array_agg(t.fence), array_agg(t.spot::text), array_agg(t.id), array_agg(t.payload), array_agg(t.run_at),
array_agg(t.enqueued_at), array_agg(t.seq), array_agg(t.attempts),
CASE WHEN count(t.memo) > 0 THEN array_agg(t.memo) END, CASE WHEN count(t.rest) > 0 THEN array_agg(t.rest) END

-- name: claimed
-- The arrays of claimed jobs. An element of `rests` has the other columns of a job, see rest_of() in functions/claim.sql.
c.lost, c.now_ms, c.next_due, c.holder, c.held_back, c.priority, c.fences, c.spots, c.ids, c.payloads, c.starts, c.enqueues,
c.seqs, c.tries, c.memos, c.rests

-- name: run
j.fence, j.claimed_at, j.lease::text, j.holder, j.cancel_requested, j.progress::text

-- name: successor
(j.next).payload, (j.next).attributes::text, (j.next).priority, (j.next).overrides::text,
(j.next).retention::text, (j.next).replaces, (j.next).run_at, (j.next).lo, (j.next).hi, (j.next).resets,
(j.next).enqueued_at, (j.next).seq, (j.next).first, (j.next).revision, (j.next).enqueues, (j.next).key, (j.next).creates

-- name: outcome
o.kind, o.fence, o.first, o.revision, o.ended_at, o.expires_at, o.result, o.error::text,
o.enqueues, o.enqueued_at, o.run_at, o.claimed_at, o.holder,
o.attempts, o.retries, o.stalls, o.timeouts,
o.payload, o.attributes::text, o.priority, o.overrides::text, o.retention::text, o.origin::text,
o.key, o.memo, o.progress::text

-- name: replaced
-- What an outcome sets that replaces an older one (`old`). Ranges of revisions that were dropped before stay.
kind = excluded.kind, fence = excluded.fence, first = excluded.first, revision = excluded.revision,
ended_at = excluded.ended_at, expires_at = excluded.expires_at, horizon = excluded.horizon,
result = excluded.result, error = excluded.error, enqueues = excluded.enqueues,
enqueued_at = excluded.enqueued_at, run_at = excluded.run_at, claimed_at = excluded.claimed_at,
holder = excluded.holder, attempts = excluded.attempts, retries = excluded.retries,
stalls = excluded.stalls, timeouts = excluded.timeouts, payload = excluded.payload,
priority = excluded.priority, attributes = excluded.attributes, overrides = excluded.overrides,
retention = excluded.retention, origin = excluded.origin, key = excluded.key, memo = excluded.memo,
progress = excluded.progress,
dropped = latest_dropped(old.dropped || excluded.dropped)

-- name: settings
k.name, k.paused, k.max_active, k.retention::text, k.log_level, k.log_age, k.log_bytes, k.request_key_age,
k.fail_handler, k.log_results, k.per_key, to_json(k.rate)::text, to_json(k.key_rate)::text, k.max_waiting, k.when_full,
k.fair, k.shares::text
