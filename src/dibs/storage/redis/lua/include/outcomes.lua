-- The end of a job (outcome, promotion of its successor, log), and the return of a run to waiting.
--
-- storage/redis/codec/slots.py packs the same records.
--
-- outcome   B flags, I8 ended_at, I8 expires_at, the head of the job at its end,
--           then I4 + progress if the head has its flag,
--           then I4 + error, I4 + origin, I4 + result, I4 + attributes, each if its flag is set, then data if kept
-- flags     1 completed, 2 failed, 3 cancelled; 4 kept for ever, 8 error, 16 origin, 32 result, 64 data,
--           128 attributes, which only an outcome without data has
-- The ordered sets `completed`, `failed` and `cancelled` have the ids with an outcome, by its expires_at.

-- @include claim_order
-- @include event_log
-- @include fold
-- @include output
-- @include short_outcomes

local OUTCOME_KINDS = {'completed', 'failed', 'cancelled'}
local KIND_LETTERS = {'c', 'f', 'x'}
local FOR_EVER, HAS_ERROR, HAS_ORIGIN, HAS_RESULT, HAS_DATA, KEEPS_ATTRIBUTES = 4, 8, 16, 32, 64, 128

local function job_retention(data)
  if band(string.byte(data), HAS_RETENTION) == 0 then return ',,,' end
  return split_data(data).retention
end

-- Return the age in ms of an outcome of this kind (false: for ever), and whether it keeps the data. Each text is
-- 'completed,failed,cancelled,keep': '' is unset, '*' for ever, '-' no kinds. The first text that sets a part wins.
local function resolve_retention(kind, texts)
  local age, kept_kinds
  for _, text in ipairs(texts) do
    local parts = {string.match(text, '^([^,]*),([^,]*),([^,]*),([^,]*)$')}
    if not age and parts[kind] ~= '' then age = parts[kind] end
    if not kept_kinds and parts[4] ~= '' then kept_kinds = parts[4] end
  end
  return {age = age ~= '*' and tonumber(age), keeps = string.find(kept_kinds, KIND_LETTERS[kind], 1, true) ~= nil}
end

-- Return the resolved retention of an end. Most settlements of a batch share one, so a step resolves each only once.
local function cached_retention(queue, kind, settlement, job)
  local sources = {settlement.retention or ',,,', job_retention(job.data), queue.retention, DEFAULT_RETENTION}
  -- A failure in a fail queue is kept for ever, unless the settlement or the job sets an age.
  if settlement.in_fail_queue then table.insert(sources, 3, ',*,,') end
  local key = kind .. table.concat(sources)
  local known = own(queue, 'retentions')
  known[key] = known[key] or resolve_retention(kind, sources)
  return known[key]
end

-- Return the record of an outcome, and its score in the ordered set of its kind. `parts` is a table with kind, ended_at,
-- and optionally expires_at (nil for ever), progress, error, origin, result, attributes and data.
local function pack_outcome(head, parts)
  local flags = parts.kind + (parts.expires_at and 0 or FOR_EVER) + (parts.error and HAS_ERROR or 0)
    + (parts.origin and HAS_ORIGIN or 0) + (parts.result and HAS_RESULT or 0) + (parts.data and HAS_DATA or 0)
    + (parts.attributes and KEEPS_ATTRIBUTES or 0)
  return pack('>BI8I8', flags, parts.ended_at, parts.expires_at or 0) .. head
    .. (parts.progress and sized(parts.progress) or '')
    .. (parts.error and sized(parts.error) or '') .. (parts.origin and sized(parts.origin) or '')
    .. (parts.result and sized(parts.result) or '') .. (parts.attributes and sized(parts.attributes) or '')
    .. (parts.data or ''), parts.expires_at and decimal(parts.expires_at) or '+inf'
end

-- Return the data that an outcome of this kind keeps. Only a failed job can run again, so only its memo is kept.
local function kept_data(kind, data)
  if kind == 2 or band(string.byte(data), HAS_MEMO) == 0 then return data end
  local parts = split_data(data)
  parts.memo = nil
  return join_data(parts)
end

