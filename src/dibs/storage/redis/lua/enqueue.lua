-- Take requests in, each as its id stands (contract 3, enqueue).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2…] id and request by turns (include/accept.lua)
-- Returns  {answers, now, outcomes}: answers packed one after the other (include/accept.lua); outcomes, for
--          each request that wants one and was not repeated, that of its id or nil.

-- @include accept
-- @include quick
-- @include commit

local queue = open(KEYS[1], ARGV[1])
local ids, keys = {}, {}
for i = 2, #ARGV, 2 do
  ids[i / 2] = ARGV[i]
  local size = string.byte(ARGV[i + 1], 13)
  if size > 0 then keys[#keys + 1] = sub(ARGV[i + 1], 14, 13 + size) end
end
prefetch(queue, 'waiting', ids)
prefetch(queue, 'active', ids)
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

local answers, outcomes = {}, {}

local function general(i)
  local request = parse_request(ids[i], ARGV[2 * i + 1], queue.now)
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

for i, id in ipairs(ids) do
  local number = quick_start(queue, id, ARGV[2 * i + 1])
  answers[i] = number and pack('>BBBI8I8', QUEUED, NOTHING, 0, number, number) or general(i)
end
commit()
return {table.concat(answers), decimal(queue.now), outcomes}
