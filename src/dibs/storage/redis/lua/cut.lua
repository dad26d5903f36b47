-- Where to cut a listing into equal parts: the last id of each part but the last.
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  name of the set that ids.lua made; gone, there is nothing to cut
-- ARGV[2]  how many parts
-- Returns  {id…} in order, each once; fewer than parts - 1 where there are fewer ids

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
