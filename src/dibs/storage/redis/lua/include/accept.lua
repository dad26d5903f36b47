-- Enqueue one request. The state of its id decides what happens (docs/explanation/contract.md, enqueue).
--
-- Python packs requests and unpacks answers in storage/redis/codec/requests.py. Numbers are big-endian.
--
-- request   B mode, B time, h priority, I8 at, B + request key, then data
-- mode      0 update, 1 reject, 2 reject also if the last run failed; an update adds 4 replaces, 8 resets,
--           16 * rule (storage/redis/lua/include/fold.lua), 64 update-only or 128 supersedes the active run
-- time      0 now, 1 `at` is run_at, 2 `at` is a delay in ms; + 4 the caller wants the outcome; + 8 wakes a parked job
-- answer    B status, B found, B repeated, I8 first, I8 revision
-- status    STATUS_... below; ENQUEUE_STATUSES in storage/redis/codec/requests.py has the same order
-- found     FOUND_... below; FOUND_STATES in storage/redis/codec/requests.py has the same order

-- @include attributes
-- @include outcomes
-- @include payloads

-- The size in bytes beyond which an update-only request merges no attributes; MOST_ATTRIBUTES in src/dibs/model/rules.py.
local MOST_ATTRIBUTES = 65536
local STATUS_QUEUED, STATUS_UPDATED, STATUS_BLOCKED = 1, 2, 3
local STATUS_DUPLICATE, STATUS_COMPLETED, STATUS_FAILED, STATUS_ABSENT = 4, 5, 6, 7
local STATUS_FULL, STATUS_DROPPED = 8, 9
local FOUND_NOTHING, FOUND_WAITING, FOUND_ACTIVE, FOUND_BLOCKED = 1, 2, 3, 4

local function parse_request(id, text, now)
  local mode, time, priority, at, size, from = unpack_from('>BBhI8B', text)
  local kind, key = band(time, 3), size > 0 and sub(text, from, from + size - 1) or nil
  return {
    id = id, reject_mode = band(mode, 3), replaces = band(mode, 4) ~= 0, resets = band(mode, 8) ~= 0,
    creates = band(mode, 64) == 0, supersedes = mode >= 128, rule = band(math.floor(mode / 16), 3),
    priority = priority, wants_outcome = band(time, 4) ~= 0, wakes = time >= 8, key = key,
    run_at = kind == 0 and now or kind == 1 and at or now + at, data = sub(text, from + size),
  }
end

local function new_job(request, now, number)
  return {
    id = request.id, priority = request.priority, run_at = request.run_at, enqueued_at = now, seq = number,
    first = number, revision = number, enqueues = 1, attempts = 0, retries = 0, stalls = 0, timeouts = 0,
    fence = false, data = request.data,
  }
end

-- Return the values of a waiting job that decide about its place in claim order.
local function place_of(job)
  return {id = job.id, seq = job.seq, listed = job.listed, priority = job.priority, run_at = job.run_at, data = job.data}
end

-- Return data with the attributes of an update-only request merged into its own, and the size of its attributes.
local function with_attributes(data, attributes)
  local parts = split_data(data)
  parts.attributes = merge(parts.attributes or '', attributes)
  return join_data(parts), size_of(parts.attributes)
end

-- Return whether the attributes of an update-only request have room in the live job of its id, and in the successor.
local function attributes_fit(queue, request, live)
  local function fits(part)
    return not part or select(2, with_attributes(part.data, request.attributes)) <= MOST_ATTRIBUTES
  end
  return fits(parse_job(request.id, live)) and fits(read_successor(queue, request.id))
end

-- Store a changed waiting job. A job with a new priority, run_at, seq or key also gets a new entry in claim order; `before`
-- is its place before the change.
local function update_order(queue, job, before)
  if job.priority == before.priority and job.run_at == before.run_at and job.seq == before.seq
    and key_of(job.data) == key_of(before.data) then
    set_waiting(queue, job.id, encode_job(job))
    return
  end
  remove_from_order(queue, before)
  add_to_order(queue, job, false)
end

-- A parked job, whose seq is 0, is no longer parked if a request moves or wakes it.
local function update_waiting(queue, job, request, number)
  local before = place_of(job)
  if request.attributes then job.data = with_attributes(job.data, request.attributes) end
  if request.replaces then job.data, job.priority = request.data, request.priority end
  local rule, run_at = request.rule, request.run_at
  if job.seq == 0 then
    if request.wakes then rule = EARLIER end
    if rule ~= NEVER then job.seq = number end
  end
  job.run_at = moved_time(job.run_at, rule, run_at)
  job.revision, job.enqueues = number, job.enqueues + 1
  if request.resets then reset_counts(job) end
  update_order(queue, job, before)
  log_change(queue, 'updated', job.id, encode_head(job))
  return STATUS_UPDATED, FOUND_WAITING, job.first
end

