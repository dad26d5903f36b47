-- The fold law (contract 3): what is enqueued beside an active run is one list of updates, kept folded.
--
-- successor  B flags (1 replaces, 2 lo, 4 hi, 8 resets), h priority, I8 run_at, I8 lo, I8 hi, I8 enqueued_at,
--            I8 seq, I8 first, I8 revision, I4 enqueues, then data
-- An update   {replaces, rule, resets} with rule 0 always, 1 never, 2 later, 3 earlier

-- @include record

local ALWAYS, NEVER, LATER = 0, 1, 2

local function parse_successor(text)
  local flags, priority, run_at, lo, hi, enqueued_at, seq, first, revision, enqueues, at =
    unpack_from('>BhI8I8I8I8I8I8I8I4', text)
  return {
    replaces = band(flags, 1) ~= 0, lo = band(flags, 2) ~= 0 and lo, hi = band(flags, 4) ~= 0 and hi,
    resets = band(flags, 8) ~= 0, priority = priority, run_at = run_at, enqueued_at = enqueued_at,
    seq = seq, first = first, revision = revision, enqueues = enqueues, data = sub(text, at),
  }
end

local function successor_record(s)
  local flags = (s.replaces and 1 or 0) + (s.lo and 2 or 0) + (s.hi and 4 or 0) + (s.resets and 8 or 0)
  return pack('>BhI8I8I8I8I8I8I8I4', flags, s.priority, s.run_at, s.lo or 0, s.hi or 0, s.enqueued_at,
    s.seq, s.first, s.revision, s.enqueues) .. s.data
end

local function move(old, rule, new)
  if rule == ALWAYS then return new end
  if rule == NEVER then return old end
  return rule == LATER and math.max(old, new) or rule ~= LATER and math.min(old, new)
end

-- The clamp that does what (lo, hi) did and then what the rule does with `at`; false is an open end.
local function narrow(lo, hi, rule, at)
  if rule == ALWAYS then return at, at end
  if rule == NEVER then return lo, hi end
  if rule == LATER then return lo and math.max(lo, at) or at, hi and math.max(hi, at) end
  return lo and math.min(lo, at), hi and math.min(hi, at) or at
end

local function begin_fold(new, how, run_at, now, number)
  local lo, hi = narrow(false, false, how.rule, run_at)
  return {
    replaces = how.replaces, lo = lo, hi = hi, resets = how.resets, priority = new.priority, run_at = run_at,
    enqueued_at = now, seq = number, first = number, revision = number, enqueues = 1, data = new.data,
  }
end

local function add_fold(s, new, how, run_at, number)
  s.lo, s.hi = narrow(s.lo, s.hi, how.rule, run_at)
  if how.replaces then s.data, s.priority, s.replaces = new.data, new.priority, true end
  s.run_at = move(s.run_at, how.rule, run_at)
  s.resets = s.resets or how.resets
  s.revision, s.enqueues = number, s.enqueues + 1
end

local function zero(job)
  job.attempts, job.retries, job.stalls, job.timeouts, job.error = 0, 0, 0, 0, nil
end

-- The job that the list makes of an empty id.
local function heir_of(id, s)
  return {
    id = id, priority = s.priority, run_at = s.run_at, enqueued_at = s.enqueued_at, seq = s.seq, first = s.first,
    revision = s.revision, enqueues = s.enqueues, attempts = 0, retries = 0, stalls = 0, timeouts = 0,
    fence = false, data = s.data,
  }
end

-- What the list makes of a job that has come back.
local function come_back(job, s)
  if s.replaces then job.data, job.priority = s.data, s.priority end
  if s.lo and job.run_at < s.lo then job.run_at = s.lo end
  if s.hi and job.run_at > s.hi then job.run_at = s.hi end
  job.revision, job.enqueues = s.revision, job.enqueues + s.enqueues
  if s.resets then zero(job) end
end
