-- Count the ids of a queue in each state.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- Returns  {waiting, scheduled, active, handed_off, blocked, completed, failed, cancelled}

-- @include queue

local queue, scheduled = open_queue(KEYS[1], ARGV[1]), 0
local later, base = '(' .. decimal(queue.now), queue.base
for _, priority in ipairs(call('HKEYS', base .. 'priorities')) do
  scheduled = scheduled + call('ZCOUNT', base .. 'line:' .. priority, later, '+inf')
end
return {
  call('HLEN', base .. 'waiting'), scheduled, call('HLEN', base .. 'active'), call('SCARD', base .. 'away'),
  call('HLEN', base .. 'successors'), call('ZCOUNT', base .. 'completed', later, '+inf'),
  call('ZCOUNT', base .. 'failed', later, '+inf'), call('ZCOUNT', base .. 'cancelled', later, '+inf'),
}
