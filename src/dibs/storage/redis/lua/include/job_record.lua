-- The record of a job, a packed string. storage/redis/codec/jobs.py reads and writes the same. Numbers are big-endian.
--
-- head      B flags, h priority, I8 seq, I8 run_at, I8 enqueued_at (left out if LISTED and not LONG)
--   LONG    I8 first, I8 revision, I4 enqueues, attempts, retries, stalls, timeouts
--   ACTIVE  I8 fence, I8 claimed_at, c32 lease, I4 + holder      (always LONG as well)
-- then      I4 + error, I4 + origin, I4 + progress, each if its flag is set
-- rest      data: B flags, I4 + attributes, I4 + overrides, I4 + retention, I4 + memo, I4 + key (each if its flag is
--           set), payload
-- flags of data  1 attributes, 2 overrides, 4 retention, 8 memo, 16 key
--
-- claimed   B CLAIMED, I8 fence, I8 claimed_at, c32 lease, I4 + holder, then the record of the job as it waited, with the
--           one flag LISTED. Most active jobs have this form: they were enqueued once, and this is their first claim.
--           The jobs of one claim share the bytes before the waiting record. `expand_claimed` in
--           storage/redis/lua/include/parse_record.lua returns the general form.
--
-- A job without LONG has first = revision = seq, enqueues = 1 and counters 0. A LISTED job without LONG was enqueued
-- at its run_at. So the head of most waiting jobs has 19 bytes.

local LONG, ACTIVE, ERROR, ORIGIN, PROGRESS, LISTED, CANCEL_REQUESTED, HANDED_OFF = 1, 2, 4, 8, 16, 32, 64, 128
local CLAIMED = ACTIVE + LISTED
local HAS_ATTRIBUTES, HAS_OVERRIDES, HAS_RETENTION, HAS_MEMO, HAS_KEY = 1, 2, 4, 8, 16
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
