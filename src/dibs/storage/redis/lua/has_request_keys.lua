-- Look for a request key that begins with a prefix. Only a queue with few keys is searched.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  prefix of request keys
-- ARGV[3]  most keys to search
-- Returns  1 if there is such a key, or there are too many keys; else 0

-- @include queue

local queue, prefix = open_queue(KEYS[1], ARGV[1]), ARGV[2]
local ends = queue.prefix .. 'key_ends'
if call('ZCOUNT', ends, '(' .. decimal(queue.now), '+inf') > tonumber(ARGV[3]) then return 1 end
for _, key in ipairs(call('ZRANGEBYSCORE', ends, '(' .. decimal(queue.now), '+inf')) do
  if string.sub(key, 1, #prefix) == prefix then return 1 end
end
return 0
