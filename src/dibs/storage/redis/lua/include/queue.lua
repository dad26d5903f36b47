-- One queue within one step: its settings and clock, and a plan of what is to be written.
--
-- Redis keeps the writes of a script that fails half-way, so nothing is written before `commit`: verbs
-- read, plan, and commit last. The plan is by key and member (false removes), so a batch is few commands.
-- `fresh`, ids and records by turns, is written to `waiting` before what the plan has for these ids.

-- @include record

local call = redis.call
local DEFAULT_RETENTION = '3600000,604800000,3600000,f'
local SETTINGS = {'paused', 'max_active', 'retention', 'log_level', 'log_age', 'log_bytes', 'request_key_age'}
-- unpack() is bounded by Lua's C stack (8,000).
local CHUNK = 2000

local opened = {}

-- The time in ms and µs: the manual one, or Redis's own.
local function clock(manual)
  if manual ~= '' then return tonumber(manual), tonumber(manual) * 1000 end
  local time = call('TIME')
  local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return math.floor(us / 1000), us
end

-- Open a queue by the beginning of its keys. Time and numbers never step back.
local function open(base, manual)
  if opened[base] then return opened[base] end
  local known = call('HMGET', base .. 'meta', 'now', 'number', 'work', 'ended', 'log_size', 'trimmed', unpack(SETTINGS))
  local now, us = clock(manual)
  now = math.max(now, tonumber(known[1] or 0))
  local queue = {
    base = base, now = now, us = math.max(us, now * 1000), number = tonumber(known[2] or 0),
    work = tonumber(known[3] or 0), ended = tonumber(known[4] or 0),
    log_size = tonumber(known[5] or 0), trimmed = tonumber(known[6] or 0),
    paused = known[7] == '1', max_active = tonumber(known[8] or ''), retention = known[9] or ',,,',
    level = known[10] or 'runs', log_age = tonumber(known[11] or 86400000),
    log_bytes = tonumber(known[12] or 67108864), key_age = tonumber(known[13] or 3600000),
    plan = {}, fresh = {}, slots = {}, live = {}, lines = {}, pushes = {}, told = {}, ends = {}, used = false,
  }
  opened[base] = queue
  return queue
end

-- A number above every earlier one of this queue, and at least now in µs (contract 1). Within a step each is
-- the one after the last: an enqueue of new ids tells only the first.
local function draw(queue)
  queue.number = math.max(queue.number + 1, queue.us)
  return queue.number
end

local function decimal(number)
  return string.format('%.0f', number)
end

-- What is planned for a key, by member; who writes many takes it once.
local function planned_for(queue, kind, name)
  local planned = queue.plan[name]
  if not planned then
    planned = {kind = kind, members = {}}
    queue.plan[name] = planned
  end
  return planned.members
end

local function put(queue, kind, name, member, value)
  planned_for(queue, kind, name)[member] = value
end

-- What holds for an id in one of the hashes, the plan included; false where there is nothing.
local function look(queue, name, id)
  local slot = queue.slots[name]
  if not slot then
    slot = {}
    queue.slots[name] = slot
  end
  local value = slot[id]
  if value == nil then
    value = call('HGET', queue.base .. name, id)
    slot[id] = value
  end
  return value
end

-- Read ids ahead, in one command.
local function prefetch(queue, name, ids)
  local slot = queue.slots[name] or {}
  queue.slots[name] = slot
  for from = 1, #ids, CHUNK do
    local part = {unpack(ids, from, math.min(from + CHUNK - 1, #ids))}
    for i, value in ipairs(call('HMGET', queue.base .. name, unpack(part))) do slot[part[i]] = value end
  end
end

local function keep(queue, name, id, value)
  queue.slots[name] = queue.slots[name] or {}
  queue.slots[name][id] = value
  put(queue, 'hash', name, id, value)
end

local function send(command, key, words)
  for from = 1, #words, CHUNK do
    call(command, key, unpack(words, from, math.min(from + CHUNK - 1, #words)))
  end
end

local ADD = {hash = 'HSET', zset = 'ZADD', set = 'SADD'}
local REMOVE = {hash = 'HDEL', zset = 'ZREM', set = 'SREM'}

local function removals(planned)
  local words, n = {}, 0
  for member, value in pairs(planned.members) do
    if value == false then words[n + 1], n = member, n + 1 end
  end
  return words
end

local function additions(planned)
  local words, n, kind = {}, 0, planned.kind
  for member, value in pairs(planned.members) do
    if value == false then
      -- Removed before anything is added.
    elseif kind == 'hash' then
      words[n + 1], words[n + 2], n = member, value, n + 2
    elseif kind == 'zset' then
      words[n + 1], words[n + 2], n = value, member, n + 2
    else
      words[n + 1], n = member, n + 1
    end
  end
  return words
end

local function expect(key, kind)
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    error({err = 'DIBSTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind})
  end
end
