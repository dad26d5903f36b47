"""Bugs in the functions of Postgres: each replaces one line of functions/, in schemas of its own."""

from __future__ import annotations

from collections.abc import Callable

from dibs.storage.postgres import migrate
from dibs.storage.postgres.queries import function_files
from tests.kit.mutants.planting import Mutant, Patch, add, rewritten

#: No bug: each new id beside a live one is inserted as a set. The batches of the kit have few requests.
ALL_SERIES = ("enqueue", "s.ends - s.begins >= 3", "s.ends - s.begins >= 0")


def planted(file: str, old: str, new: str) -> Callable[[Patch], None]:
    return planted_lines((file, old, new))


def planted_lines(*lines: tuple[str, str, str]) -> Callable[[Patch], None]:
    """Return a function that replaces lines of functions/: the file, the old line and the new one."""

    def plant(patch: Patch) -> None:
        texts = function_files()
        for line in lines:
            texts = rewritten(texts, *line)
        patch.setattr(migrate, "function_files", lambda: texts)

    return plant


#: By name: the rule that the bug breaks, the file, the line, and its replacement. The default test run only
#: tries the first few, which are found soonest.
LINES: dict[str, tuple[str, str, str, str]] = {
    "sql_pausing_has_no_effect": (
        "a paused queue hands out no job",
        "claim",
        "AND NOT k.paused AND NOT is_limited(k)",
        "AND NOT is_limited(k)",
    ),
    "sql_a_retry_keeps_its_place": (
        "seq: Retry draws a fresh one",
        "ends",
        "seq = CASE WHEN parks THEN 0 WHEN back_at IS NULL AND seq > 0 THEN seq ELSE nextval('numbers') END",
        "seq = seq",
    ),
    "sql_a_dropped_range_is_not_remembered": (
        "a waiter gets the outcome of its own run",
        "fold",
        "UPDATE live SET next = NULL, dropped = latest_dropped(kept)",
        "UPDATE live SET next = NULL, dropped = NULL",
    ),
    "sql_a_completion_drops_the_progress": (
        "the last progress outlives the end",
        "settle",
        "            NULL, CASE WHEN d.kept THEN g.progress END",
        "            NULL, NULL",
    ),
    "sql_a_dropped_lease_stays_alive": (
        "leases end exactly at their expiry",
        "leases",
        "UPDATE leases SET dropped = true WHERE",
        "UPDATE leases SET dropped = false WHERE",
    ),
    "sql_the_least_urgent_first": (
        "claims follow the order",
        "claim",
        "ORDER BY l.run_at, l.seq LIMIT room FOR UPDATE SKIP LOCKED) x;",
        "ORDER BY l.run_at DESC, l.seq LIMIT room FOR UPDATE SKIP LOCKED) x;",
    ),
    "sql_a_return_ignores_the_requested_times": (
        "the fold law: a run that comes back is clamped",
        "ends",
        "at := least(greatest(at, s.lo), s.hi);",
        "at := at;",
    ),
    "sql_updates_never_reset_the_counts": (
        "Counts: any reset",
        "ends",
        "resets boolean := folds AND s.resets;",
        "resets boolean := false;",
    ),
    "sql_a_run_being_cancelled_returns": (
        "a run being cancelled does not return",
        "leases",
        "    IF j.cancel_requested THEN",
        "    IF false THEN",
    ),
    "sql_the_first_update_wins": (
        "the last update wins",
        "fold",
        "        s := set_data(s, r);\n        s.replaces := true;\n",
        "        s.replaces := true;\n",
    ),
    "sql_the_fail_job_is_empty": (
        "a failure is handled once",
        "settle",
        "r := (lpad(to_hex(nextval('numbers')), 16, '0'), j.payload, 0,",
        "r := (lpad(to_hex(nextval('numbers')), 16, '0'), ''::bytea, 0,",
    ),
    "sql_the_origin_has_another_time": (
        "a failure is handled once",
        "settle",
        "        j.run_at, j.attributes));",
        "        j.enqueued_at, j.attributes));",
    ),
    "sql_finish_takes_any_revision": (
        "finish: not in the current's range -> lost",
        "settle",
        "ELSIF within NOT BETWEEN j.first AND j.revision THEN",
        "ELSIF within < 0 THEN",
    ),
    "sql_an_earlier_dropped_range_loses_its_end": (
        "When an enqueue is done: its revision was dropped",
        "fold",
        "kept := kept || ranges[i] || ranges[i + 1];",
        "kept := kept || ranges[i] || ranges[i + 2];",
    ),
    "sql_a_new_batch_forgets_its_request_keys": (
        "a request_key acts once",
        "enqueue",
        "        WHERE a.key IS NOT NULL\n",
        "        WHERE false\n",
    ),
    "sql_reject_overlooks_outcomes_in_a_batch": (
        "Reject: completed, with the outcome",
        "enqueue",
        "    IF rejects AND EXISTS (",
        "    IF false AND EXISTS (",
    ),
    "sql_a_late_holder_appends_output": (
        "output is fenced",
        "settle",
        "SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted AND fence = under FOR NO KEY UPDATE;",
        "SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted AND fence >= under FOR NO KEY UPDATE;",
    ),
    "sql_an_end_removes_its_own_output": (
        "output goes with its job",
        "output",
        "WHERE e.q = qu.q AND e.id = u.id AND (e.expires_at IS NULL OR e.expires_at > now_ms))",
        "WHERE e.q = qu.q AND e.id = u.id AND e.expires_at IS NULL)",
    ),
    "sql_a_failed_job_comes_back_without_output": (
        "output goes with its job",
        "by_id",
        "            UPDATE output SET owner = j.first WHERE",
        "            DELETE FROM output WHERE",
    ),
    "sql_an_import_shows_expired_output": (
        "output goes with its job",
        "transfer",
        "        DELETE FROM output WHERE q = qu.q AND id = wanted;\n",
        "        UPDATE output SET owner = j.first WHERE q = qu.q AND id = wanted;\n",
    ),
    "sql_expired_output_is_shown": (
        "output goes with its job",
        "output",
        "q = here AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms)",
        "q = here AND id = wanted",
    ),
    "sql_a_promoted_job_shows_output_of_another": (
        "output goes with its job",
        "output",
        "owner = ANY (ARRAY(SELECT first FROM owners)))",
        "owner IS NOT NULL)",
    ),
    "sql_a_trim_of_output_is_not_told": (
        "a reader misses no chunk",
        "output",
        "    UPDATE output SET removed = removed + gone, size = o.size, chunks = o.chunks[gone + 1 :]\n",
        "    UPDATE output SET size = o.size, chunks = o.chunks[gone + 1 :]\n",
    ),
    "sql_a_trim_of_output_takes_whole_reports": (
        "a reader misses no chunk",
        "output",
        "        EXIT WHEN excess <= 0;\n",
        "",
    ),
    "sql_two_reports_have_one_number": (
        "a reader misses no chunk",
        "output",
        "qu.q, j.id, nextval('numbers'), j.first, 0, size, total",
        "qu.q, j.id, j.fence - total, j.first, 0, size, total",
    ),
    "sql_a_page_of_output_ends_early": (
        "a reader misses no chunk",
        "output",
        "        IF o.n > since THEN\n            room := room - ",
        "        IF true THEN\n            room := room - ",
    ),
    "sql_a_chunk_counts_only_its_bytes": (
        "output is bounded",
        "output",
        "sum(octet_length(u.chunk) + 64) FROM",
        "sum(octet_length(u.chunk)) FROM",
    ),
    "sql_a_claim_takes_one_priority": (
        "claims follow the order",
        "claim",
        "            w := next_line(qs[place], w.priority);",
        "            EXIT;",
    ),
    "sql_a_job_is_claimed_again": (
        "a job is claimed once",
        "claim",
        "AND l.fence IS NULL\n                    ORDER BY l.run_at, l.seq LIMIT room",
        "\n                    ORDER BY l.run_at, l.seq LIMIT room",
    ),
    "sql_an_expired_lease_keeps_its_jobs": (
        "leases end exactly at their expiry",
        "claim",
        "WHERE c.q = wanted AND (held IS NULL OR c.lease = held)\n$$",
        "WHERE c.q = wanted AND held IS NULL\n$$",
    ),
    "sql_an_active_job_counts_as_waiting": (
        "counts agree with the jobs",
        "counts",
        "SELECT count(*), count(*) FILTER",
        "SELECT 0, count(*) FILTER",
    ),
    "sql_a_claimed_job_is_still_retrying": (
        "counts: retrying jobs wait",
        "counts",
        "LIMIT most + returned) x) - returned;",
        "LIMIT most) x);",
    ),
    "sql_a_returned_job_is_below_the_start": (
        "claims follow the order",
        "ends",
        "    PERFORM note_start(j.q, level, at, after);",
        "",
    ),
    "sql_a_key_keeps_its_place_after_it_left": (
        "no key waits longer than a round",
        "turns",
        "coalesce(min(s.place) FILTER (WHERE s.left_at IS NULL),",
        "coalesce(min(s.place),",
    ),
    "sql_a_started_key_keeps_its_place_without_jobs": (
        "no key waits longer than a round",
        "turns",
        "        DELETE FROM turns WHERE ctid = ANY (ARRAY(SELECT s.spot FROM seen s WHERE NOT s.waits))",
        "        DELETE FROM turns WHERE false",
    ),
    "sql_a_turn_has_one_start": (
        "turns are exact: a key starts as many runs as its share",
        "turns",
        "LATERAL (SELECT greatest(1, coalesce((qu.shares ->> s.key)::integer, 1)) AS share) x",
        "LATERAL (SELECT 1 AS share) x",
    ),
    "sql_a_claim_takes_one_turn_of_each_key": (
        "the admitted are taken, in turn",
        "turns",
        "            room := room - cardinality(step.picked);\n            started := true;",
        "            room := 0;\n            started := true;",
    ),
    "sql_a_moved_job_is_not_looked_at": (
        "the admitted are taken, in turn",
        "turns",
        "        INSERT INTO turn_changes VALUES (qu.q, nextval('numbers'), entered, 0);",
        "        NULL;",
    ),
    "sql_a_scheduled_key_is_never_looked_at": (
        "the admitted are taken, in turn",
        "turns",
        "    keys := keys || ARRAY(SELECT key FROM turns WHERE q + 0 = qu.q AND wakes_at <= now_ms);",
        "",
    ),
    "sql_older_turns_order_the_keys_again": (
        "the admitted are taken, in turn",
        "turns",
        "    DELETE FROM turns WHERE q = qu.q;",
        "",
    ),
    "sql_a_changed_share_goes_on_with_its_turn": (
        "the admitted are taken, in turn: a changed share lets the turn begin anew",
        "queues",
        "        UPDATE turns t SET starts = 0 WHERE t.q = after.q",
        "        UPDATE turns t SET starts = starts WHERE t.q = after.q",
    ),
    "sql_a_raised_share_frees_no_job": (
        "the admitted are taken, in turn",
        "queues",
        "        PERFORM look_at_keys(after, now_ms, ARRAY(SELECT key FROM turns WHERE q = after.q));",
        "        NULL;",
    ),
    "sql_a_paused_key_starts_a_run": (
        "a share of 0 starts no run",
        "claim",
        " OR qu.shares <> '{}' AND qu.shares @? '$.* ? (@ == 0)'",
        "",
    ),
    "sql_jobs_without_a_key_are_held_to_the_limits_of_keys": (
        "turns are exact: the jobs without a key are one key more",
        "claim_limited",
        "CASE WHEN k.key = '' THEN 2147483647 WHEN",
        "CASE WHEN",
    ),
}

