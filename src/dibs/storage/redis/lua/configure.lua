-- Change settings of a queue, and return all of them.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] name, value, name, value, ...
-- Returns  all settings, in the order of SETTINGS in storage/redis/lua/include/queue.lua; nil for a default

-- @include commit

local queue = open_queue(KEYS[1], ARGV[1])
local before = call('HMGET', queue.prefix .. 'meta', unpack(SETTINGS))
local after, others, paused = {}, false, nil
for i, name in ipairs(SETTINGS) do after[i] = before[i] end
for i = 2, #ARGV, 2 do
  for n, name in ipairs(SETTINGS) do
    if name == ARGV[i] then after[n] = ARGV[i + 1] end
  end
end
local known = {'0', '', ',,,', 'runs', '86400000', '67108864', '3600000', '0', '0', '', '', ''}
for i, name in ipairs(SETTINGS) do
  if (before[i] or known[i]) ~= (after[i] or known[i]) then
    if name == 'paused' then paused = after[i] == '1' else others = true end
    plan(queue, 'hash', 'meta', name, after[i])
  end
end
if paused == nil and not others then return before end
if after[4] == 'all' then queue.log_level = 'all' end
if paused ~= nil then log_change(queue, paused and 'paused' or 'resumed', '') end
if others then log_change(queue, 'configured', '') end
queue.work_changed = true
commit()
return after
