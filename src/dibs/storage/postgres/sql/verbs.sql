-- The verbs of the storage protocol. Each calls one SQL function, and so makes one atomic step in one round trip.

-- name: enqueue
-- Returns one row of arrays in the order of the requests. NULL in `statuses` means that every request was queued
-- as a new job.
SELECT e.statuses, e.founds, e.firsts, e.revisions, e.repeats, e.first_ids
FROM {schema}.enqueue(
    %(queue)s::text, %(now)s::bigint, %(plain)s::boolean, %(ids)b::text[], %(payloads)b::bytea[],
    %(priorities)b::smallint[], %(whens)b::bigint[], %(hows)b::integer[], %(attributes)b::text[],
    %(overrides)b::text[], %(retentions)b::text[], %(job_keys)b::text[], %(request_keys)b::text[], NULL) e

-- name: enqueue_one
-- Does the same for one request that sets only id and payload. Returns one row without arrays; NULL in `status` means that
-- it was queued as a new job.
SELECT e.statuses[1] AS status, e.founds[1], e.firsts[1], e.revisions[1]
FROM {schema}.enqueue(
    %(queue)s::text, %(now)s::bigint, true, ARRAY[%(id)s::text], ARRAY[%(payload)b::bytea], NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL) e

-- name: enqueue_wanting
-- Returns the row of enqueue, and one more row for each existing outcome that a request wants. `place` is the
-- number of the request, from 1.
SELECT e.statuses, e.founds, e.firsts, e.revisions, e.repeats, e.first_ids, e.place, {kept}
FROM {schema}.enqueue(
    %(queue)s::text, %(now)s::bigint, %(plain)s::boolean, %(ids)b::text[], %(payloads)b::bytea[],
    %(priorities)b::smallint[], %(whens)b::bigint[], %(hows)b::integer[], %(attributes)b::text[],
    %(overrides)b::text[], %(retentions)b::text[], %(job_keys)b::text[], %(request_keys)b::text[],
    %(wants)b::boolean[]) e

-- name: enqueue_batch
-- Returns one row: whether the key set has a batch of this number, and the statuses of the requests in their order. NULL
-- in `statuses` means that every request was queued as a new job.
SELECT e.taken, e.statuses
FROM {schema}.enqueue_batch(
    %(queue)s::text, %(now)s::bigint, %(name)s::text, %(number)s::integer, %(keys)b::bytea, %(plain)s::boolean,
    %(ids)b::text[], %(payloads)b::bytea[], %(priorities)b::smallint[], %(whens)b::bigint[], %(hows)b::integer[],
    %(attributes)b::text[], %(job_keys)b::text[]) e

-- name: claim
-- Returns rows with arrays of jobs in the order of claims, and a last row for the whole claim, without jobs.
SELECT {claimed}
FROM {schema}.claim(ARRAY[%(queue)s::text], ARRAY[%(limit)s::integer], %(lease)s::uuid, %(now)s::bigint) c

-- name: settle
-- Returns one row: statuses and revisions in the order of the settlements. NULL in `statuses` means that all are
-- `done`.
SELECT s.statuses, s.revisions
FROM {schema}.settle(
    ARRAY[%(queue)s::text], ARRAY[cardinality(%(ids)b::text[])], ARRAY[%(plain)s::boolean], %(now)s::bigint,
    %(ids)b::text[], %(fences)b::bigint[], %(kinds)b::text[], %(results)b::bytea[], %(details)b::text[],
    %(spots)b::text[]::tid[]) s

-- name: serve
-- Runs the steps of one or several queues. Returns a row for each step with settlements, and then the rows of claim(), in
-- which `statuses` is NULL. Postgres runs the parts of UNION ALL in their order.
SELECT s.step, s.statuses, s.revisions, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL
FROM {schema}.settle(
    %(queues)b::text[], %(lasts)b::integer[], %(plains)b::boolean[], %(now)s::bigint, %(ids)b::text[],
    %(fences)b::bigint[], %(kinds)b::text[], %(results)b::bytea[], %(details)b::text[], %(spots)b::text[]::tid[]) s
