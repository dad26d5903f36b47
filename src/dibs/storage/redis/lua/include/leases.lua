-- Leases: who holds, until when.
--
-- lease     I8 expires_at, B dropped, then the holder; in `leases` by lease, in `lease_ends` by time.
-- Ids held under a lease stand in the set `held:LEASE`, those asked to cancel also in `asked`.

-- @include queue

local function lease_of(queue, lease)
  local text = call('HGET', queue.base .. 'leases', lease)
  if not text then return nil end
  local expires_at, dropped = unpack_from('>I8B', text)
  return {expires_at = expires_at, dropped = dropped == 1, holder = sub(text, 10)}
end

-- The lease, unless it is unknown, dropped or expired.
local function live_lease(queue, lease)
  local found = lease_of(queue, lease)
  return found and not found.dropped and queue.now < found.expires_at and found or nil
end

local function keep_lease(queue, lease, expires_at, dropped, holder)
  put(queue, 'hash', 'leases', lease, pack('>I8B', expires_at, dropped and 1 or 0) .. holder)
  put(queue, 'zset', 'lease_ends', lease, decimal(expires_at))
end

local function end_lease(queue, lease)
  put(queue, 'hash', 'leases', lease, false)
  put(queue, 'zset', 'lease_ends', lease, false)
end
