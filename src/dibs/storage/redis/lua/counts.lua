-- Count the ids of a queue in each state.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- Returns  {lead of the queue in ms, waiting, scheduled, active, handed_off, blocked, completed, failed, cancelled}

-- @include queue

local queue, scheduled = open_queue(KEYS[1], ARGV[1]), 0
local later, prefix = '(' .. decimal(queue.now), queue.prefix
for _, priority in ipairs(call('HKEYS', prefix .. 'priorities')) do
  scheduled = scheduled + call('ZCOUNT', prefix .. 'line:' .. priority, later, '+inf')
end
if queue.keyed then scheduled = scheduled + call('ZCOUNT', prefix .. 'later', later, '+inf') end
return {
  queue.lead,
  call('HLEN', prefix .. 'waiting'), scheduled, call('HLEN', prefix .. 'active'), call('SCARD', prefix .. 'away'),
  call('HLEN', prefix .. 'successors'), call('ZCOUNT', prefix .. 'completed', later, '+inf'),
  call('ZCOUNT', prefix .. 'failed', later, '+inf'), call('ZCOUNT', prefix .. 'cancelled', later, '+inf'),
}
