-- The columns of a job (j) and its run, a successor (j.next) and an outcome (o). Queries insert them as {job}, {run},
-- {successor}, {outcome} and {settings}, and those of a claimed job (c) as {claimed}; postgres/codec/rows.py reads them in
-- this order.

-- name: job
j.id, j.payload, j.attributes::text, j.priority, j.overrides::text, j.retention::text,
j.run_at, j.enqueued_at, j.seq, j.first, j.revision, j.enqueues,
j.attempts, j.retries, j.stalls, j.timeouts, j.error::text, j.origin::text,
j.key, j.memo

-- name: claimed
-- Arrays of the jobs of a row, see start_runs() in functions/claim.sql. An element of `rests` has the other columns of a job,
-- see rest_of() in functions/claim.sql.
c.lost, c.now_ms, c.next_due, c.holder, c.held_back, c.priority, c.fences, c.spots, c.ids, c.payloads, c.starts, c.enqueues,
c.seqs, c.tries, c.memos, c.rests

-- name: run
j.fence, j.claimed_at, CASE WHEN j.state = 'w' THEN j.line_lease ELSE j.lease END::text, j.holder, j.cancel_requested, j.progress::text

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

-- name: settings
k.name, k.paused, k.max_active, k.retention::text, k.log_level, k.log_age, k.log_bytes, k.request_key_age,
k.fail_handler, k.log_results, k.per_key, to_json(k.rate)::text, to_json(k.key_rate)::text
