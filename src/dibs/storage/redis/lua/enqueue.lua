-- Enqueue requests. The state of each id decides what happens (docs/explanation/contract.md, enqueue).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  the bytes that all requests begin with, including the flags of their data; '' if they differ
-- ARGV[3…] id, rest of the request, id, rest, ... (storage/redis/lua/include/accept.lua)
-- Returns  the number of the first job if all jobs are new and took the fast path: each later job has the next number.
--          Not a table, because Redis 6.2 sends each table of a reply with a system call of its own.
--          Else {answers, now, outcomes, first, first_ids}
--          answers   packed answers (storage/redis/lua/include/accept.lua); '' if all jobs are new
--          outcomes  outcome or nil for each request that wants one and did not repeat a request key
--          first     number of the first job if all jobs are new, each later job has the next number; else ''
--          first_ids for each answer that repeats a request key, the id of the first request with that key

-- @include single_enqueue
-- @include fast_enqueue
-- @include commit

local queue, common = open_queue(KEYS[1], ARGV[1]), ARGV[2]
local ids, answers = {}, {}
for i = 3, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
prefetch(queue, 'waiting', ids)
prefetch(queue, 'active', ids)

-- Fast path: numbers of the new jobs, up to the first known id. Most calls end here.
local fast_new = common ~= '' and fast_enqueuer(queue, 0, sub(common, 14))
while fast_new and #answers < #ids do
  local number = fast_new(ids[#answers + 1], ARGV[2 * #answers + 4])
  if not number then break end
  answers[#answers + 1] = number
end
if #answers == #ids then
  commit()
  return answers[1]
end

-- This include stands here and not at the top: the definition of its functions takes a third of the time of a
-- single enqueue, and the fast path does not need them.
-- @include accept

-- Return the request key of a packed request, nil if it has none. The key follows the head.
local function key_of(text)
  local size = common == '' and string.byte(text, 13) or 0
  return size > 0 and sub(text, 14, 13 + size) or nil
end

local keys = {}
for i = 4, common == '' and #ARGV or 0, 2 do keys[#keys + 1] = key_of(ARGV[i]) end
if #keys > 0 then prefetch(queue, 'keys', keys) end

-- Return the answer to an earlier request with this request key and the id of that request, or nil. The hash `keys`
-- has the answer, I8 expires_at and the id. A record that an earlier version of dibs has stored ends before the id.
local function repeated_answer(request)
  local text = request.key and read_field(queue, 'keys', request.key)
  if not text then return nil end
  local status, found = string.byte(text, 1, 2)
  if #text < 27 or status < 1 or status > STATUS_ABSENT or found < 1 or found > FOUND_BLOCKED then
    damaged('request_key', request.key)
  end
  if queue.now >= unpack_from('>I8', text, 20) then return nil end
  return sub(text, 1, 2) .. '\1' .. sub(text, 4, 19), sub(text, 28)
end

-- The answer `absent` is about no id.
local function store_request_key(request, status, answer)
  local expires_at, id = queue.now + queue.request_key_age, status ~= STATUS_ABSENT and request.id or ''
  set_field(queue, 'keys', request.key, answer .. pack('>I8', expires_at) .. id)
  plan(queue, 'zset', 'key_ends', request.key, decimal(expires_at))
end

local outcomes, first_ids = {}, {}

local function enqueue_one(i, text)
  local request = parse_request(ids[i], text, queue.now)
  local answer, first_id = repeated_answer(request)
  if first_id then
    first_ids[#first_ids + 1] = first_id
  else
    local status, found, first, revision = accept(queue, request)
    answer = pack('>BBBI8I8', status, found, 0, first, revision)
    if request.key then store_request_key(request, status, answer) end
  end
  if request.wants_outcome and not first_id then
    outcomes[#outcomes + 1] = outcome_reply(queue, request.id, read_field(queue, 'outcomes', request.id))
  end
  return answer
end

-- Enqueue a request that has its own head. Use the fast path if the head sets only a priority, and the data has no key.
local fast_enqueuers = {}
local function enqueue_other(i, text)
  local mode, time, priority, _, size = unpack_from('>BBhI8B', text)
  if band(mode, 67) ~= 0 or time ~= 0 or size ~= 0 or band(string.byte(text, 14), HAS_KEY) ~= 0 then
    return enqueue_one(i, text)
  end
  if fast_enqueuers[priority] == nil then
    fast_enqueuers[priority] = fast_enqueuer(queue, priority, '') or false
  end
  return fast_enqueuers[priority] and fast_enqueuers[priority](ids[i], sub(text, 14)) or enqueue_one(i, text)
end

-- The answer of the fast path is the number of a new job; any other answer is a packed string.
local all_new = true
for i = 1, #ids do
  local rest = ARGV[2 * i + 2]
  local answer = answers[i] or fast_new and fast_new(ids[i], rest) or enqueue_other(i, common .. rest)
  answers[i], all_new = answer, all_new and type(answer) == 'number'
end
commit()
if all_new then return {'', decimal(queue.now), outcomes, decimal(answers[1]), first_ids} end
for i, answer in ipairs(answers) do
  if type(answer) == 'number' then
    answers[i] = pack('>BBBI8I8', STATUS_QUEUED, FOUND_NOTHING, 0, answer, answer)
  end
end
return {table.concat(answers), decimal(queue.now), outcomes, '', first_ids}
