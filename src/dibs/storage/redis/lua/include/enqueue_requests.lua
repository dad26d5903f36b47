-- The enqueue of a batch: the body of enqueue.lua and enqueue_batch.lua, which define two locals.
--
-- skipped      number of arguments between the time and the requests
-- store_batch  function that plans what to keep of the batch, called with the answers before the commit, or with {} if all
--              jobs are new; nil if nothing is kept

-- @include fast_enqueue
-- @include commit

local queue, common = open_queue(KEYS[1], ARGV[1]), ARGV[2 + skipped]
local ids, answers = {}, {}
for i = 3 + skipped, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
prefetch(queue, 'waiting', ids)
prefetch(queue, 'active', ids)

-- Fast path: numbers of the new jobs, up to the first known id. Most calls end here.
local fast_new = common ~= '' and fast_enqueuer(queue, 0, sub(common, 14))
while fast_new and #answers < #ids do
  local number = fast_new(ids[#answers + 1], ARGV[2 * #answers + 4 + skipped])
  if not number then break end
  answers[#answers + 1] = number
end
if #answers == #ids then
  if store_batch then store_batch({}) end
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
for i = 4 + skipped, common == '' and #ARGV or 0, 2 do keys[#keys + 1] = key_of(ARGV[i]) end
if #keys > 0 then prefetch(queue, 'keys', keys) end

-- Return the answer to an earlier request with this request key and the id of that request, or nil. The hash `keys`
-- has the answer, I8 expires_at and the id.
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
  local rest = ARGV[2 * i + 2 + skipped]
  local answer = answers[i] or fast_new and fast_new(ids[i], rest) or enqueue_other(i, common .. rest)
  answers[i], all_new = answer, all_new and type(answer) == 'number'
end
if store_batch then store_batch(all_new and {} or answers) end
commit()
if all_new then return {'', decimal(queue.now), outcomes, decimal(answers[1]), first_ids} end
for i, answer in ipairs(answers) do
  if type(answer) == 'number' then
    answers[i] = pack('>BBBI8I8', STATUS_QUEUED, FOUND_NOTHING, 0, answer, answer)
  end
end
return {table.concat(answers), decimal(queue.now), outcomes, '', first_ids}
