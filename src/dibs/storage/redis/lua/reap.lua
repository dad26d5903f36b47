-- Bring back jobs under expired leases (contract 3, Leases). Finding nothing costs one look at `lease_ends`.
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  limit
-- Returns  {id, fence, stalled|released|cancelled, …}

-- @include leases
-- @include ends
-- @include commit

-- Expired leases looked at in one step, beside those that hold jobs.
local MOST_LEASES = 100
local queue, limit, reply, count = open(KEYS[1], ARGV[1]), tonumber(ARGV[2]), {}, 0

local function reap(id, stalled)
  local job = parse(id, look(queue, 'active', id))
  local fence = job.fence
  local kind = give_back(queue, job, stalled and 'stall' or nil, queue.now)
  local at = 3 * count
  reply[at + 1], reply[at + 2], reply[at + 3], count = id, decimal(fence), kind, count + 1
end

local ended = call('ZRANGEBYSCORE', queue.base .. 'lease_ends', '-inf', decimal(queue.now), 'LIMIT', 0,
  limit + MOST_LEASES)
if #ended == 0 then return reply end
for _, lease in ipairs(ended) do
  local held = queue.base .. 'held:' .. lease
  local size = call('SCARD', held)
  if size > 0 and count >= limit then break end
  local ids = call('SRANDMEMBER', held, limit - count)
  prefetch(queue, 'active', ids)
  local found = lease_of(queue, lease)
  for _, id in ipairs(ids) do reap(id, not (found and found.dropped)) end
  if #ids < size then break end
  end_lease(queue, lease)
end
commit(true)
return reply
