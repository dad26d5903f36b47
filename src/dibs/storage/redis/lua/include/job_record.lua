-- The record of a job, a packed string. storage/redis/codec/jobs.py reads and writes the same. Numbers are big-endian.
--
-- head      B flags, h priority, I8 seq, I8 run_at, I8 enqueued_at (left out if LISTED and not LONG)
--   LONG    I8 first, I8 revision, I4 enqueues, attempts, retries, stalls, timeouts
--   ACTIVE  I8 fence, I8 claimed_at, c32 lease, I4 + holder      (always LONG as well)
-- then      I4 + error, I4 + origin, I4 + progress, each if its flag is set
-- rest      data: B flags, I4 + attributes, I4 + overrides, I4 + retention, I4 + memo, I4 + key (each if its flag is
--           set), payload
-- flags of data  1 attributes, 2 overrides, 4 retention, 8 memo, 16 key, 32 a reference to the payload instead of the payload
--                (storage/redis/lua/include/payloads.lua)
--
-- claimed   B CLAIMED, I8 fence, I8 claimed_at, c32 lease, I4 + holder, then the record of the job as it waited, with the
--           one flag LISTED or none. Most active jobs have this form: they were enqueued once, and this is their first claim.
--           The jobs of one claim share the bytes before the waiting record. `expand_claimed` in
--           this file returns the general form.
--
-- A job without LONG has first = revision = seq, enqueues = 1 and counters 0. A LISTED job without LONG was enqueued
-- at its run_at. So the head of most waiting jobs has 19 bytes.

local LONG, ACTIVE, ERROR, ORIGIN, PROGRESS, LISTED, CANCEL_REQUESTED, HANDED_OFF = 1, 2, 4, 8, 16, 32, 64, 128
local CLAIMED = ACTIVE + LISTED
local HAS_ATTRIBUTES, HAS_OVERRIDES, HAS_RETENTION, HAS_MEMO, HAS_KEY = 1, 2, 4, 8, 16
local BY_REFERENCE, REFERENCE_SIZE = 32, 24
local band, bor, sub = bit.band, bit.bor, string.sub
local pack, unpack_from = struct.pack, struct.unpack

-- enqueues, attempts, retries, stalls and timeouts of a job that was enqueued once, at its first claim.
local FIRST_CLAIM_COUNTS = pack('>I4I4I4I4I4', 1, 1, 0, 0, 0)

-- The prefix of the keys from which this step read last. An error about a damaged record names this queue.
local reading = {prefix = KEYS[1]}

-- Raise DIBSDAMAGED for a record that cannot be read. storage/redis/network/errors.py reads the message. `part` is the
-- kind of the record, and `id` its field in the hash, in hexadecimal, because an error reply takes no line breaks. The
-- error is text: Redis 6.2 replaces a table by an error of its own.
local function damaged(part, id)
  local function hex(text)
    return (string.gsub(text, '.', function(byte) return string.format('%02x', string.byte(byte)) end))
  end
  error('DIBSDAMAGED ' .. part .. ' ' .. hex(reading.prefix) .. ' ' .. hex(id), 0)
end

-- Return the bytes of the section at `at` (I4 size, then the bytes), and the position after it.
local function read_sized(text, at)
  local size, from = unpack_from('>I4', text, at)
  if from + size > #text + 1 then error('a section is cut') end
  return sub(text, from, from + size - 1), from + size
end

