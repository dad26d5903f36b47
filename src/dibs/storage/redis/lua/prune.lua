-- Remove up to `limit` expired outcomes, up to `limit` expired request keys, up to `limit` clocks without effect, and log
-- entries beyond log_age and log_bytes.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  limit
-- Returns  {removed outcomes, removed request keys, removed events, 1 if old log entries or clocks may be left,
--          else 0}

-- @include payloads
-- @include commit

local queue, limit = open_queue(KEYS[1], ARGV[1]), tonumber(ARGV[2])

-- The most ids in the index of ends, and the most classes, that one step reads.
local MAX_READ, MAX_CLASSES = 4000, 100

local function expired(name, most)
  return call('ZRANGEBYSCORE', queue.prefix .. name, '-inf', decimal(queue.now), 'LIMIT', 0, most)
end

-- The outcome of an id is removed, and its job, if any, stays.
local function drop_older(id)
  local known = read_output(queue, id)
  if not known then return end
  remove_older(queue, id, known)
  store_output(queue, id, known)
end

local outcomes = 0
for _, name in ipairs(OUTCOME_KINDS) do
  local ids = expired(name, limit - outcomes)
  prefetch(queue, 'waiting', ids)
  prefetch(queue, 'active', ids)
  for _, id in ipairs(ids) do
    set_field(queue, 'outcomes', id, false)
    plan(queue, 'zset', name, id, false)
    drop_older(id)
    if not read_field(queue, 'waiting', id) and not read_field(queue, 'active', id) then
      set_field(queue, 'dropped', id, false)
    end
  end
  outcomes = outcomes + #ids
end
-- Outcomes in the short form (storage/redis/lua/include/short_outcomes.lua).
local kept, unread, passed = each_expired_kept(queue, limit - outcomes, MAX_READ, function(id, text)
  uncount_kept(queue, id, text)
  set_field(queue, 'outcomes', id, false)
  drop_older(id)
  if not read_field(queue, 'waiting', id) and not read_field(queue, 'active', id) then
    set_field(queue, 'dropped', id, false)
  end
end)
outcomes = outcomes + kept
for _, class in ipairs(unread and {} or expired('class_ends', MAX_CLASSES)) do
  local text = read_field(queue, 'classes', class)
  set_field(queue, 'classes', class, false)
  if text then set_field(queue, 'classes', text, false) end
  plan(queue, 'zset', 'class_ends', class, false)
end
local keys = 0
for _, name in ipairs({'key_ends', 'batch_ends'}) do
  local fields = expired(name, limit - keys)
  for _, field in ipairs(fields) do
    set_field(queue, 'keys', field, false)
    plan(queue, 'zset', name, field, false)
  end
  keys = keys + #fields
end
-- A clock that is not later than now has no effect. Clocks are in µs.
local clocks = call('ZRANGEBYSCORE', queue.prefix .. 'clocks', '-inf', decimal(queue.now * 1000), 'LIMIT', 0, limit)
for _, key in ipairs(clocks) do plan(queue, 'zset', 'clocks', key, false) end
expect_type(queue.prefix .. 'log', 'stream')
check_queue(queue)
local oldest = queue.now - queue.log_age
local events, left, bad = trim_log(queue, function(at, size) return at < oldest or size > queue.log_bytes end)
if bad then
  reading.prefix = queue.prefix
  damaged('event', bad)
end
local prefix = queue.prefix
for _, one in ipairs(passed) do expect_type(prefix .. 'ends:' .. one[1], 'list') end
commit(true)
for _, one in ipairs(passed) do
  local key, rest = prefix .. 'ends:' .. one[1], one[3]
  if one[2] > 0 then call('LTRIM', key, one[2], -1) end
  if rest and call('EXISTS', key) == 1 then call('LSET', key, 0, rest) end
end
return {outcomes, keys, events, (#clocks == limit or unread) and 1 or left}
