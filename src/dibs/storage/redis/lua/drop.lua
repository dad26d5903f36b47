-- Release up to `limit` jobs of a lease, and mark the lease as lost (docs/explanation/contract.md, Leases).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  lease
-- ARGV[3]  limit
-- Returns  number of jobs that remain under the lease

-- @include leases
-- @include payloads
-- @include commit

local queue, lease = open_queue(KEYS[1], ARGV[1]), ARGV[2]
local found = read_lease(queue, lease)
if not found or queue.now >= found.expires_at then return 0 end
local held = queue.prefix .. 'held:' .. lease
local ids = call('SRANDMEMBER', held, tonumber(ARGV[3]))
local left = call('SCARD', held) - #ids
prefetch(queue, 'active', ids)
for _, id in ipairs(ids) do return_job(queue, parse_job(id, read_field(queue, 'active', id))) end
if left > 0 then
  write_lease(queue, lease, found.expires_at, true, found.holder)
else
  remove_lease(queue, lease)
end
commit(true)
return left
