-- Read the next ids of a long listing with SCAN commands. Each id is returned once: a mark, a part of its hash, says that
-- it was returned.
--
-- A SCAN returns each id that stays in its key, some of them twice. Its positions are those of one server process, whose
-- hash function has a random seed; in another process, after a restart or a failover, the scan begins again. The marks
-- of the first page are in its cursor. Those of the later ones are in a sorted set by the number of the call that returned
-- the id, and the set expires an hour after its last use.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  token of the set of marks; '' before the second page, which makes it
-- ARGV[2]  a new token, the same in all calls for one page
-- ARGV[3]  number of the last call of this listing
-- ARGV[4]  the server process of the positions, '' to begin
-- ARGV[5]  number of the source to scan
-- ARGV[6]  position in this source
-- ARGV[7]  number of wanted ids
-- ARGV[8]  'first' for the first page, which makes no set
-- ARGV[9]  number of marks of the first page
-- ARGV[10…] these marks; then Redis type (hash, set or zset) and name of a source, type, name, ...
-- Returns  {'expired'} if the set is missing; or {token, number of this call, process, source, position, id…}, with
--          source 0 after the last id and process '' if the server does not tell it, or accepts no writes

local call, prefix = redis.call, KEYS[1]
local token, new_token, number, process = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local source, position, wanted, is_first = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), ARGV[8] == 'first'
local marks = tonumber(ARGV[9])
local sources = 10 + marks
local SCAN = {hash = 'HSCAN', set = 'SSCAN', zset = 'ZSCAN'}
-- Seconds until an unused set expires.
local EXPIRY = 3600
-- Member whose score is the number of the last call. A mark has 24 characters.
local LAST = ''
-- The most ids that one call reads from the sources; a call that finds only marked ones ends there.
local MAX_READ = 2000

-- A full server accepts the writes after a DEL. A replica accepts none, so it has no place for marks.
local can_write = type(redis.pcall('DEL', prefix .. 'nothing')) == 'number'
-- A server may forbid INFO; the reply is then a table with the error.
local info = redis.pcall('INFO', 'server')
local here = can_write and type(info) == 'string' and string.match(info, 'run_id:(%x%x%x%x%x%x%x%x%x%x%x%x)') or ''
if here ~= process then source, position = 1, '0' end

local function key_of(one) return prefix .. 'listing:' .. one end

-- Leave a set with the marks of the calls up to `number` alone. Return false if it has expired.
local function prepare_set()
  local key = key_of(new_token)
  if token == '' then
    -- A repeated call makes the set again.
    call('DEL', key)
    for i = 10, 9 + marks do call('ZADD', key, number, ARGV[i]) end
  else
    local last = tonumber(call('ZSCORE', key_of(token), LAST) or -1)
    if last < number then return false end
    -- The page was read before, by another reader or by a call whose reply was lost. That reader goes on with its set.
    if last > number and token ~= new_token then
      call('ZUNIONSTORE', key, 1, key_of(token))
    else
      key = key_of(token)
    end
    call('ZREMRANGEBYSCORE', key, '(' .. number, '+inf')
    if last == number then new_token = token end
  end
  call('ZADD', key_of(new_token), number + 1, LAST)
  call('EXPIRE', key_of(new_token), EXPIRY)
  return true
end

local function mark_of(id) return string.sub(redis.sha1hex(id), 1, 24) end

local returned = {}
if is_first then
  for i = 10, 9 + marks do returned[ARGV[i]] = true end
elseif not prepare_set() then
  return {'expired'}
end

local function is_marked(mark)
  return returned[mark] or not is_first and call('ZSCORE', key_of(new_token), mark)
end

local ids, read = {}, 0
-- Add the ids of a batch that have no mark. Return false if some are left because there are enough.
local function add(batch, step)
  for i = 1, #batch, step do
    local mark = mark_of(batch[i])
    read = read + 1
    if not is_marked(mark) then
      if #ids == wanted then return false end
      ids[#ids + 1], returned[mark] = batch[i], true
      if not is_first then call('ZADD', key_of(new_token), number + 1, mark) end
    end
  end
  return true
end

while source > 0 and #ids < wanted and read < MAX_READ do
  local kind, name = ARGV[sources + 2 * source - 2], ARGV[sources + 2 * source - 1]
  local found = call(SCAN[kind], prefix .. name, position, 'COUNT', wanted)
  -- The next call reads a batch with ids left once more.
  if not add(found[2], kind == 'set' and 1 or 2) then break end
  position = found[1]
  if position == '0' then source = sources + 2 * source <= #ARGV and source + 1 or 0 end
end
return {new_token, number + 1, here, source, position, unpack(ids)}
