-- Read the state of a queue for a wait (storage/redis/wakeups/wait.py).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- Returns  {now, work, ended, last entry of the log or '', next_due or '', 1 if a job is due, else 0, reported}

-- @include claim_order

local queue = open_queue(KEYS[1], ARGV[1])
local last = call('XREVRANGE', queue.prefix .. 'log', '+', '-', 'COUNT', 1)[1]
local due, has_due = next_due(queue), 0
if queue.keyed or queue.rate then
  local opening = limits().next_due(queue)
  due = due and opening and math.min(due, opening) or due or opening
end
if queue.keyed and limits().has_due(queue) then has_due = 1 end
for _, priority in ipairs(call('HKEYS', queue.prefix .. 'priorities')) do
  local prefix = queue.prefix
  if tonumber(call('HGET', prefix .. 'priorities', priority)) > 0
    or call('ZCOUNT', prefix .. 'line:' .. priority, '-inf', decimal(queue.now)) > 0 then has_due = 1 end
end
if queue.rate and limits().next_start(limits().queue_clock(queue), queue.rate, queue.now) then has_due = 0 end
return {
  decimal(queue.now), decimal(queue.work), decimal(queue.ended), last and last[1] or '',
  due and decimal(due) or '', has_due, call('HGET', queue.prefix .. 'meta', 'reported') or '0',
}
