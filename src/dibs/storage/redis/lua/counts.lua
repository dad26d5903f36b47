-- Count the ids of a queue in each state.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- Returns  {lead of the queue in ms, waiting, scheduled, active, handed_off, blocked, completed, failed, cancelled,
--          1 if the numbers may be inexact, else 0}

-- @include kept_outcomes

local queue, scheduled = open_queue(KEYS[1], ARGV[1]), 0
local later, prefix = '(' .. decimal(queue.now), queue.prefix
for _, priority in ipairs(call('HKEYS', prefix .. 'priorities')) do
  scheduled = scheduled + call('ZCOUNT', prefix .. 'line:' .. priority, later, '+inf')
end
if queue.keyed then scheduled = scheduled + call('ZCOUNT', prefix .. 'later', later, '+inf') end
-- The outcomes in the short form have no ordered set. Those that have expired are counted one by one.
local MAX_READ, kept, seen = 10000, 0, {}
for _, count in ipairs(call('HVALS', prefix .. 'ends')) do kept = kept + tonumber(count) end
local _, more = each_expired_kept(queue, MAX_READ, MAX_READ, function(id)
  if not seen[id] then kept, seen[id] = kept - 1, true end
end)
return {
  queue.lead,
  call('HLEN', prefix .. 'waiting'), scheduled, call('HLEN', prefix .. 'active'), call('SCARD', prefix .. 'away'),
  call('HLEN', prefix .. 'successors'), call('ZCOUNT', prefix .. 'completed', later, '+inf') + kept,
  call('ZCOUNT', prefix .. 'failed', later, '+inf'), call('ZCOUNT', prefix .. 'cancelled', later, '+inf'), more and 1 or 0,
}
