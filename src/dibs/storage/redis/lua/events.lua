-- Read events of the log from an entry on.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  number of the entry, '' for the oldest; '~' for only the end of the log
-- ARGV[2]  number of wanted events
-- Returns  {number of the last trimmed entry, number of the last entry or '', number, entry, number, entry, …}

-- @include queue

local queue, key, from, wanted = open_queue(KEYS[1], '0'), KEYS[1] .. 'log', ARGV[1], tonumber(ARGV[2])
local last = call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
local reply = {decimal(queue.trimmed), ''}
if not last then return reply end
reply[2] = last[1]
if from == '~' then return reply end
local start = from == '' and '-' or from
-- An entry may have thousands of events, so read few entries at a time.
while wanted > 0 do
  local entries = call('XRANGE', key, start, '+', 'COUNT', 8)
  for _, entry in ipairs(entries) do
    if #entry[2][2] < 12 then damaged('event', entry[1]) end
    local _, size = unpack_from('>I8I4', entry[2][2])
    table.insert(reply, entry[1])
    table.insert(reply, entry[2][2])
    wanted, start = wanted - size, '(' .. entry[1]
  end
  if #entries < 8 then break end
end
return reply
