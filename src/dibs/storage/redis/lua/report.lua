-- Store what the active run with this fence reports: its progress, a memo for later runs of the job, output
-- (docs/explanation/contract.md, report).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  id
-- ARGV[3]  fence
-- ARGV[4]  progress, '' for none
-- ARGV[5]  memo, '' to remove it
-- ARGV[6]  1 if there is a memo; absent without a memo and without output
-- ARGV[7…] chunks of output
-- Returns  reported or lost

-- @include job_record
-- @include commit
-- @include output

local queue, id, memo = open_queue(KEYS[1], ARGV[1]), ARGV[2], ARGV[6] == '1' and ARGV[5]
local text = read_field(queue, 'active', id)
local job = text and parse_job(id, text)
if not job or decimal(job.fence) ~= ARGV[3] then return 'lost' end
if ARGV[4] ~= '' then job.progress = ARGV[4] end
if memo then
  local parts = split_data(job.data)
  parts.memo = memo ~= '' and memo or nil
  job.data = join_data(parts)
end
if ARGV[4] ~= '' or memo then set_field(queue, 'active', id, encode_job(job)) end
local has_output = #ARGV > 6
if has_output then append_output(queue, job, 7) end
if ARGV[4] == '' and not has_output then
  commit(true)
  return 'reported'
end
-- Waits for progress compare a number of their own. The message has the layout of the message about ended ids
-- (publish_ended in storage/redis/lua/include/event_log.lua): the number before the step, the number now, and the id.
local before, number = tonumber(call('HGET', KEYS[1] .. 'meta', 'reported') or 0), next_number(queue)
plan(queue, 'hash', 'meta', 'reported', decimal(number))
commit(not has_output)
publish_proven(queue, 'reported', pack('>I8I8', before, number) .. sized(id) .. sized(''))
return 'reported'