#: The same for bugs in batches with live and new ids.
IN_SERIES: dict[str, tuple[str, str, str, str]] = {
    "sql_reject_overlooks_outcomes_beside_a_live_id": (
        "Reject: completed, with the outcome",
        "enqueue",
        "AND (b.bits & 16 = 0 OR (SELECT true",
        "AND (true OR (SELECT true",
    ),
    "sql_a_new_id_beside_a_live_one_is_not_logged": (
        "log: a new job is queued",
        "enqueue",
        "                    logged := logged || notes_of(qu.q, 'queued', ids[i:series[i]], now_ms);",
        "                    logged := logged;",
    ),
}

for name, (sentence, *line) in LINES.items():
    add(Mutant(name, "postgres", sentence, planted(line[0], line[1], line[2]), by_contract=True))
for name, (sentence, *line) in IN_SERIES.items():
    add(Mutant(name, "postgres", sentence, planted_lines(ALL_SERIES, (line[0], line[1], line[2]))))
# A claim looks at the lease before it looks for jobs, and once more before it starts runs.
a_lease_lives_at_its_end = planted_lines(
    ("claim", "l.expires_at > looked AND NOT", "l.expires_at >= looked AND NOT"),
    ("claim", "IF at >= p.ends THEN", "IF at > p.ends THEN"),
)
add(
    Mutant(
        "sql_a_lease_lives_at_its_end",
        "postgres",
        "leases end exactly at their expiry",
        a_lease_lives_at_its_end,
        by_contract=True,
    )
)
