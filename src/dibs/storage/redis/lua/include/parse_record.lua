-- Reading of records. A damaged record raises an error that names it. An enqueue of new jobs reads none, so its script
-- includes this file only behind its fast path.

-- @include claimed_record

-- Return a function (id, text) that calls `parse` and names the record if `parse` raises an error.
local function guarded(part, parse)
  return function(id, text)
    local ok, parsed, at = pcall(parse, id, text)
    if not ok then damaged(part, id) end
    return parsed, at
  end
end

-- Return the general form of the record of a job; only the form `claimed` differs from it.
local function expand_claimed(text)
  if string.byte(text) ~= CLAIMED then return text end
  local at = waiting_record_at(text) or error('no job')
  local seq, run_at = sub(text, at + 3, at + 10), sub(text, at + 11, at + 18)
  return string.char(LONG + ACTIVE) .. sub(text, at + 1, at + 18) .. run_at .. seq .. seq .. FIRST_CLAIM_COUNTS
    .. sub(text, 2, at - 1) .. sub(text, at + 19)
end

-- Return the job with the fields of the head at `at`, and the position after it.
local function parse_head(id, text, at)
  local flags, priority, seq, run_at, next = unpack_from('>BhI8I8', text, at)
  local enqueued_at = run_at
  if band(flags, LONG + LISTED) ~= LISTED then enqueued_at, next = unpack_from('>I8', text, next) end
  local job = {
    id = id, flags = flags, priority = priority, run_at = run_at, enqueued_at = enqueued_at, seq = seq,
    first = seq, revision = seq, enqueues = 1, attempts = 0, retries = 0, stalls = 0, timeouts = 0,
    fence = false, claimed_at = false, lease = false, holder = false, head_end = 0, data = false,
    listed = band(flags, LISTED) ~= 0, cancel_requested = band(flags, CANCEL_REQUESTED) ~= 0,
    handed_off = band(flags, HANDED_OFF) ~= 0,
  }
  if band(flags, LONG) ~= 0 then
    job.first, job.revision, job.enqueues, job.attempts, job.retries, job.stalls, job.timeouts, next =
      unpack_from('>I8I8I4I4I4I4I4', text, next)
  end
  if band(flags, ACTIVE) ~= 0 then
    job.fence, job.claimed_at, job.lease, next = unpack_from('>I8I8c32', text, next)
    job.holder, next = read_sized(text, next)
  end
  job.head_end = next - 1
  return job, next
end

-- Flags that only an active job has.
local ACTIVE_ONLY = ACTIVE + PROGRESS + CANCEL_REQUESTED + HANDED_OFF

-- Raise an error for flags and numbers that no job has, such as those of a record of zeros.
local function check_head(job)
  local flags = job.flags
  local active = band(flags, ACTIVE) ~= 0
  if not active and band(flags, ACTIVE_ONLY) ~= 0 or active and band(flags, LONG + LISTED) ~= LONG
    or band(flags, LONG) == 0 and job.seq == 0 then error('no job') end
end

local parse_job = guarded('job', function(id, text)
  text = expand_claimed(text)
  local job, at = parse_head(id, text, 1)
  check_head(job)
  local flags = job.flags
  if band(flags, ERROR) ~= 0 then job.error, at = read_sized(text, at) end
  if band(flags, ORIGIN) ~= 0 then job.origin, at = read_sized(text, at) end
  if band(flags, PROGRESS) ~= 0 then job.progress, at = read_sized(text, at) end
  check_data(text, at)
  job.data, job.original = sub(text, at), text
  return job
end)

-- Return the bytes of the head of a job as they were read, without the changes of this step.
local function original_head(job)
  return sub(job.original, 1, job.head_end)
end

local DATA_SECTIONS = {'attributes', 'overrides', 'retention', 'memo', 'key'}

-- Return the parts of data as a table with `payload` and, if present, attributes, overrides, retention, memo and key.
local function split_data(data)
  local flags, at, parts = string.byte(data, 1), 2, {}
  for i, name in ipairs(DATA_SECTIONS) do
    if band(flags, 2 ^ (i - 1)) ~= 0 then parts[name], at = read_sized(data, at) end
  end
  parts.payload = sub(data, at)
  return parts
end

-- Return data from its parts, as `split_data` returns them.
local function join_data(parts)
  local flags, texts = 0, {}
  for i, name in ipairs(DATA_SECTIONS) do
    if parts[name] then
      flags = flags + 2 ^ (i - 1)
      texts[#texts + 1] = sized(parts[name])
    end
  end
  return string.char(flags) .. table.concat(texts) .. parts.payload
end
