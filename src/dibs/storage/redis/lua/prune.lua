-- Remove up to `limit` expired outcomes and as many request keys, and what the log need not keep.
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  limit
-- Returns  {outcomes, request keys, events} removed

-- @include ends
-- @include commit

local queue, limit = open(KEYS[1], ARGV[1]), tonumber(ARGV[2])

local function expired(name, most)
  return call('ZRANGEBYSCORE', queue.base .. name, '-inf', decimal(queue.now), 'LIMIT', 0, most)
end

local outcomes = 0
for _, name in ipairs(ENDS) do
  local ids = expired(name, limit - outcomes)
  prefetch(queue, 'waiting', ids)
  prefetch(queue, 'active', ids)
  for _, id in ipairs(ids) do
    keep(queue, 'outcomes', id, false)
    put(queue, 'zset', name, id, false)
    if not look(queue, 'waiting', id) and not look(queue, 'active', id) then keep(queue, 'dropped', id, false) end
  end
  outcomes = outcomes + #ids
end
local keys = expired('key_ends', limit)
for _, key in ipairs(keys) do
  keep(queue, 'keys', key, false)
  put(queue, 'zset', 'key_ends', key, false)
end
expect(queue.base .. 'log', 'stream')
check_plan()
local oldest = queue.now - queue.log_age
local events = sweep(queue, function(at, size) return at < oldest or size > queue.log_bytes end)
commit(true)
return {outcomes, #keys, events}