UNION ALL
SELECT c.step, NULL, NULL, {claimed}
FROM {schema}.claim(%(queues)b::text[], %(limits)b::integer[], %(lease)s::uuid, %(now)s::bigint) c

-- name: register_queues
-- Inserts the rows of new queues. Sent on a connection of the storage, before a statement on the caller's.
SELECT {schema}.know_queues(%(queues)b::text[])

-- name: finish
SELECT {schema}.finish(
    %(queue)s::text, %(id)s::text, %(kind)s::text, %(result)b::bytea, %(details)s::json, %(revision)s::bigint,
    %(now)s::bigint)

-- name: report
SELECT r.known
FROM {schema}.report(
    %(queue)s::text, %(id)s::text, %(fence)s::bigint, %(progress)s::json, %(memo)b::bytea, %(output)b::bytea[],
    %(most)s::bigint, %(now)s::bigint) r (known)

-- name: grant
-- Returns one row: the time, and the lead of the storage in ms.
SELECT {schema}.grant_lease(
    %(queues)b::text[], %(lease)s::uuid, %(ttl)s::bigint, %(holder)s::text, %(now)s::bigint),
    (SELECT last_value FROM {schema}.lead)

-- name: renew
SELECT r.name, r.now_ms, r.ends_at, r.asked, (SELECT last_value FROM {schema}.lead)
FROM {schema}.renew(%(queues)b::text[], %(lease)s::uuid, %(ttl)s::bigint, %(now)s::bigint) r

-- name: drop
SELECT d.name, d.remaining
FROM {schema}.drop_lease(%(queues)b::text[], %(lease)s::uuid, %(limit)s::integer, %(now)s::bigint) d

-- name: reap
SELECT r.id, r.fence, r.kind FROM {schema}.reap(%(queue)s::text, %(limit)s::integer, %(now)s::bigint) r

-- name: cancel
SELECT {schema}.cancel(%(queue)s::text, %(ids)b::text[], %(running)s::boolean, %(now)s::bigint)

-- name: amend
SELECT {schema}.amend(
    %(queue)s::text, %(id)s::text, %(patch)s::json, %(payload)b::bytea, %(most)s::bigint, %(now)s::bigint)

-- name: retry_failed
SELECT {schema}.retry_failed(%(queue)s::text, %(ids)b::text[], %(delay)s::bigint, %(now)s::bigint)

-- name: forget
SELECT {schema}.forget(%(queue)s::text, %(ids)b::text[], %(now)s::bigint)

-- name: configure
SELECT {settings}
FROM {schema}.configure(%(queue)s::text, %(patch)s::jsonb, %(now)s::bigint, %(most_shares)s::integer) k

-- name: prune
SELECT p.outcomes, p.keys, p.logged FROM {schema}.prune(%(queue)s::text, %(limit)s::integer, %(now)s::bigint) p

-- name: import
SELECT {schema}.import_ids(
    %(queue)s::text, %(ids)b::text[], %(records)b::text[], %(floor)s::bigint, %(now)s::bigint)

-- name: counts
SELECT c.name, c.waiting, c.scheduled, c.retrying, c.active, c.handed_off, c.blocked, c.completed, c.failed, c.cancelled,
       c.approximate, (SELECT last_value FROM {schema}.lead)
FROM {schema}.counts(%(queues)b::text[], %(now)s::bigint) c

-- name: watch
SELECT w.name, w.q, w.now_ms, w.due, w.next_due, w.ends_at, w.hidden, w.unheard
FROM {schema}.watch(%(queues)b::text[], %(kind)s::text, %(now)s::bigint) w

-- name: register_fail_queue
-- Returns the setting fail_handler of a queue. If it is true, inserts the row of the fail queue. Sent on a connection of
-- the storage, before a settle with a failure on the caller's.
SELECT {schema}.know_fail_queue(%(queue)s::text)

-- name: propose_starts
SELECT {schema}.propose_starts(%(queues)b::text[], %(now)s::bigint)

-- name: raise_starts
SELECT {schema}.raise_starts(%(queues)b::text[], %(proposals)b::bigint[], %(seen)b::text[], %(patient)s::boolean)
