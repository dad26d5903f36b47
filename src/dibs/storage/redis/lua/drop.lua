-- Release jobs of a lease, which is lost from now on (contract 3, Leases).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  lease
-- ARGV[3]  limit
-- Returns  how many jobs are left under the lease

-- @include leases
-- @include ends
-- @include commit

local queue, lease = open(KEYS[1], ARGV[1]), ARGV[2]
local found = lease_of(queue, lease)
if not found or queue.now >= found.expires_at then return 0 end
local held = queue.base .. 'held:' .. lease
local ids = call('SRANDMEMBER', held, tonumber(ARGV[3]))
local left = call('SCARD', held) - #ids
prefetch(queue, 'active', ids)
for _, id in ipairs(ids) do give_back(queue, parse(id, look(queue, 'active', id))) end
if left > 0 then
  keep_lease(queue, lease, found.expires_at, true, found.holder)
else
  end_lease(queue, lease)
end
commit(true)
return left
