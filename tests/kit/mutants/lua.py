"""Bugs in the scripts of Redis: each replaces one line of Lua. A missing line fails the test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dibs.storage.redis.network import scripts
from tests.kit.mutants.planting import Mutant, Patch, add, rewritten


def planted(file: str, old: str, new: str) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        original = scripts._read_lua
        texts = rewritten({file: original(file)}, file, old, new)
        patch.setattr(scripts, "_read_lua", lambda name: texts.get(name) or original(name))
        # The cached code without the bug must not be used, and that with it must not stay.
        for name in ("script", "library_name", "library_text"):
            patch.setattr(scripts, name, cache(getattr(scripts, name).__wrapped__))

    return plant


#: By name: the rule that the bug breaks, the file, the line, and its replacement.
LINES: dict[str, tuple[str, str, str, str]] = {
    "lua_settle_takes_any_fence": (
        "a late holder is refused",
        "include/settle_one",
        "if not job or job.fence ~= settlement.fence then",
        "if not job then",
    ),
    "lua_the_fence_is_the_time": (
        "fences grow",
        "include/queue",
        "queue.number = math.max(queue.number + 1, queue.us + ",
        "queue.number = math.max(queue.number, queue.us + ",
    ),
    "lua_a_lease_lives_at_its_end": (
        "leases end exactly at their expiry",
        "include/leases",
        "queue.now < found.expires_at and found",
        "queue.now <= found.expires_at and found",
    ),
    "lua_a_return_loses_the_successor": (
        "a blocked job is not lost",
        "include/outcomes",
        "    apply_successor(job, successor)\n",
        "",
    ),
    "lua_an_end_loses_the_successor": (
        "accepted jobs are kept",
        "include/outcomes",
        "  add_to_order(queue, promoted, false)\n",
        "",
    ),
    "lua_a_run_being_cancelled_returns": (
        "a run being cancelled does not return",
        "include/outcomes",
        "  if job.cancel_requested then\n    end_job(queue, job, {kind = 3})",
        "  if false then\n    end_job(queue, job, {kind = 3})",
    ),
    "lua_an_outcome_has_another_progress": (
        "the last progress outlives the end",
        "include/outcomes",
        "settlement.error, settlement.result, job.progress",
        "settlement.error, settlement.result, job.progress and '0'",
    ),
    "lua_a_release_counts": (
        "Release: attempts - 1",
        "include/outcomes",
        "job.attempts = job.attempts - 1",
        "job.attempts = job.attempts",
    ),
    "lua_a_claimed_job_is_still_retrying": (
        "counts: retrying jobs wait",
        "include/claim_due",
        "    if was_retrying then queue.retrying = queue.retrying - 1 end\n",
        "",
    ),
    "lua_later_forgets_the_upper_end": (
        "the fold law: later after earlier",
        "include/fold",
        "lo and math.max(lo, at) or at, hi and math.max(hi, at)",
        "lo and math.max(lo, at) or at, hi",
    ),
    "lua_a_reject_ignores_failures": (
        "Reject(failed=True): unchanged -> failed, with the outcome",
        "include/accept",
        "(ended.kind == 2 and request.reject_mode < 2)",
        "ended.kind == 2",
    ),
    "lua_the_origin_has_no_attributes": (
        "a failure is handled once",
        "include/settle_one",
        "sized(split_data(job.data).attributes or '')",
        "sized('')",
    ),
    "lua_handed_off_jobs_count_for_max_active": (
        "max_active is exact",
        "include/claim_step",
        "call('HLEN', queue.prefix .. 'active') - call('SCARD', queue.prefix .. 'away')",
        "call('HLEN', queue.prefix .. 'active')",
    ),
    "lua_a_renewal_may_shorten": (
        "leases end exactly at their expiry",
        "renew",
        "math.max(found.expires_at, queue.now + ttl)",
        "queue.now + ttl",
    ),
    "lua_a_fast_end_keeps_the_output": (
        "output goes with its job",
        "include/complete_claimed",
        "    if outputs and outputs[id] then return false end\n",
        "",
    ),
    "lua_a_failed_job_comes_back_without_output": (
        "output goes with its job",
        "retry_failed",
        "  return_output(id)\n",
        "  drop_output(queue, id)\n",
    ),
    "lua_a_forget_leaves_output": (
        "output goes with its job",
        "forget",
        "  drop_output(queue, id)\n",
        "",
    ),
    "lua_expired_output_is_shown": (
        "output goes with its job",
        "output",
        "local first = live_outcome(queue, id) and 0 or known.begin",
        "local first = 0",
    ),
    "lua_a_trim_of_output_is_not_told": (
        "a reader misses no chunk",
        "report",
        "      known.cut, known.cut_index = tonumber(number), tonumber(index)\n",
        "",
    ),
    "lua_a_chunk_counts_only_its_bytes": (
        "output is bounded",
        "report",
        "    known.bytes = known.bytes + #ARGV[i] + CHUNK_OVERHEAD\n",
        "    known.bytes = known.bytes + #ARGV[i]\n",
    ),
    "lua_a_key_keeps_its_place_after_it_left": (
        "no key waits longer than a round",
        "include/turns",
        "    if left and not is_waiting(left) then turn_of(left).place = false end\n",
        "",
    ),
    "lua_a_started_key_keeps_its_place_without_jobs": (
        "no key waits longer than a round",
        "include/turns",
        "    if not more and not is_waiting(key) then\n",
        "    if false then\n",
    ),
    "lua_a_key_leaves_when_its_job_is_moved": (
        "turns are exact",
        "include/turns",
        "    if left == key and left_id == id then left = nil end\n",
        "",
    ),
    "lua_a_turn_has_one_start": (
        "turns are exact: a key starts as many runs as its share",
        "include/turns",
        "elseif turn.starts + 1 >= (key == '' and 1 or limits.share(queue, key)) then",
        "elseif true then",
    ),
    "lua_each_priority_of_a_key_has_a_place": (
        "turns are exact: a key has one place for all its priorities",
        "include/keyed_claim",
        "if not place or place == head.run_at then return head end",
        "if true then return head end",
    ),
    "lua_jobs_without_a_key_have_no_turn": (
        "turns are exact: the jobs without a key are one key more",
        "include/claim_due",
        "      if queue.fair then queue.turns.start('', false) end\n",
        "",
    ),
    "lua_a_scheduled_key_has_no_head": (
        "the admitted are taken, in turn",
        "include/turns",
        "      limits.touch(queue, key_of(job.data), job.priority)\n",
        "",
    ),
    "lua_older_turns_order_the_keys_again": (
        "the admitted are taken, in turn",
        "configure",
        "    if fair then plan(queue, 'hash', 'turns', first.key, pack('>I7I2', place, 0)) end\n",
        "    if fair then plan(queue, 'hash', 'turns', first.key, pack('>I7I2', 1, 0)) end\n",
    ),
    "lua_a_changed_share_goes_on_with_its_turn": (
        "the admitted are taken, in turn: a changed share lets the turn begin anew",
        "configure",
        "  begin_turns(queue, before[#names], after[#names])\n",
        "",
    ),
    "lua_a_raised_share_frees_no_job": (
        "the admitted are taken, in turn",
        "configure",
        "(changed.per_key or changed.key_rate or changed.shares) and",
        "(changed.per_key or changed.key_rate) and",
    ),
    "lua_a_paused_key_starts_a_run": (
        "a share of 0 starts no run",
        "include/keyed_claim",
        "  if queue.shares and limits.share(queue, key) == 0 then found.room = 0 end\n",
        "",
    ),
    "lua_serve_has_no_fail_queue": (
        "a failure is handled once",
        "serve",
        "ARGV[at + 1], KEYS[fail_index], settlements,",
        "ARGV[at + 1], KEYS[index], settlements,",
    ),
    "lua_serve_claims_in_the_first_queue": (
        "a step leaves the other queues alone",
        "serve",
        "if settled == 0 then return claim_step(queue.prefix,",
        "if settled == 0 then return claim_step(KEYS[1],",
    ),
    "lua_keys_are_remembered_for_ever": (
        "a request_key acts once: within its time",
        "include/enqueue_requests",
        "  if queue.now >= unpack_from('>I8', text, 20) then return nil end\n",
        "",
    ),
}

for name, (sentence, file, old, new) in LINES.items():
    add(Mutant(name, "redis", sentence, planted(file, old, new), by_contract=True))
