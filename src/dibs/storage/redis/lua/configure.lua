-- Change settings of a queue (contract 3, configure).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2…] name and value by turns
-- Returns  all settings, in the order of include/queue.lua; nil where there is none

-- @include commit

local queue = open(KEYS[1], ARGV[1])
local before = call('HMGET', queue.base .. 'meta', unpack(SETTINGS))
local after, others, paused = {}, false, nil
for i, name in ipairs(SETTINGS) do after[i] = before[i] end
for i = 2, #ARGV, 2 do
  for n, name in ipairs(SETTINGS) do
    if name == ARGV[i] then after[n] = ARGV[i + 1] end
  end
end
local known = {'0', '', ',,,', 'runs', '86400000', '67108864', '3600000'}
for i, name in ipairs(SETTINGS) do
  if (before[i] or known[i]) ~= (after[i] or known[i]) then
    if name == 'paused' then paused = after[i] == '1' else others = true end
    put(queue, 'hash', 'meta', name, after[i])
  end
end
if paused == nil and not others then return before end
if after[4] == 'all' then queue.level = 'all' end
if paused ~= nil then note(queue, paused and 'paused' or 'resumed', '') end
if others then note(queue, 'configured', '') end
queue.worked = true
commit()
return after
