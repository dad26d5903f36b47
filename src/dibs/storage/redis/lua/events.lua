-- Read the log from an entry on.
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  number of the entry, '' for the oldest; '~' for the end alone
-- ARGV[2]  how many events are wanted
-- Returns  {trimmed, number of the last entry or '', number, entry, …}

-- @include queue

local queue, key, from, wanted = open(KEYS[1], '0'), KEYS[1] .. 'log', ARGV[1], tonumber(ARGV[2])
local last = call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
local reply = {decimal(queue.trimmed), ''}
if not last then return reply end
reply[2] = last[1]
if from == '~' then return reply end
local start = from == '' and '-' or from
-- Entries hold up to thousands of events: few at a time, until there are enough.
while wanted > 0 do
  local entries = call('XRANGE', key, start, '+', 'COUNT', 8)
  for _, entry in ipairs(entries) do
    local _, size = unpack_from('>I8I4', entry[2][2])
    table.insert(reply, entry[1])
    table.insert(reply, entry[2][2])
    wanted, start = wanted - size, '(' .. entry[1]
  end
  if #entries < 8 then break end
end
return reply
