-- The enqueue of a batch, for enqueue.lua and enqueue_batch.lua.

-- @include commit
-- @include accept

-- The bytes of a request before its request key and its data.
local HEAD_SIZE = 13

-- Return the priority of requests that begin with `start`, the head of a request and the flags of its data, if each of them is a
-- job without a key that is due now, and no outcome or request key decides about it; else false. Return as the second value whether
-- each has a reference to its payload.
local function plain_priority(start)
  local mode, time, priority, _, key_size, flags = unpack_from('>BBhI8BB', start)
  return band(mode, 67) == 0 and time == 0 and key_size == 0 and band(flags, HAS_KEY) == 0 and priority, flags >= BY_REFERENCE
end

-- Return the request key of a packed request, nil if it has none. The key follows the head.
local function request_key_of(text)
  local size = string.byte(text, HEAD_SIZE)
  return size > 0 and sub(text, HEAD_SIZE + 1, HEAD_SIZE + size) or nil
end

-- Return the answer to an earlier request with this request key and the id of that request, or nil. The hash `keys`
-- has the answer, I8 expires_at and the id.
local function repeated_answer(queue, request)
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
local function store_request_key(queue, request, status, answer)
  local expires_at, id = queue.now + queue.request_key_age, status ~= STATUS_ABSENT and request.id or ''
  set_field(queue, 'keys', request.key, answer .. pack('>I8', expires_at) .. id)
  plan(queue, 'zset', 'key_ends', request.key, decimal(expires_at))
end

-- Enqueue the requests in ARGV, and return the reply of enqueue.lua. `skipped` is the number of arguments between the time
-- and the requests. store_batch(answers) plans what to keep of the batch before the commit, with {} if all jobs are new.
-- It returns false if the batch must change nothing. It is nil if nothing is kept.
local function enqueue_requests(skipped, store_batch)
  local queue, args, before = open_queue(KEYS[1], ARGV[1]), ARGV, 1 + skipped
  local ids, answers = {}, {}
  for i = 1 + before, #args, 2 do ids[#ids + 1] = args[i] end
  prefetch(queue, 'waiting', ids)
  prefetch(queue, 'active', ids)

  local waiting, active = queue.fields.waiting, queue.fields.active
  -- The start of the request before, its priority or false, and this priority as text. Most requests of a batch start alike.
  local last_start, priority, name, refers

  -- True if `accept` must decide about each request: `max_waiting` may stop one, or each gives its key a turn.
  local may_stop = queue.fair
  if queue.max_waiting then
    queue.room = queue.max_waiting - call('HLEN', queue.keys.waiting)
    may_stop = may_stop or queue.room < #ids
  end

  -- Return the number of a new job without parsing its request; nil if `accept` must decide.
  local function enqueue_plain(i)
    if may_stop then return nil end
    local id, text = ids[i], args[2 * i + before]
    local start = sub(text, 1, HEAD_SIZE + 1)
    if start ~= last_start then
      last_start, priority, refers = start, plain_priority(start)
      name = priority and priority_text(priority)
      priority = priority and list_takes_more(queue, name) and priority
    end
    if priority and not waiting[id] and not active[id] then
      if refers then note_sent(queue, sub(text, -REFERENCE_SIZE)) end
      return add_listed(queue, id, priority, name, sub(text, HEAD_SIZE + 1))
    end
  end

  -- Most calls end here: all jobs are new.
  for i = 1, #ids do
    local number = enqueue_plain(i)
    if not number then break end
    answers[i] = number
  end
  if #answers == #ids then
    if store_batch then store_batch({}) end
    commit()
    return answers[1]
  end

  local keys, outcomes, first_ids = {}, {}, {}
  for i = 1, #ids do keys[#keys + 1] = request_key_of(args[2 * i + before]) end
  if #keys > 0 then prefetch(queue, 'keys', keys) end

  local function enqueue_one(i, text)
    local request = parse_request(ids[i], text, queue.now)
    -- The payload of a refused request goes at once.
    if string.byte(request.data) >= BY_REFERENCE then note_sent(queue, sub(request.data, -REFERENCE_SIZE)) end
    local answer, first_id = repeated_answer(queue, request)
    if first_id then
      first_ids[#first_ids + 1] = first_id
    else
      -- The outcome before the request, because a request that supersedes a handed-off run stores another one.
      if request.wants_outcome then
        local outcome = read_field(queue, 'outcomes', request.id)
        outcomes[#outcomes + 1] = whole_record(queue, 'outcomes', request.id, outcome_reply(queue, request.id, outcome))
      end
      local status, found, first, revision = accept(queue, request)
      answer = pack('>BBBI8I8', status, found, 0, first, revision)
      if request.key and status < STATUS_FULL then store_request_key(queue, request, status, answer) end
    end
    return answer
  end

  -- The answer of enqueue_plain is the number of a new job; any other answer is a packed string.
  local all_new = true
  for i = 1, #ids do
    local answer = answers[i] or enqueue_plain(i) or enqueue_one(i, args[2 * i + before])
    answers[i], all_new = answer, all_new and type(answer) == 'number'
  end
  if not store_batch or store_batch(all_new and {} or answers) then commit() end
  if all_new then return {'', decimal(queue.now), outcomes, decimal(answers[1]), first_ids} end
  for i, answer in ipairs(answers) do
    if type(answer) == 'number' then
      answers[i] = pack('>BBBI8I8', STATUS_QUEUED, FOUND_NOTHING, 0, answer, answer)
    end
  end
  return {table.concat(answers), decimal(queue.now), outcomes, '', first_ids}
end
