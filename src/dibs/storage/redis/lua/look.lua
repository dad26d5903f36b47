-- Where a queue stands, for those who wait.
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- Returns  {now, work, ended, last entry of the log or '', next_due or '', 1 if something is due}

-- @include line

local queue = open(KEYS[1], ARGV[1])
local last = call('XREVRANGE', queue.base .. 'log', '+', '-', 'COUNT', 1)[1]
local due, ready = next_due(queue), 0
for _, priority in ipairs(call('HKEYS', queue.base .. 'priorities')) do
  local base = queue.base
  if tonumber(call('HGET', base .. 'priorities', priority)) > 0
    or call('ZCOUNT', base .. 'line:' .. priority, '-inf', decimal(queue.now)) > 0 then ready = 1 end
end
return {
  decimal(queue.now), decimal(queue.work), decimal(queue.ended), last and last[1] or '',
  due and decimal(due) or '', ready,
}
