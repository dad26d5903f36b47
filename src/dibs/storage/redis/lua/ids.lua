-- Ids of one state, for listing: all of them while they are few, else sorted in a set that lives an hour.
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  name of the set
-- ARGV[2]  where the scan stands, as this script said it; '' to begin
-- ARGV[3]  the last id of the page before, '' for the first page
-- ARGV[4]  where pages end: '[' and the last id, or '+' for no end
-- ARGV[5]  how many ids are wanted
-- ARGV[6]  up to how many ids are few
-- ARGV[7…] kind (hash, set or zset) and name of each source, by turns
-- Returns  {'few', id…} in no order, {'page', id…} in order, or {'scan', where it stands} to be called again

local call, base = redis.call, KEYS[1]
local key, stands, after = base .. 'listing:' .. ARGV[1], ARGV[2], ARGV[3]
-- Renamed once it is whole.
local part = key .. ':part'
local SIZE = {hash = 'HLEN', set = 'SCARD', zset = 'ZCARD'}
local ALL = {hash = 'HKEYS', set = 'SMEMBERS', zset = 'ZRANGE'}
local SCAN = {hash = 'HSCAN', set = 'SSCAN', zset = 'ZSCAN'}
-- Seconds that a set made for listing outlives its last use; it is only a cache.
local KEPT = 3600

local function size()
  local sum = 0
  for i = 7, #ARGV, 2 do sum = sum + call(SIZE[ARGV[i]], base .. ARGV[i + 1]) end
  return sum
end

local function few()
  local reply = {'few'}
  for i = 7, #ARGV, 2 do
    local range = ARGV[i] == 'zset' and {0, -1} or {}
    for _, id in ipairs(call(ALL[ARGV[i]], base .. ARGV[i + 1], unpack(range))) do reply[#reply + 1] = id end
  end
  return reply
end

-- One bounded step of the scan of one source.
local function scan()
  local source, cursor = string.match(stands, '^(%d+) (%d+)$')
  source, cursor = tonumber(source or 7), cursor or '0'
  local found = call(SCAN[ARGV[source]], base .. ARGV[source + 1], cursor, 'COUNT', 500)
  local words = {}
  for i = 1, #found[2], ARGV[source] == 'set' and 1 or 2 do
    words[#words + 1] = 0
    words[#words + 1] = found[2][i]
  end
  for from = 1, #words, 2000 do call('ZADD', part, unpack(words, from, math.min(from + 1999, #words))) end
  call('EXPIRE', part, KEPT)
  if found[1] ~= '0' then return {'scan', source .. ' ' .. found[1]} end
  if source + 2 <= #ARGV then return {'scan', source + 2 .. ' 0'} end
  if call('EXISTS', part) == 1 then call('RENAME', part, key) end
  return {'scan', ''}
end

if call('EXISTS', key) == 0 then
  if stands == '' and size() <= tonumber(ARGV[6]) then return few() end
  return scan()
end
call('EXPIRE', key, KEPT)
local from = after == '' and '-' or '(' .. after
local reply = call('ZRANGEBYLEX', key, from, ARGV[4], 'LIMIT', 0, tonumber(ARGV[5]))
table.insert(reply, 1, 'page')
return reply
