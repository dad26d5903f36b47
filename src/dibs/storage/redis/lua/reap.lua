-- Return jobs under expired leases to waiting (docs/explanation/contract.md, Leases). Without an expired lease the
-- script reads only `lease_ends`.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  limit
-- Returns  {id, fence, stalled|released|cancelled, …}

-- @include leases
-- @include payloads
-- @include commit

-- The most expired leases without jobs that one step removes.
local MAX_EMPTY_LEASES = 100
local queue, limit, reply, count = open_queue(KEYS[1], ARGV[1]), tonumber(ARGV[2]), {}, 0

local function reap(id, stalled)
  local job = parse_job(id, read_field(queue, 'active', id))
  local fence = job.fence
  local kind = return_job(queue, job, stalled and 'stall' or nil, stalled and queue.now or nil)
  local at = 3 * count
  reply[at + 1], reply[at + 2], reply[at + 3], count = id, decimal(fence), kind, count + 1
end

local expired = call('ZRANGEBYSCORE', queue.prefix .. 'lease_ends', '-inf', decimal(queue.now), 'LIMIT', 0,
  limit + MAX_EMPTY_LEASES)
if #expired == 0 then return reply end
for _, lease in ipairs(expired) do
  local held = queue.prefix .. 'held:' .. lease
  local size = call('SCARD', held)
  if size > 0 and count >= limit then break end
  local ids = call('SRANDMEMBER', held, limit - count)
  prefetch(queue, 'active', ids)
  local found = read_lease(queue, lease)
  for _, id in ipairs(ids) do reap(id, not (found and found.dropped)) end
  if #ids < size then break end
  remove_lease(queue, lease)
end
commit(true)
return reply
