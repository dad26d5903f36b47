-- Extend a lease; its end never moves to an earlier time (docs/explanation/contract.md, Leases).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  lease
-- ARGV[3]  ttl in ms
-- Returns  {now, lead of the queue in ms, expires_at, ids with a requested cancel…}; expires_at is '' if the lease is
--          lost

-- @include leases
-- @include commit

local queue, lease = open_queue(KEYS[1], ARGV[1]), ARGV[2]
local found = live_lease(queue, lease)
if not found then return {decimal(queue.now), decimal(queue.lead), ''} end
local expires_at = math.max(found.expires_at, queue.now + tonumber(ARGV[3]))
local cancel_requested = call('SINTER', queue.prefix .. 'asked', queue.prefix .. 'held:' .. lease)
write_lease(queue, lease, expires_at, false, found.holder)
commit(true)
table.insert(cancel_requested, 1, decimal(expires_at))
table.insert(cancel_requested, 1, decimal(queue.lead))
table.insert(cancel_requested, 1, decimal(queue.now))
return cancel_requested
