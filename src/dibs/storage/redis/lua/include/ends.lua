-- How a run ends: outcome, promotion, log. And how it comes back.
--
-- outcome   B flags, I8 ended_at, I8 expires_at, the head of the job as it was,
--           then I4 + error, I4 + origin, I4 + result, each if its flag is set, then data if kept
-- flags     1-3 completed, failed, cancelled; 4 for ever, 8 error, 16 origin, 32 result, 64 data
-- Ids with an outcome stand in `completed`, `failed` or `cancelled` by the time it expires.

-- @include line
-- @include log
-- @include fold

local ENDS = {'completed', 'failed', 'cancelled'}
local LETTERS = {'c', 'f', 'x'}
local FOR_EVER, HAS_ERROR, HAS_ORIGIN, HAS_RESULT, HAS_DATA = 4, 8, 16, 32, 64

local function retention_of(data)
  if band(string.byte(data), 4) == 0 then return ',,,' end
  local _, _, retention = split(data)
  return retention
end

-- How long an end of this kind is kept, false for ever, and whether its data is. The first that says
-- something counts: 'completed,failed,cancelled,keep', each of them '' for silent, '*' for ever, '-' none.
local function retained(kind, said)
  local age, keep
  for _, text in ipairs(said) do
    local words = {string.match(text, '^([^,]*),([^,]*),([^,]*),([^,]*)$')}
    if not age and words[kind] ~= '' then age = words[kind] end
    if not keep and words[4] ~= '' then keep = words[4] end
  end
  return {age = age ~= '*' and tonumber(age), keeps = string.find(keep, LETTERS[kind], 1, true) ~= nil}
end

-- The same, worked out once in a step for each combination: in a batch most are alike.
local combinations = {}

local function retained_by(queue, kind, how, job)
  local said = {how.retention or ',,,', retention_of(job.data), queue.retention, DEFAULT_RETENTION}
  if how.shown then table.insert(said, 3, ',*,,') end
  local key = kind .. table.concat(said)
  combinations[key] = combinations[key] or retained(kind, said)
  return combinations[key]
end

local function outcome_of(queue, job, kind, how)
  local retention = retained_by(queue, kind, how, job)
  local expires_at = retention.age and queue.now + retention.age
  local kept = not expires_at or expires_at > queue.now
  local error, result, data = kept and how.error, kept and how.result, kept and retention.keeps
  local flags = kind + (expires_at and 0 or FOR_EVER) + (error and HAS_ERROR or 0)
    + (job.origin and HAS_ORIGIN or 0) + (result and HAS_RESULT or 0) + (data and HAS_DATA or 0)
  return pack('>BI8I8', flags, queue.now, expires_at or 0) .. head_as_read(job) .. (error and with_size(error) or '')
    .. (job.origin and with_size(job.origin) or '') .. (result and with_size(result) or '')
    .. (data and job.data or ''), expires_at and decimal(expires_at) or '+inf'
end

-- What verbs need of an outcome: its kind, its range and fence, and how to put it together again.
local function parse_outcome(id, text)
  local flags, ended_at, expires_at = unpack_from('>BI8I8', text)
  local job, at = parse_head(id, text, 18)
  job.kind, job.expires_at = band(flags, 3), band(flags, FOR_EVER) == 0 and expires_at or nil
  job.outcome_flags, job.ended_at = flags, ended_at
  if band(flags, HAS_ERROR) ~= 0 then job.error, at = section(text, at) end
  if band(flags, HAS_ORIGIN) ~= 0 then job.origin, at = section(text, at) end
  if band(flags, HAS_RESULT) ~= 0 then job.result, at = section(text, at) end
  if band(flags, HAS_DATA) ~= 0 then job.data = sub(text, at) end
  return job
end

local function outcome(queue, id)
  local text = look(queue, 'outcomes', id)
  return text and parse_outcome(id, text) or nil
end

-- The outcome unless it has expired.
local function alive(queue, id)
  local found = outcome(queue, id)
  return found and (not found.expires_at or queue.now < found.expires_at) and found or nil
end

-- Whether there is an outcome of a kind, also one that this step will write.
local function has_any(queue, name)
  if queue.lines[name] == nil then queue.lines[name] = call('EXISTS', queue.base .. name) == 1 end
  return queue.lines[name] or queue.plan[name] ~= nil
end

-- score: when it expires, as text.
local function keep_outcome(queue, id, kind, text, score)
  keep(queue, 'outcomes', id, text)
  for i, name in ipairs(ENDS) do
    if i == kind then
      put(queue, 'zset', name, id, score)
    elseif has_any(queue, name) then
      put(queue, 'zset', name, id, false)
    end
  end
  queue.ends[#queue.ends + 1] = id
end

local function lose_outcome(queue, id)
  keep(queue, 'outcomes', id, false)
  for _, name in ipairs(ENDS) do put(queue, 'zset', name, id, false) end
  queue.ends[#queue.ends + 1] = id
end

-- Take an active job out of everything that holds it.
local function let_go(queue, job)
  keep(queue, 'active', job.id, false)
  if job.away then
    put(queue, 'set', 'away', job.id, false)
  else
    put(queue, 'set', 'held:' .. job.lease, job.id, false)
  end
  if job.asked then put(queue, 'set', 'asked', job.id, false) end
  -- Room under max_active is work for those who found none.
  if queue.max_active then queue.worked = true end
end

local function successor(queue, id)
  local text = look(queue, 'successors', id)
  return text and parse_successor(text) or nil
end

-- End a current, waiting or active. how: kind, and error, result, retention, shown where there are any.
local function finish(queue, job, how)
  if job.fence then
    let_go(queue, job)
  else
    leave_line(queue, job)
    keep(queue, 'waiting', job.id, false)
  end
  local text, score = outcome_of(queue, job, how.kind, how)
  keep_outcome(queue, job.id, how.kind, text, score)
  tell_run(queue, ENDS[how.kind], job.id, head_as_read(job), how.error)
  local blocked = successor(queue, job.id)
  if not blocked then return end
  keep(queue, 'successors', job.id, false)
  local heir = heir_of(job.id, blocked)
  line_up(queue, heir, false)
  note(queue, 'promoted', job.id, head_of(heir))
end

local RETURNS = {error = 'retried', timeout = 'timed_out', stall = 'stalled'}
local COUNTS = {error = 'retries', timeout = 'timeouts', stall = 'stalls'}

-- Active -> waiting, with the successor folded in. cause: error, timeout, stall, or nil for a release.
local function give_back(queue, job, cause, run_at, error)
  if job.asked then
    finish(queue, job, {kind = 3})
    return 'cancelled'
  end
  let_go(queue, job)
  tell_run(queue, cause and RETURNS[cause] or 'released', job.id, head_as_read(job), error)
  job.fence, job.progress = false, nil
  if cause then
    job.run_at, job.seq, job.error = run_at, draw(queue), error or job.error
    job[COUNTS[cause]] = job[COUNTS[cause]] + 1
  else
    job.attempts = job.attempts - 1
  end
  local blocked = successor(queue, job.id)
  if blocked then
    keep(queue, 'successors', job.id, false)
    come_back(job, blocked)
  end
  line_up(queue, job, cause ~= nil)
  return cause == 'stall' and 'stalled' or cause and 'returned' or 'released'
end