-- The attributes of an update-only request also go into the active job, and into a successor that creates one.
local function add_to_successor(queue, active, request, number)
  local successor, found = read_successor(queue, request.id), FOUND_BLOCKED
  if request.attributes then
    local job = parse_job(request.id, active)
    job.data = with_attributes(job.data, request.attributes)
    set_field(queue, 'active', job.id, encode_job(job))
    if successor and successor.creates then
      successor.data = with_attributes(successor.data, request.attributes)
    end
  end
  if successor then
    extend_fold(successor, request, request, request.run_at, queue.now, number)
  else
    successor, found = start_fold(request, request, request.run_at, queue.now, number), FOUND_ACTIVE
  end
  set_field(queue, 'successors', request.id, encode_successor(successor))
  log_change(queue, 'blocked', request.id, encode_head(promoted_job(request.id, successor)))
  return STATUS_BLOCKED, found, successor.first
end

-- Add a new job that is due now, without a key, to the list of its priority; `name` is the priority as text. Return its
-- number.
local function add_listed(queue, id, priority, name, data)
  local number, new_records = next_number(queue), own(queue, 'new_records')
  local text, n = listed_record(priority, number, queue.now, data), #new_records
  if queue.has_payloads and string.byte(data) >= BY_REFERENCE then remember_replaced(queue, 'waiting', id, false) end
  new_records[n + 1], new_records[n + 2], queue.fields.waiting[id] = id, text, text
  local entries = queue.list_entries[name] or new_entries(queue, name)
  entries[#entries + 1] = sub(text, 4, 11) .. id
  if queue.log_level == 'all' then log_change(queue, 'queued', id, sub(text, 1, LISTED_HEAD)) end
  return number
end

local function enqueue_new(queue, request)
  request.data = stored_data(queue, request.data, 1)
  if request.run_at == queue.now and band(string.byte(request.data), HAS_KEY) == 0 and not queue.fair then
    local name = priority_text(request.priority)
    if list_takes_more(queue, name) then return add_listed(queue, request.id, request.priority, name, request.data) end
  end
  local job = new_job(request, queue.now, next_number(queue))
  add_to_order(queue, job, true)
  log_change(queue, 'queued', job.id, encode_head(job))
  return job.seq
end

local read_head = guarded('job', function(id, text)
  local job, at = parse_head(id, expand_claimed(text), 1)
  check_head(job)
  return job, at
end)

-- Return status, found, first and revision if a Reject refuses the request; nil if the request is accepted.
local function check_reject(queue, request, waiting, active)
  local current = waiting or active
  if current then
    local job = read_head(request.id, current)
    local found = waiting and FOUND_WAITING
      or read_field(queue, 'successors', request.id) and FOUND_BLOCKED or FOUND_ACTIVE
    return STATUS_DUPLICATE, found, job.first, job.revision
  end
  local ended = live_outcome(queue, request.id)
  if not ended or ended.kind == 3 or (ended.kind == 2 and request.reject_mode < 2) then return nil end
  return ended.kind == 1 and STATUS_COMPLETED or STATUS_FAILED, FOUND_NOTHING, ended.first, ended.revision
end

-- Enqueue a parsed request. Return status, found, first and revision. An enqueue sets `queue.room` to the number of new jobs
-- that `max_waiting` still allows; it is nil for follow-ups, which may exceed that bound.
local function accept(queue, request)
  local waiting = read_field(queue, 'waiting', request.id)
  local active = not waiting and read_field(queue, 'active', request.id)
  if request.reject_mode > 0 then
    local status, found, first, revision = check_reject(queue, request, waiting, active)
    if status then return status, found, first, revision end
    -- An accepted Reject acts like an Update with default options.
    request.replaces, request.resets, request.rule = true, true, ALWAYS
  end
  if not (request.creates or waiting or active) then return STATUS_ABSENT, FOUND_NOTHING, 0, 0 end
  request.attributes = not request.creates and split_data(request.data).attributes
  if request.attributes and not attributes_fit(queue, request, waiting or active) then
    local found = waiting and FOUND_WAITING or read_field(queue, 'successors', request.id) and FOUND_BLOCKED or FOUND_ACTIVE
    return STATUS_FULL, found, 0, 0
  end
  if not waiting and not active then
    if queue.room then
      if queue.room <= 0 then return queue.drops_new and STATUS_DROPPED or STATUS_FULL, FOUND_NOTHING, 0, 0 end
      queue.room = queue.room - 1
    end
    local number = enqueue_new(queue, request)
    return STATUS_QUEUED, FOUND_NOTHING, number, number
  end
  local number, status, found, first = next_number(queue), nil, nil, nil
  request.data = stored_data(queue, request.data, 1)
  if waiting then
    status, found, first = update_waiting(queue, parse_job(request.id, waiting), request, number)
  else
    status, found, first = add_to_successor(queue, active, request, number)
    if request.supersedes then ask_to_end(queue, parse_job(request.id, active)) end
    -- The end of a handed-off run has promoted the successor.
    if queue.room and read_field(queue, 'waiting', request.id) then queue.room = queue.room - 1 end
  end
  return status, found, first, number
end
