-- Move the end of a lease, never to an earlier time (contract 3, Leases).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  lease
-- ARGV[3]  ttl in ms
-- Returns  {now, expires_at, ids asked to cancel…}; expires_at is '' when the lease is lost

-- @include leases
-- @include commit

local queue, lease = open(KEYS[1], ARGV[1]), ARGV[2]
local found = live_lease(queue, lease)
if not found then return {decimal(queue.now), ''} end
local expires_at = math.max(found.expires_at, queue.now + tonumber(ARGV[3]))
local asked = call('SINTER', queue.base .. 'asked', queue.base .. 'held:' .. lease)
keep_lease(queue, lease, expires_at, false, found.holder)
commit(true)
table.insert(asked, 1, decimal(expires_at))
table.insert(asked, 1, decimal(queue.now))
return asked
