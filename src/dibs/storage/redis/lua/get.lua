-- Read the slots of ids at one moment.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] ids
-- Returns  {now, current or nil, successor or nil, outcome or nil, dropped or nil, …}; four values for each id

-- @include payloads

local queue, ids = open_queue(KEYS[1], ARGV[1]), {unpack(ARGV, 2)}
local reply = {decimal(queue.now)}
if #ids == 0 then return reply end
local parts = {}
for i, name in ipairs({'waiting', 'active', 'successors', 'outcomes', 'dropped'}) do
  parts[i] = call('HMGET', queue.prefix .. name, unpack(ids))
  for n = 1, queue.has_payloads and i < 5 and #ids or 0 do parts[i][n] = whole_record(queue, name, ids[n], parts[i][n]) end
end
for i = 1, #ids do
  local at = 4 * i - 3
  reply[at + 1], reply[at + 2] = parts[1][i] or parts[2][i], parts[3][i]
  reply[at + 3], reply[at + 4] = outcome_reply(queue, ids[i], parts[4][i]), parts[5][i]
end
return reply
