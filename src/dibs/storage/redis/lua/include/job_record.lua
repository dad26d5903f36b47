-- The record of a job, a packed string. storage/redis/codec/jobs.py reads and writes the same. Numbers are big-endian.
--
-- head      B flags, h priority, I8 seq, I8 run_at, I8 enqueued_at (left out if LISTED and not LONG)
--   LONG    I8 first, I8 revision, I4 enqueues, attempts, retries, stalls, timeouts
--   ACTIVE  I8 fence, I8 claimed_at, c32 lease, I4 + holder      (always LONG as well)
-- then      I4 + error, I4 + origin, I4 + progress, each if its flag is set
-- rest      data: B flags, I4 + attributes, I4 + overrides, I4 + retention (each if set), payload
--
-- A job without LONG has first = revision = seq, enqueues = 1 and counters 0. A LISTED job without LONG was enqueued
-- at its run_at. So the head of most waiting jobs has 19 bytes.

local LONG, ACTIVE, ERROR, ORIGIN, PROGRESS, LISTED, CANCEL_REQUESTED, HANDED_OFF = 1, 2, 4, 8, 16, 32, 64, 128
local band, bor, sub = bit.band, bit.bor, string.sub
local pack, unpack_from = struct.pack, struct.unpack

-- Return the bytes of the section at `at` (I4 size, then the bytes), and the position after it.
local function read_sized(text, at)
  local size, from = unpack_from('>I4', text, at)
  return sub(text, from, from + size - 1), from + size
end

local function sized(text)
  return pack('>I4', #text) .. text
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

local function parse_job(id, text)
  local job, at = parse_head(id, text, 1)
  local flags = job.flags
  if band(flags, ERROR) ~= 0 then job.error, at = read_sized(text, at) end
  if band(flags, ORIGIN) ~= 0 then job.origin, at = read_sized(text, at) end
  if band(flags, PROGRESS) ~= 0 then job.progress, at = read_sized(text, at) end
  job.data, job.original = sub(text, at), text
  return job
end

-- Return the bytes of the head of a job as they were read, without the changes of this step.
local function original_head(job)
  return sub(job.original, 1, job.head_end)
end

local function is_long(job)
  return job.fence or job.enqueues ~= 1 or job.revision ~= job.seq or job.first ~= job.seq
    or job.attempts ~= 0 or job.retries ~= 0 or job.stalls ~= 0 or job.timeouts ~= 0
    or (job.listed and job.enqueued_at ~= job.run_at)
end

local function flags_of(job, long)
  return (long and LONG or 0) + (job.fence and ACTIVE or 0) + (job.error and ERROR or 0)
    + (job.origin and ORIGIN or 0) + (job.progress and PROGRESS or 0) + (job.listed and LISTED or 0)
    + (job.cancel_requested and CANCEL_REQUESTED or 0) + (job.handed_off and HANDED_OFF or 0)
end

local function encode_head(job)
  local long = is_long(job)
  local text = pack('>BhI8I8', flags_of(job, long), job.priority, job.seq, job.run_at)
  if long or not job.listed then text = text .. pack('>I8', job.enqueued_at) end
  if long then
    text = text .. pack('>I8I8I4I4I4I4I4', job.first, job.revision, job.enqueues, job.attempts,
      job.retries, job.stalls, job.timeouts)
  end
  if job.fence then
    text = text .. pack('>I8I8c32', job.fence, job.claimed_at, job.lease) .. sized(job.holder)
  end
  return text
end

local function encode_job(job)
  local text = encode_head(job)
  if job.error then text = text .. sized(job.error) end
  if job.origin then text = text .. sized(job.origin) end
  if job.progress then text = text .. sized(job.progress) end
  return text .. job.data
end

-- Return the parts of data: attributes, overrides, retention (nil if absent) and payload.
local function split_data(data)
  local flags, at, parts = string.byte(data, 1), 2, {}
  for i = 1, 3 do
    if band(flags, 2 ^ (i - 1)) ~= 0 then parts[i], at = read_sized(data, at) end
  end
  return parts[1], parts[2], parts[3], sub(data, at)
end

local function join_data(attributes, overrides, retention, payload)
  local flags = (attributes and 1 or 0) + (overrides and 2 or 0) + (retention and 4 or 0)
  return string.char(flags) .. (attributes and sized(attributes) or '')
    .. (overrides and sized(overrides) or '') .. (retention and sized(retention) or '') .. payload
end
