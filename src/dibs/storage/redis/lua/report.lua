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
-- @include payloads

local MOST_OUTPUT, CHUNK_OVERHEAD, TRIM_AT_ONCE = 1048576, 64, 64

-- Remove the oldest chunks until the rest is small enough. A report alone is never too large.
local function trim_output(queue, id, known)
  local key, from, gone = queue.prefix .. 'output:' .. id, '-', {}
  while known.bytes > MOST_OUTPUT do
    local entries = call('XRANGE', key, from, '+', 'COUNT', TRIM_AT_ONCE)
    if #entries == 0 then damaged('outputs', id) end
    for _, entry in ipairs(entries) do
      if known.bytes <= MOST_OUTPUT then break end
      local size, number, index = #entry[2][4] + CHUNK_OVERHEAD, string.match(entry[1], '^(%d+)-(%d+)$')
      known.bytes, known.older = known.bytes - size, math.max(0, known.older - size)
      known.cut, known.cut_index = tonumber(number), tonumber(index)
      gone[#gone + 1], from = entry[1], '(' .. entry[1]
    end
  end
  if #gone > 0 then plan_stream(queue, id, 'XDEL', gone) end
end

-- Append the chunks in ARGV from `at` on to the output of an active job.
local function append_output(queue, job, at)
  local id, number = job.id, decimal(next_number(queue))
  local known = read_output(queue, id) or {begin = 0, cut = 0, cut_index = 0, bytes = 0, older = 0}
  local header = pack('>I8I4I8I8I8', queue.now, job.attempts, job.fence, job.first, job.revision) .. sized(job.holder or '')
  local entries = {}
  for i = at, #ARGV do
    entries[#entries + 1] = {number .. '-' .. decimal(i - at), header, ARGV[i]}
    known.bytes = known.bytes + #ARGV[i] + CHUNK_OVERHEAD
  end
  trim_output(queue, id, known)
  plan_stream(queue, id, 'XADD', entries)
  queue.has_output = true
  store_output(queue, id, known)
end

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
