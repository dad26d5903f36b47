-- Store what the active run with this fence reports: its progress, a memo for later runs of the job, or both
-- (docs/explanation/contract.md, report).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  id
-- ARGV[3]  fence
-- ARGV[4]  progress, '' for none
-- ARGV[5]  memo, '' to remove it; absent to keep it
-- Returns  reported or lost

-- @include job_record
-- @include commit

local queue, id, memo = open_queue(KEYS[1], ARGV[1]), ARGV[2], ARGV[5]
local text = read_field(queue, 'active', id)
local job = text and parse_job(id, text)
if not job or decimal(job.fence) ~= ARGV[3] then return 'lost' end
if ARGV[4] ~= '' then job.progress = ARGV[4] end
if memo then
  local parts = split_data(job.data)
  parts.memo = memo ~= '' and memo or nil
  job.data = join_data(parts)
end
set_field(queue, 'active', id, encode_job(job))
if ARGV[4] == '' then
  commit(true)
  return 'reported'
end
-- Waits for progress compare a number of their own. The message has the layout of the message about ended ids
-- (publish_ended in storage/redis/lua/include/event_log.lua): the number before the step, the number now, and the id.
local before, number = tonumber(call('HGET', KEYS[1] .. 'meta', 'reported') or 0), next_number(queue)
plan(queue, 'hash', 'meta', 'reported', decimal(number))
commit(true)
publish_proven(queue, 'reported', pack('>I8I8', before, number) .. sized(id) .. sized(''))
return 'reported'