-- Return the record of the outcome of a job that ends now, and its score; nil with a retention of none.
local function encode_outcome(queue, job, kind, settlement)
  local retention = cached_retention(queue, kind, settlement, job)
  if retention.age == 0 then return nil end
  local expires_at = retention.age and queue.now + retention.age
  local outcome = {kind = kind, ended_at = queue.now, expires_at = expires_at, origin = job.origin}
  outcome.error, outcome.result, outcome.progress = settlement.error, settlement.result, job.progress
  if retention.keeps then
    outcome.data = kept_data(kind, job.data)
  elseif band(string.byte(job.data), HAS_ATTRIBUTES) ~= 0 then
    outcome.attributes = split_data(job.data).attributes
  end
  return pack_outcome(original_head(job), outcome)
end

-- Unpack an outcome. Return the table of its job, with kind, expires_at, ended_at and outcome_flags added.
local parse_outcome = guarded('outcome', function(id, text)
  local flags, ended_at, expires_at = unpack_from('>BI8I8', text)
  local job, at = parse_head(id, text, 18)
  if band(flags, 3) == 0 then error('no outcome') end
  job.kind, job.expires_at = band(flags, 3), band(flags, FOR_EVER) == 0 and expires_at or nil
  job.outcome_flags, job.ended_at = flags, ended_at
  if band(job.flags, PROGRESS) ~= 0 then job.progress, at = read_sized(text, at) end
  if band(flags, HAS_ERROR) ~= 0 then job.error, at = read_sized(text, at) end
  if band(flags, HAS_ORIGIN) ~= 0 then job.origin, at = read_sized(text, at) end
  if band(flags, HAS_RESULT) ~= 0 then job.result, at = read_sized(text, at) end
  if band(flags, KEEPS_ATTRIBUTES) ~= 0 then job.attributes, at = read_sized(text, at) end
  if band(flags, HAS_DATA) ~= 0 then
    payload_at(text, at)
    job.data = sub(text, at)
  elseif at ~= #text + 1 then
    error('no end')
  end
  return job
end)

local function read_outcome(queue, id)
  local text = expand_outcome(queue, id, read_field(queue, 'outcomes', id))
  return text and parse_outcome(id, text) or nil
end

-- Return the unpacked outcome of an id; nil if it has none or its outcome has expired.
local function live_outcome(queue, id)
  local found = read_outcome(queue, id)
  return found and (not found.expires_at or queue.now < found.expires_at) and found or nil
end

-- Return whether the ordered set of a kind exists, or this step plans a write to it.
local function may_have_members(queue, name)
  if queue.checked[name] == nil then own(queue, 'checked')[name] = call('EXISTS', queue.prefix .. name) == 1 end
  return queue.checked[name] or queue.plan[name] ~= nil
end

local function uncount_if_kept(queue, id)
  local old = read_field(queue, 'outcomes', id)
  if old and is_kept(old) then uncount_kept(queue, id, old) end
end

-- Plan the write of an outcome and of its id in the ordered set of its kind. `score` is its expires_at as text, '+inf'
-- for ever.
local function store_outcome(queue, id, kind, text, score)
  uncount_if_kept(queue, id)
  set_field(queue, 'outcomes', id, text)
  for i, name in ipairs(OUTCOME_KINDS) do
    if i == kind then
      plan(queue, 'zset', name, id, score)
    elseif may_have_members(queue, name) then
      plan(queue, 'zset', name, id, false)
    end
  end
  note_end(queue, id)
end

local function remove_outcome(queue, id)
  if read_field(queue, 'outcomes', id) then
    uncount_if_kept(queue, id)
    set_field(queue, 'outcomes', id, false)
    for _, name in ipairs(OUTCOME_KINDS) do plan(queue, 'zset', name, id, false) end
  end
  note_end(queue, id)
end

-- Plan the write of the outcome of a job that ends now. With a retention of none, only the older outcome
-- goes, and the dropped ranges of an id without a new current job.
local function store_end(queue, job, settlement, is_promoted)
  local text, score = encode_outcome(queue, job, settlement.kind, settlement)
  if queue.has_output then end_output(queue, job.id, text ~= nil) end
  if text then return store_outcome(queue, job.id, settlement.kind, text, score) end
  remove_outcome(queue, job.id)
  if not is_promoted and call('EXISTS', queue.prefix .. 'dropped') == 1 then set_field(queue, 'dropped', job.id, false) end
end

