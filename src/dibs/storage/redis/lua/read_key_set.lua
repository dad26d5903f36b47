-- Read batches of a key set.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  name of the key set
-- ARGV[3]  number after which to read
-- ARGV[4]  most batches to read
-- Returns  {number of the last batch of the set, number of the last batch that was read, batch, batch, ...} without the
--          expired ones (storage/redis/lua/include/key_set.lua). It reads from the start if the set has fewer batches

-- @include key_set

local queue, name, after = open_queue(KEYS[1], ARGV[1]), ARGV[2], tonumber(ARGV[3])
local last = last_batch(queue, name)
-- The set has expired, and another writer may have begun again.
if last < after then after = 0 end
local stop = math.min(last, after + tonumber(ARGV[4]))
local reply = {decimal(last), decimal(stop)}
for number = after + 1, stop do
  reply[#reply + 1] = read_batch_field(queue, batch_field(name, decimal(number)), 12)
end
return reply
