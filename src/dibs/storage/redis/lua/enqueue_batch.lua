-- Enqueue requests, and add their request keys to a key set, if the set has no batch of this number.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  name of the key set
-- ARGV[3]  number of the batch
-- ARGV[4]  the keys of the requests, 16 bytes each (storage/redis/lua/include/key_set.lua)
-- ARGV[5…] id, request, id, request, ... as in enqueue.lua; no request has a request key or wants an outcome
-- Returns  -1 if the set has another last number than the one before this batch. Else as enqueue.lua; if an answer is `full`,
--          the step has changed nothing

-- @include key_set
-- @include enqueue_requests

local in_queue = open_queue(KEYS[1], ARGV[1])
local last_number, last_expires_at = last_batch(in_queue, ARGV[2])
if tonumber(ARGV[3]) ~= last_number + 1 then return -1 end

local function store_batch(answers)
  local expires_at, statuses = in_queue.now + in_queue.request_key_age, {}
  for i, answer in ipairs(answers) do
    statuses[i] = type(answer) == 'number' and '\1' or string.sub(answer, 1, 1)
    if string.byte(statuses[i]) == STATUS_FULL then return false end
  end
  local batch, last = batch_field(ARGV[2], ARGV[3]), batch_field(ARGV[2], '')
  local text = struct.pack('>I8I4', expires_at, #ARGV[4] / MEMBER_BYTES) .. ARGV[4] .. table.concat(statuses)
  set_field(in_queue, 'keys', batch, text)
  -- The age of request keys may have been longer before.
  local last_end = math.max(expires_at, last_expires_at)
  set_field(in_queue, 'keys', last, struct.pack('>I8I8', last_end, tonumber(ARGV[3])))
  plan(in_queue, 'zset', 'batch_ends', batch, decimal(expires_at))
  plan(in_queue, 'zset', 'batch_ends', last, decimal(last_end))
  return true
end

return enqueue_requests(3, store_batch)
