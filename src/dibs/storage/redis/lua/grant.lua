-- Create a lease on queues (docs/explanation/contract.md, Leases).
--
-- KEYS     prefixes of the queues' keys; in a cluster, one more key
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  number of queues
-- ARGV[3]  lease
-- ARGV[4]  ttl in ms
-- ARGV[5]  holder
-- ARGV[6]  a random text: the secret of a queue that has none (publish_proven in storage/redis/lua/include/event_log.lua)
-- Returns  for each queue {now, expires_at, lead of the queue in ms}

-- @include leases
-- @include commit
-- @include each_queue

return each_queue(tonumber(ARGV[2]), function(prefix)
  local queue = open_queue(prefix, ARGV[1])
  local expires_at = queue.now + tonumber(ARGV[4])
  if call('HEXISTS', prefix .. 'meta', 'secret') == 0 then plan(queue, 'hash', 'meta', 'secret', ARGV[6]) end
  write_lease(queue, ARGV[3], expires_at, false, ARGV[5])
  commit(true)
  return {decimal(queue.now), decimal(expires_at), decimal(queue.lead)}
end)
