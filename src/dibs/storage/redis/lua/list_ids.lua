-- List the ids of one state. Few ids are returned at once; more are copied to a sorted set, in bounded steps, and
-- returned page by page. The set expires an hour after its last use.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  token of the set
-- ARGV[2]  position of the scan, from the previous reply; '' to begin; 'ask' to begin without a copy
-- ARGV[3]  last id of the previous page, '' for the first page
-- ARGV[4]  end of the listing: '[' and the last id, or '+' for no end
-- ARGV[5]  number of wanted ids
-- ARGV[6]  the most ids that are returned at once
-- ARGV[7…] Redis type (hash, set or zset) and name of a source, type, name, ...
-- Returns  {'all', id…} in no order; {'page', id…} in order; {'scan', position} if the copy needs another call;
--          or {'long'} instead of a copy

local call, prefix = redis.call, KEYS[1]
local key, position, after = prefix .. 'listing:' .. ARGV[1], ARGV[2], ARGV[3]
-- The key of the set until the copy is complete; then it is renamed.
local unfinished = key .. ':part'
local SIZE = {hash = 'HLEN', set = 'SCARD', zset = 'ZCARD'}
local ALL = {hash = 'HKEYS', set = 'SMEMBERS', zset = 'ZRANGE'}
local SCAN = {hash = 'HSCAN', set = 'SSCAN', zset = 'ZSCAN'}
-- Seconds until an unused set expires. The set is a cache: a later call makes it again.
local EXPIRY = 3600

local function size()
  local sum = 0
  for i = 7, #ARGV, 2 do sum = sum + call(SIZE[ARGV[i]], prefix .. ARGV[i + 1]) end
  return sum
end

local function all_ids()
  local reply = {'all'}
  for i = 7, #ARGV, 2 do
    local range = ARGV[i] == 'zset' and {0, -1} or {}
    for _, id in ipairs(call(ALL[ARGV[i]], prefix .. ARGV[i + 1], unpack(range))) do reply[#reply + 1] = id end
  end
  return reply
end

-- Copy the next ids of one source to the set. Return {'scan', position}; the next call copies from there on.
local function scan()
  local source, cursor = string.match(position, '^(%d+) (%d+)$')
  source, cursor = tonumber(source or 7), cursor or '0'
  local found = call(SCAN[ARGV[source]], prefix .. ARGV[source + 1], cursor, 'COUNT', 500)
  local args = {}
  for i = 1, #found[2], ARGV[source] == 'set' and 1 or 2 do
    args[#args + 1] = 0
    args[#args + 1] = found[2][i]
  end
  for from = 1, #args, 2000 do call('ZADD', unfinished, unpack(args, from, math.min(from + 1999, #args))) end
  call('EXPIRE', unfinished, EXPIRY)
  if found[1] ~= '0' then return {'scan', source .. ' ' .. found[1]} end
  if source + 2 <= #ARGV then return {'scan', source + 2 .. ' 0'} end
  if call('EXISTS', unfinished) == 1 then call('RENAME', unfinished, key) end
  return {'scan', ''}
end

-- A full server accepts the writes after a DEL. A replica accepts none, so it copies nothing and returns all ids.
if type(redis.pcall('DEL', prefix .. 'nothing')) ~= 'number' then return all_ids() end
if call('EXISTS', key) == 0 then
  local is_first = position == '' or position == 'ask'
  if is_first and size() <= tonumber(ARGV[6]) then return all_ids() end
  return position == 'ask' and {'long'} or scan()
end
call('EXPIRE', key, EXPIRY)
local from = after == '' and '-' or '(' .. after
local reply = call('ZRANGEBYLEX', key, from, ARGV[4], 'LIMIT', 0, tonumber(ARGV[5]))
table.insert(reply, 1, 'page')
return reply
