-- The leases of a queue. A lease is the right of a worker (its holder) to claimed jobs, until it expires.
--
-- lease     I8 expires_at, B dropped, then the holder
-- The hash `leases` has the records by lease; the ordered set `lease_ends` has the leases by expires_at.
-- The set `held:LEASE` has the ids that are active under a lease; `asked` has the ids with a requested cancel.

-- @include queue

local function read_lease(queue, lease)
  local text = call('HGET', queue.keys.leases, lease)
  if not text then return nil end
  reading.prefix = queue.prefix
  if #text < 9 then damaged('lease', lease) end
  local expires_at, dropped = unpack_from('>I8B', text)
  if dropped > 1 or expires_at > MAX_NUMBER then damaged('lease', lease) end
  return {expires_at = expires_at, dropped = dropped == 1, holder = sub(text, 10)}
end

-- Return the fields of a lease; nil if it is unknown, dropped or expired.
local function live_lease(queue, lease)
  local found = read_lease(queue, lease)
  return found and not found.dropped and queue.now < found.expires_at and found or nil
end

local function write_lease(queue, lease, expires_at, dropped, holder)
  plan(queue, 'hash', 'leases', lease, pack('>I8B', expires_at, dropped and 1 or 0) .. holder)
  plan(queue, 'zset', 'lease_ends', lease, decimal(expires_at))
end

local function remove_lease(queue, lease)
  plan(queue, 'hash', 'leases', lease, false)
  plan(queue, 'zset', 'lease_ends', lease, false)
end
