-- Create a lease on one queue (docs/explanation/contract.md, Leases).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  lease
-- ARGV[3]  ttl in ms
-- ARGV[4]  holder
-- Returns  {now, expires_at, lead of the queue in ms}

-- @include leases
-- @include commit

local queue = open_queue(KEYS[1], ARGV[1])
local expires_at = queue.now + tonumber(ARGV[3])
write_lease(queue, ARGV[2], expires_at, false, ARGV[4])
commit()
return {decimal(queue.now), decimal(expires_at), decimal(queue.lead)}
