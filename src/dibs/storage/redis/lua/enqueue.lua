-- Take requests in, each as its id stands (contract 3, enqueue).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  what all requests begin with, up to the flags of their data; '' where each has its own
-- ARGV[3…] id and the rest of the request by turns (include/accept.lua)
-- Returns  {answers, now, outcomes, first}: answers packed one after the other (include/accept.lua), or, where
--          all are new, '' and the number that the first one drew, each other having the next; outcomes, for
--          each request that wants one and was not repeated, that of its id or nil.

-- @include starting
-- @include commit

local queue, common = open(KEYS[1], ARGV[1]), ARGV[2]
local ids, answers = {}, {}
for i = 3, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
prefetch(queue, 'waiting', ids)
prefetch(queue, 'active', ids)

-- Numbers of those that are new: mostly all of them.
local quick = common ~= '' and starter(queue, 0, sub(common, 14))
while quick and #answers < #ids do
  local number = quick(ids[#answers + 1], ARGV[2 * #answers + 4])
  if not number then break end
  answers[#answers + 1] = number
end
if #answers == #ids then
  commit()
  return {'', decimal(queue.now), {}, decimal(answers[1])}
end

-- Included only here: to make these functions takes a third of the time of a single enqueue.
-- @include accept

-- Where a request has a key, it stands behind its head.
local function key_of(text)
  local size = common == '' and string.byte(text, 13) or 0
  return size > 0 and sub(text, 14, 13 + size) or nil
end

local keys = {}
for i = 4, common == '' and #ARGV or 0, 2 do keys[#keys + 1] = key_of(ARGV[i]) end
if #keys > 0 then prefetch(queue, 'keys', keys) end

-- What a request_key got: answer, I8 expires_at.
local function known(request)
  local text = request.key and look(queue, 'keys', request.key)
  if not text or queue.now >= unpack_from('>I8', text, 20) then return nil end
  return sub(text, 1, 2) .. '\1' .. sub(text, 4, 19)
end

local function remember(request, answer)
  local expires_at = queue.now + queue.key_age
  keep(queue, 'keys', request.key, answer .. pack('>I8', expires_at))
  put(queue, 'zset', 'key_ends', request.key, decimal(expires_at))
end

local outcomes = {}

local function general(i, text)
  local request = parse_request(ids[i], text, queue.now)
  local answer, again = known(request), true
  if not answer then
    again = false
    local status, found, first, revision = accept(queue, request)
    answer = pack('>BBBI8I8', status, found, 0, first, revision)
    if request.key then remember(request, answer) end
  end
  if request.wants and not again then outcomes[#outcomes + 1] = look(queue, 'outcomes', request.id) end
  return answer
end

-- A request with its own head, quickly where that says no more than a priority.
local starters = {}
local function one(i, text)
  local mode, time, priority, _, size = unpack_from('>BBhI8B', text)
  if band(mode, 3) ~= 0 or time ~= 0 or size ~= 0 then return general(i, text) end
  if starters[priority] == nil then starters[priority] = starter(queue, priority, '') or false end
  return starters[priority] and starters[priority](ids[i], sub(text, 14)) or general(i, text)
end

-- Numbers of those that were new, and packed answers of the others.
local all_new = true
for i = 1, #ids do
  local rest = ARGV[2 * i + 2]
  local answer = answers[i] or quick and quick(ids[i], rest) or one(i, common .. rest)
  answers[i], all_new = answer, all_new and type(answer) == 'number'
end
commit()
if all_new then return {'', decimal(queue.now), outcomes, decimal(answers[1])} end
for i, answer in ipairs(answers) do
  if type(answer) == 'number' then answers[i] = pack('>BBBI8I8', QUEUED, NOTHING, 0, answer, answer) end
end
return {table.concat(answers), decimal(queue.now), outcomes, ''}
