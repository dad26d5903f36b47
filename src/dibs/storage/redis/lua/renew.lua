-- Extend a lease in queues; its end never moves to an earlier time (docs/explanation/contract.md, Leases).
--
-- KEYS     prefixes of the queues' keys; in a cluster, one more key
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  number of queues
-- ARGV[3]  lease
-- ARGV[4]  ttl in ms
-- Returns  for each queue {now, lead of the queue in ms, expires_at, ids with a requested cancel…}; expires_at is '' if
--          the lease is lost

-- @include leases
-- @include commit
-- @include each_queue

local lease, ttl = ARGV[3], tonumber(ARGV[4])

return each_queue(tonumber(ARGV[2]), function(prefix)
  local queue = open_queue(prefix, ARGV[1])
  local found = live_lease(queue, lease)
  if not found then return {decimal(queue.now), decimal(queue.lead), ''} end
  local expires_at = math.max(found.expires_at, queue.now + ttl)
  local cancel_requested = call('SINTER', prefix .. 'asked', prefix .. 'held:' .. lease)
  write_lease(queue, lease, expires_at, false, found.holder)
  commit(true)
  table.insert(cancel_requested, 1, decimal(expires_at))
  table.insert(cancel_requested, 1, decimal(queue.lead))
  table.insert(cancel_requested, 1, decimal(queue.now))
  return cancel_requested
end)
