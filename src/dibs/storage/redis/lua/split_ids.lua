-- Split a listing into equal parts: return the last id of each part except the last part.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  token of the set that storage/redis/lua/list_ids.lua made; a missing set has no parts
-- ARGV[2]  number of parts
-- Returns  {id…} in order, without repetition; fewer than parts - 1 if the set has fewer ids

local key, parts = KEYS[1] .. 'listing:' .. ARGV[1], tonumber(ARGV[2])
local size = redis.call('ZCARD', key)
local reply, before = {}, -1
for part = 1, parts - 1 do
  local rank = math.floor(size * part / parts) - 1
  if rank > before then
    reply[#reply + 1] = redis.call('ZRANGE', key, rank, rank)[1]
    before = rank
  end
end
return reply
