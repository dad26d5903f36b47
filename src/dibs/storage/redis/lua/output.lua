-- Read the output of an id from a chunk on, without that of an expired outcome.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  id
-- ARGV[3]  number and index of the first chunk, as 'number-index'; '~' for only the end
-- ARGV[4]  number of wanted chunks
-- Returns  {id of the last chunk or '', id of the last chunk that was removed and is missed, '' for none, chunk, …}

-- @include outcomes
-- @include output

local queue, id, from, wanted = open_queue(KEYS[1], ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local key, known = queue.prefix .. 'output:' .. id, read_output(queue, id)
if not known then return {'', ''} end
if from == '~' then
  local last = call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  return {last and last[1] or '', ''}
end
local first = live_outcome(queue, id) and 0 or known.begin
local number = tonumber(string.match(from, '^%d+'))
local cut = known.cut > 0 and known.cut >= first and decimal(known.cut) .. '-' .. decimal(known.cut_index) or ''
local reply = {'', cut}
local start = number < first and decimal(first) .. '-0' or from
for _, entry in ipairs(call('XRANGE', key, start, '+', 'COUNT', wanted)) do reply[#reply + 1] = entry end
return reply
