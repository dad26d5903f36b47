-- Remove up to `limit` expired outcomes, up to `limit` expired request keys, up to `limit` clocks without effect, and log
-- entries beyond log_age and log_bytes.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  limit
-- Returns  {removed outcomes, removed request keys, removed events, 1 if old log entries or clocks may be left,
--          else 0}

-- @include outcomes
-- @include commit

local queue, limit = open_queue(KEYS[1], ARGV[1]), tonumber(ARGV[2])

local function expired(name, most)
  return call('ZRANGEBYSCORE', queue.prefix .. name, '-inf', decimal(queue.now), 'LIMIT', 0, most)
end

local outcomes = 0
for _, name in ipairs(OUTCOME_KINDS) do
  local ids = expired(name, limit - outcomes)
  prefetch(queue, 'waiting', ids)
  prefetch(queue, 'active', ids)
  for _, id in ipairs(ids) do
    set_field(queue, 'outcomes', id, false)
    plan(queue, 'zset', name, id, false)
    if not read_field(queue, 'waiting', id) and not read_field(queue, 'active', id) then
      set_field(queue, 'dropped', id, false)
    end
  end
  outcomes = outcomes + #ids
end
local keys = expired('key_ends', limit)
for _, key in ipairs(keys) do
  set_field(queue, 'keys', key, false)
  plan(queue, 'zset', 'key_ends', key, false)
end
-- A clock that is not later than now has no effect. Clocks are in µs.
local clocks = call('ZRANGEBYSCORE', queue.prefix .. 'clocks', '-inf', decimal(queue.now * 1000), 'LIMIT', 0, limit)
for _, key in ipairs(clocks) do plan(queue, 'zset', 'clocks', key, false) end
expect_type(queue.prefix .. 'log', 'stream')
check_plan()
local oldest = queue.now - queue.log_age
local events, left = trim_log(queue, function(at, size) return at < oldest or size > queue.log_bytes end)
commit(true)
return {outcomes, #keys, events, #clocks == limit and 1 or left}
