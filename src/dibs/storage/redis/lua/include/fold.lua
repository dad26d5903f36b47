-- The fold: requests for an id whose run is active are merged, one after the other, into its successor. The effect is
-- that of applying them as updates in order (docs/explanation/contract.md, the fold law).
--
-- storage/redis/codec/slots.py packs the same records. `lo` and `hi` limit the run_at if the run returns to waiting.
--
-- successor  B flags (1 replaces, 2 lo, 4 hi, 8 resets, 16 creates no job), h priority, I8 run_at, I8 lo, I8 hi, I8 enqueued_at,
--            I8 seq, I8 first, I8 revision, I4 enqueues, then data
-- update     table with creates, replaces, rule and resets; rule is 0 always, 1 never, 2 later, 3 earlier
-- A successor whose requests are all update-only creates no job: it has no data, and its run_at and seq are 0.

-- @include job_record

local ALWAYS, NEVER, LATER, EARLIER = 0, 1, 2, 3
local NO_DATA = '\0'

local parse_successor = guarded('successor', function(_, text)
  local flags, priority, run_at, lo, hi, enqueued_at, seq, first, revision, enqueues, at =
    unpack_from('>BhI8I8I8I8I8I8I8I4', text)
  if flags > 31 or seq + revision + enqueues == 0 then error('no successor') end
  payload_at(text, at)
  return {
    replaces = band(flags, 1) ~= 0, lo = band(flags, 2) ~= 0 and lo, hi = band(flags, 4) ~= 0 and hi,
    resets = band(flags, 8) ~= 0, creates = band(flags, 16) == 0, priority = priority, run_at = run_at, enqueued_at = enqueued_at,
    seq = seq, first = first, revision = revision, enqueues = enqueues, data = sub(text, at),
  }
end)

local function encode_successor(s)
  local flags = (s.replaces and 1 or 0) + (s.lo and 2 or 0) + (s.hi and 4 or 0) + (s.resets and 8 or 0)
    + (s.creates and 0 or 16)
  return pack('>BhI8I8I8I8I8I8I8I4', flags, s.priority, s.run_at, s.lo or 0, s.hi or 0, s.enqueued_at, s.seq,
    s.first, s.revision, s.enqueues) .. s.data
end

-- Return the run_at of a job after an update: `old` was its run_at, and the request asks for `new`.
local function moved_time(old, rule, new)
  if rule == ALWAYS then return new end
  if rule == NEVER then return old end
  return rule == LATER and math.max(old, new) or rule ~= LATER and math.min(old, new)
end

-- Add one more update of run_at to a range (lo, hi), and return the new range. A range moves a run_at that lies
-- outside of it to its nearest end; false is an open end.
local function narrow_range(lo, hi, rule, at)
  if rule == ALWAYS then return at, at end
  if rule == NEVER then return lo, hi end
  if rule == LATER then return lo and math.max(lo, at) or at, hi and math.max(hi, at) end
  return lo and math.min(lo, at), hi and math.min(hi, at) or at
end

-- Make the successor that of a request that creates a job. The update-only requests before it do not count for the job
-- that it makes after an end.
local function create_by(successor, new, run_at, now, number)
  successor.creates, successor.data, successor.priority = true, new.data, new.priority
  successor.run_at, successor.enqueued_at, successor.seq = run_at, now, number
end

-- Return a new successor, from the first request that arrives during a run.
local function start_fold(new, update, run_at, now, number)
  local lo, hi = narrow_range(false, false, update.rule, run_at)
  local successor = {
    replaces = update.replaces, lo = lo, hi = hi, resets = update.resets, creates = false, priority = 0, run_at = 0,
    enqueued_at = now, seq = 0, first = number, revision = number, enqueues = 1, data = NO_DATA,
  }
  if update.creates then create_by(successor, new, run_at, now, number) end
  return successor
end

-- Merge one more request into an existing successor.
local function extend_fold(successor, new, update, run_at, now, number)
  if successor.creates then
    successor.run_at = moved_time(successor.run_at, update.rule, run_at)
  elseif update.creates then
    create_by(successor, new, run_at, now, number)
  end
  successor.lo, successor.hi = narrow_range(successor.lo, successor.hi, update.rule, run_at)
  if update.replaces then successor.data, successor.priority, successor.replaces = new.data, new.priority, true end
  successor.resets = successor.resets or update.resets
  successor.revision, successor.enqueues = number, successor.enqueues + 1
end

local function reset_counts(job)
  job.attempts, job.retries, job.stalls, job.timeouts, job.error = 0, 0, 0, 0, nil
end

-- Return the job that a successor becomes when the run before it ends.
local function promoted_job(id, successor)
  return {
    id = id, priority = successor.priority, run_at = successor.run_at, enqueued_at = successor.enqueued_at,
    seq = successor.seq, first = successor.first, revision = successor.revision, enqueues = successor.enqueues,
    attempts = 0, retries = 0, stalls = 0, timeouts = 0,
    fence = false, data = successor.data,
  }
end

-- Apply the merged updates of a successor to the job itself, when its run is retried or released instead of ended.
local function apply_successor(job, successor)
  if successor.replaces then job.data, job.priority = successor.data, successor.priority end
  if successor.lo and job.run_at < successor.lo then job.run_at = successor.lo end
  if successor.hi and job.run_at > successor.hi then job.run_at = successor.hi end
  job.revision, job.enqueues = successor.revision, job.enqueues + successor.enqueues
  if successor.resets then reset_counts(job) end
end

-- Add the range of a successor that creates no job to the job that ends, and so to its outcome, event and fail job.
local function join_range(job, successor)
  job.revision, job.enqueues = successor.revision, job.enqueues + successor.enqueues
  job.original = encode_head(job)
  job.head_end = #job.original
end
