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

-- Renew the lease in a queue without opening the queue, in half the time: a worker renews it in each of its idle queues.
-- Return nil, without a change, if the general path must renew: with a manual time, a clock that has stepped back or has a
-- lead, a lease that has ended, a damaged record. Keys are read before the first write, so that a wrong type changes nothing.
-- tests/storage/redis/lua/test_renew.py compares the two.
local function renew_fast(prefix)
  local known = call('HMGET', prefix .. 'meta', 'now', 'lead')
  local last_now, text = tonumber(known[1]), call('HGET', prefix .. 'leases', lease)
  if ARGV[1] ~= '' or not last_now or known[2] and known[2] ~= '0' or not text or #text < 9 then return nil end
  server_time = server_time or call('TIME')
  local now = math.floor((server_time[1] * 1000000 + server_time[2]) / 1000)
  local expires_at, dropped = unpack_from('>I8B', text)
  if now < last_now or dropped ~= 0 or now >= expires_at or expires_at > MAX_NUMBER then return nil end
  local cancel_requested = call('SINTER', prefix .. 'asked', prefix .. 'held:' .. lease)
  call('ZCARD', prefix .. 'lease_ends')
  expires_at = math.max(expires_at, now + ttl)
  -- As in `commit`: a full server accepts the writes after a DEL.
  call('DEL', KEYS[1] .. 'nothing')
  call('HSET', prefix .. 'leases', lease, pack('>I8B', expires_at, 0) .. sub(text, 10))
  call('ZADD', prefix .. 'lease_ends', decimal(expires_at), lease)
  call('HSET', prefix .. 'meta', 'now', decimal(now))
  return {decimal(now), '0', decimal(expires_at), unpack(cancel_requested)}
end

return each_queue(tonumber(ARGV[2]), function(prefix)
  local reply = renew_fast(prefix)
  if reply then return reply end
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