local function sized(text)
  return pack('>I4', #text) .. text
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

-- Records that are made and compared without parsing them.

-- Return the record of a new job in a list. Its head has LISTED_HEAD bytes.
local function listed_record(priority, seq, run_at, data)
  return pack('>BhI8I8', LISTED, priority, seq, run_at) .. data
end

local LISTED_HEAD = 19

-- Return whether a record is that of the waiting job of an entry in a list (storage/redis/lua/include/claim_order.lua).
local function is_of_entry(text, entry)
  return sub(text, 4, 11) == sub(entry, 1, 8) and band(string.byte(text), LISTED) ~= 0
end

local NOT_RETURNED = string.rep('\0', 12)

-- Return whether a record is that of a waiting job with retries, stalls or timeouts above 0; the record may be false.
local function is_retrying(text)
  return text and band(string.byte(text) or 0, LONG) ~= 0 and #text >= 63 and sub(text, 52, 63) ~= NOT_RETURNED
end

-- Return the 8 bytes of the seq of a waiting job.
local function packed_seq(text)
  return sub(text, 4, 11)
end

-- Return seq and run_at of a waiting job.
local function place_in_line(text)
  return unpack_from('>I8I8', text, 4)
end

-- Return a run, with the first part of its records of the form `claimed`.
local function claimed_run(fence, claimed_at, lease, holder)
  local packed = pack('>BI8I8', CLAIMED, fence, claimed_at) .. lease .. sized(holder)
  return {fence = fence, claimed_at = claimed_at, lease = lease, holder = holder, packed = packed}
end

-- Positions (1 is the first byte) of the size of the holder, and of the holder, in the form `claimed`.
local HOLDER_SIZE, HOLDER = 50, 54

-- Return the head of a job that was enqueued once, and runs for the first time. `run` is the run: fence, claimed_at, lease,
-- and I4 + holder. `place` is seq and run_at, and enqueued_at if it is another time.
local function first_run_head(priority, place, run)
  local seq = sub(place, 1, 8)
  return string.char(LONG + ACTIVE) .. priority .. sub(place, 1, 16) .. sub(place, -8) .. seq .. seq .. FIRST_CLAIM_COUNTS .. run
end

-- Return the position of the waiting record in a record of the form `claimed`, and the bytes of its place: seq, run_at, and
-- enqueued_at if it is another time; nil for another record.
local function waiting_record_at(text)
  if string.byte(text) ~= CLAIMED or #text < HOLDER then return nil end
  local at = HOLDER + unpack_from('>I4', text, HOLDER_SIZE)
  local flags = string.byte(text, at)
  local size = flags == LISTED and 16 or flags == 0 and 24
  if size and #text >= at + 3 + size then return at, size end
end

-- Return the position of the payload in the data at `at`, or of the reference to it. Raise an error unless data begins there.
local function payload_at(text, at)
  local flags = string.byte(text, at)
  if not flags or flags > 63 then error('no data') end
  at = at + 1
  for i = 0, flags == 0 and -1 or 4 do
    if band(flags, 2 ^ i) ~= 0 then at = select(2, read_sized(text, at)) end
  end
  if flags >= BY_REFERENCE and at + REFERENCE_SIZE ~= #text + 1 then error('no reference') end
  return at
end

-- Return what the records of one claim share, with the bytes `start` at their beginning; nil for a record of another form.
local function parse_claimed(text)
  local at, size = waiting_record_at(text)
  if not at then return nil end
  local fence, claimed_at = unpack_from('>I8I8', text, 2)
  return {
    start = sub(text, 1, at + 3), fence = fence, claimed_at = claimed_at, lease = sub(text, HOLDER_SIZE - 32, HOLDER_SIZE - 1),
    holder = sub(text, HOLDER, at - 1), priority = sub(text, at + 1, at + 2), packed_fence = sub(text, 2, 9),
    times = sub(text, 2, 17), sized_holder = sub(text, HOLDER_SIZE, at - 1), place_size = size - 1,
  }
end

-- Return the place of a record that begins with `start`, without the first byte, and the flags of its data.
local function claimed_place(text, start, size)
  return sub(text, #start + 1, #start + size), string.byte(text, #start + size + 1)
end

-- Reading of records. A damaged record raises an error that names it.

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
  local at, size = waiting_record_at(text)
  if not at then error('no job') end
  local data_at = at + 3 + size
  return first_run_head(sub(text, at + 1, at + 2), sub(text, at + 3, data_at - 1), sub(text, 2, at - 1)) .. sub(text, data_at)
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

local NO_SEQ = string.rep('\0', 8)

-- Raise DIBSDAMAGED for a record that no waiting job has. The check reads few bytes, because a claim makes it for each
-- stale entry: a record that is damaged in its first bytes looks like that of a job which changed since.
local function check_waiting(queue, id, text)
  local flags = string.byte(text or '')
  if not flags or #text < 20 or band(flags, ACTIVE_ONLY) ~= 0 or (band(flags, LONG) == 0 and packed_seq(text) == NO_SEQ) then
    reading.prefix = queue.prefix
    damaged('job', id)
  end
end

local parse_job = guarded('job', function(id, text)
  text = expand_claimed(text)
  local job, at = parse_head(id, text, 1)
  check_head(job)
  local flags = job.flags
  if band(flags, ERROR) ~= 0 then job.error, at = read_sized(text, at) end
  if band(flags, ORIGIN) ~= 0 then job.origin, at = read_sized(text, at) end
  if band(flags, PROGRESS) ~= 0 then job.progress, at = read_sized(text, at) end
  payload_at(text, at)
  job.data, job.original = sub(text, at), text
  return job
end)

-- Convert the record of a waiting job to that of an active job. `run` is the run, with `packed`, the first part of a record of
-- the form `claimed`. Return as the second value whether the job was retrying, and as the third one its reference to a payload,
-- nil for none. A record whose data cannot be read must not
-- become active: its reader would find the damage only after the claim.
local function active_record(id, text, run)
  local flags = string.byte(text)
  local data_at = flags == LISTED and 20 or flags == 0 and 28
  if data_at then
    local data_flags, reference = string.byte(text, data_at), nil
    if data_flags ~= 0 then
      if not pcall(payload_at, text, data_at) then damaged('job', id) end
      if data_flags >= BY_REFERENCE then reference = sub(text, -REFERENCE_SIZE) end
    end
    return run.packed .. text, false, reference
  end
  local job = parse_job(id, text)
  job.fence, job.claimed_at, job.lease, job.holder = run.fence, run.claimed_at, run.lease, run.holder
  job.attempts, job.listed = job.attempts + 1, false
  local refers = string.byte(job.data) >= BY_REFERENCE
  return encode_job(job), is_retrying(text), refers and sub(job.data, -REFERENCE_SIZE) or nil
end

-- Return the bytes of the head of a job as they were read, without the changes of this step.
local function original_head(job)
  return sub(job.original, 1, job.head_end)
end

local DATA_SECTIONS = {'attributes', 'overrides', 'retention', 'memo', 'key'}

-- Return the parts of data as a table with `payload`, `by_reference` (BY_REFERENCE if the payload is a reference, else 0) and, if
-- present, attributes, overrides, retention, memo and key.
local function split_data(data)
  local flags, at = string.byte(data, 1), 2
  local parts = {by_reference = band(flags, BY_REFERENCE)}
  for i, name in ipairs(DATA_SECTIONS) do
    if band(flags, 2 ^ (i - 1)) ~= 0 then parts[name], at = read_sized(data, at) end
  end
  parts.payload = sub(data, at)
  return parts
end

-- Return data from its parts, as `split_data` returns them.
local function join_data(parts)
  local flags, texts = parts.by_reference, {}
  for i, name in ipairs(DATA_SECTIONS) do
    if parts[name] then
      flags = flags + 2 ^ (i - 1)
      texts[#texts + 1] = sized(parts[name])
    end
  end
  return string.char(flags) .. table.concat(texts) .. parts.payload
end