-- Plan the removal of an active job from the hash `active` and from the sets of its lease, key, cancels and hand-offs.
local function remove_active(queue, job)
  set_field(queue, 'active', job.id, false)
  if job.handed_off then
    plan(queue, 'set', 'away', job.id, false)
  else
    plan(queue, 'set', 'held:' .. job.lease, job.id, false)
    local key = key_of(job.data)
    if key then limits.plan_run(queue, key, job.id, false) end
  end
  if job.cancel_requested then plan(queue, 'set', 'asked', job.id, false) end
  -- A free slot under max_active is new work for claims that max_active limited.
  if queue.max_active then queue.work_changed = true end
end

local function read_successor(queue, id)
  local text = read_field(queue, 'successors', id)
  return text and parse_successor(id, text) or nil
end

-- End a waiting or active job with an outcome, and make its successor the current job.
-- settlement: kind, and optionally error, result, retention, in_fail_queue.
local function end_job(queue, job, settlement)
  if job.fence then
    remove_active(queue, job)
  else
    remove_from_order(queue, job)
    set_waiting(queue, job.id, false)
  end
  local successor = read_successor(queue, job.id)
  if successor and not successor.creates then join_range(job, successor) end
  store_end(queue, job, settlement, successor and successor.creates)
  log_attempt(queue, OUTCOME_KINDS[settlement.kind], job.id, original_head(job), settlement.error, settlement.result)
  if not successor then return end
  set_field(queue, 'successors', job.id, false)
  if not successor.creates then return end
  local promoted = promoted_job(job.id, successor)
  add_to_order(queue, promoted, false)
  log_change(queue, 'promoted', job.id, encode_head(promoted))
end

-- Request the cancel of an active run. A handed-off run ends as cancelled at once. Return cancelled or requested.
local function ask_to_end(queue, job)
  if job.handed_off then
    end_job(queue, job, {kind = 3})
    return 'cancelled'
  end
  if not job.cancel_requested then
    job.cancel_requested = true
    set_field(queue, 'active', job.id, encode_job(job))
    plan(queue, 'set', 'asked', job.id, true)
    log_change(queue, 'cancel_requested', job.id, encode_head(job))
  end
  return 'requested'
end

local RETURN_EVENTS = {error = 'retried', timeout = 'timed_out', stall = 'stalled'}
local RETURN_COUNTERS = {error = 'retries', timeout = 'timeouts', stall = 'stalls'}

-- Return whether the active job has met a request since its claim: a successor, or one that a cancel has dropped.
local function was_blocked(queue, job)
  if read_field(queue, 'successors', job.id) then return true end
  local dropped = read_field(queue, 'dropped', job.id) or ''
  if #dropped % 16 ~= 0 then damaged('dropped', job.id) end
  return #dropped > 0 and unpack_from('>I8', dropped, #dropped - 7) > job.fence
end

-- Return an active job to waiting, with its successor applied to it. `cause` is error, timeout, stall, or nil for a
-- release. With a `run_at` the job waits until that time, behind the jobs of the same time; a release without it keeps
-- time and seq, but a job that was claimed while it was parked has no seq to keep. With `parks` the job is parked until
-- `run_at`: its seq is 0. If a request was blocked since the claim, it is due now instead. A job with a requested cancel
-- ends instead. Return cancelled, stalled, returned or released.
local function return_job(queue, job, cause, run_at, error, parks)
  if job.cancel_requested then
    end_job(queue, job, {kind = 3})
    return 'cancelled'
  end
  remove_active(queue, job)
  log_attempt(queue, cause and RETURN_EVENTS[cause] or 'released', job.id, original_head(job), error)
  if parks and was_blocked(queue, job) then parks, run_at = false, queue.now end
  job.fence, job.progress = false, nil
  if parks then
    job.seq = 0
  elseif run_at or job.seq == 0 then
    job.seq = next_number(queue)
  end
  job.run_at = run_at or job.run_at
  if cause then
    job.error = error or job.error
    job[RETURN_COUNTERS[cause]] = job[RETURN_COUNTERS[cause]] + 1
  else
    job.attempts = job.attempts - 1
  end
  local successor = read_successor(queue, job.id)
  if successor then
    set_field(queue, 'successors', job.id, false)
    apply_successor(job, successor)
  end
  add_to_order(queue, job, run_at ~= nil and not parks)
  return cause == 'stall' and 'stalled' or cause and 'returned' or 'released'
end
