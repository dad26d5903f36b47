-- The settlements of one step. settle_one.lua documents settlements and answers.
--
-- Fast path: plain completions of jobs in the form `claimed`, without parsing them. The jobs of one claim form a
-- group: they share the bytes of their run, so they share one event in the log, and most bytes of their outcomes.
-- tests/storage/redis/lua/test_claim_order.py compares it with the general path (end_run).

-- @include job_record
-- @include claim_order
-- @include event_log
-- @include short_outcomes
-- @include settle_one

local find, byte = string.find, string.byte
local DEFAULT_COMPLETED_AGE = string.match(DEFAULT_RETENTION, '^%d+')
local MAX_CLASS, MAX_DURATION, MAX_LEAD = 2 ^ 24 - 1, 2 ^ 24 - 1, 255

-- Return the age of a completed outcome in this queue as text ('*' for ever, '0' for none), and whether it keeps the data.
local function completed_age(queue)
  local age, keep = DEFAULT_COMPLETED_AGE, ''
  if queue.retention ~= ',,,' then age, keep = string.match(queue.retention, '^([^,]*),[^,]*,[^,]*,([^,]*)$') end
  return age ~= '' and age or DEFAULT_COMPLETED_AGE, find(keep, 'c', 1, true) ~= nil
end

-- Return the number of a class, and note that an outcome of it is kept until `expires_at`.
local function use_class(queue, age, holder)
  local text = (queue.ahead == 0 and age or age .. '+' .. queue.ahead / 1000) .. ',' .. holder
  local class = read_field(queue, 'classes', text)
  known_values(queue, 'classes')[class or ''] = text
  if not class then
    class = decimal(tonumber(read_field(queue, 'classes', '#') or 0) + 1)
    for field, value in pairs({['#'] = class, [text] = class, [class] = text}) do
      set_field(queue, 'classes', field, value)
    end
  end
  plan_many(queue, 'zset', 'class_ends', false, {age == '*' and '+inf' or decimal(queue.now + tonumber(age)), class})
  return tonumber(class)
end

-- Return the bytes that the outcomes of a group share; nil if they need the general form.
local function shared_outcome(queue, age, group)
  local ahead = queue.ahead or begin_incarnation(queue)
  local lead, duration = math.floor((group.fence - ahead) / 1000) - group.claimed_at, queue.now - group.claimed_at
  if lead < 0 or lead > MAX_LEAD or duration < 0 or duration > MAX_DURATION then return nil end
  local class, plain = use_class(queue, age, group.holder), group.priority == NO_PRIORITY
  if class > MAX_CLASS then return nil end
  local flags = (plain and 0 or KEEPS_PRIORITY) + (group.place_size > 15 and KEEPS_TIME or 0)
  return pack('>BI3', flags, class) .. sub(group.packed_fence, 2) .. pack('>BI3', lead, duration)
    .. (plain and '' or group.priority)
end

-- Note the end of the outcomes in the short form of this step.
local function index_ends(queue, age, ids, joined)
  if #ids == 0 then return end
  count_kept(queue, age, #ids)
  if age ~= '*' then plan_many(queue, 'list', 'ends:' .. age, false, {pack('>I6', queue.now) .. joined}) end
end

-- Return the list of arguments of a planned write of many members.
local function planned_list(queue, kind, name, removes)
  local args = {}
  plan_many(queue, kind, name, removes, args)
  return args
end

-- Return two functions. complete(id, settlement) ends a run, or
-- returns false without a change if it needs the general path. finish() plans what the completions before it share; the
-- caller calls it before other changes and at the end. The caller has prefetched `active`, `successors` and `outcomes`.
local function completer(queue)
  local age, keeps_data = completed_age(queue)
  local keeps, needs_general_path = age ~= '0', keeps_data or queue.log_results > 0
  local general = HAS_RETENTION + HAS_KEY + (keeps and HAS_ATTRIBUTES or 0)
  local active, successors, outcomes = queue.fields.active, queue.fields.successors, queue.fields.outcomes
  local outputs = queue.has_output and queue.fields.outputs
  local drops_ranges = not keeps and call('EXISTS', queue.prefix .. 'dropped') == 1
  local ended, stored, gone, held = own(queue, 'ended_ids'), nil, nil, {}
  -- The open group: the bytes that all its records begin with, what they share, and what follows from it.
  local start, group, shared, leased
  -- Its ids, the heads of its events, and the ids for the index of ends if these are not all its ids.
  local ids, heads, count, indexed = nil, nil, 0, nil

  local function finish()
    if count == 0 then return end
    local joined = table.concat(ids, '\0')
    log_completions(queue, count, joined, group, table.concat(heads))
    if keeps then
      queue.outcome_reply = outcome_reply
      index_ends(queue, age, indexed or ids, indexed and table.concat(indexed, '\0') or joined)
    end
    group, count, indexed = nil, 0, nil
  end

  -- Begin the group of a record. Return false if such records need the general path.
  local function begin(text)
    finish()
    group = nil
    local parsed = parse_claimed(text)
    if not parsed then return false end
    shared = keeps and shared_outcome(queue, age, parsed)
    if keeps and not shared then return false end
    group, ids, heads = parsed, {}, {}
    if not gone then
      gone = planned_list(queue, 'hash', 'active', true)
      if keeps then stored = planned_list(queue, 'hash', 'outcomes', false) end
    end
    local name = 'held:' .. group.lease
    held[name] = held[name] or planned_list(queue, 'set', name, true)
    start, leased = group.start, held[name]
    return true
  end

  -- Plan the write of an outcome. An id that had one before gets the general form: in `ends:AGE`, each of its runs would
  -- leave a stale entry.
  local function keep(id, outcome)
    if outcomes[id] then
      indexed = indexed or {unpack(ids, 1, count - 1)}
      return store_outcome(queue, id, 1, expand_kept(queue, outcome), age == '*' and '+inf' or decimal(queue.now + tonumber(age)))
    end
    local n = #stored
    stored[n + 1], stored[n + 2], outcomes[id], ended[#ended + 1] = id, outcome, outcome, id
    if indexed then indexed[#indexed + 1] = id end
  end

  local function complete(id, settlement)
    local text, result = active[id], nil
    if needs_general_path or not text or successors[id] then return false end
    if outputs and outputs[id] then return false end
    if not (group and find(text, start, 1, true) == 1) and not begin(text) then return false end
    local kind, has = byte(settlement, 9, 10)
    if kind ~= 1 or (has ~= 0 and has ~= 16) or sub(settlement, 1, 8) ~= group.packed_fence or sub(settlement, 19, 20) ~= '\0\0' then
      return false
    end
    if has == 16 then result = sub(settlement, 21) end
    local head, data_flags = claimed_place(text, start, group.place_size)
    if not data_flags or band(data_flags, general) ~= 0 then return false end
    count = count + 1
    ids[count], heads[count], active[id] = id, head, false
    gone[#gone + 1], leased[#leased + 1] = id, id
    if data_flags >= BY_REFERENCE then payload_plan(queue).gone[sub(text, -REFERENCE_SIZE)] = true end
    if drops_ranges then set_field(queue, 'dropped', id, false) end
    if keeps then
      keep(id, result and string.char(byte(shared) + KEEPS_RESULT) .. sub(shared, 2) .. head .. result or shared .. head)
    elseif outcomes[id] then
      remove_outcome(queue, id)
    else
      ended[#ended + 1] = id
    end
    if queue.max_active then queue.work_changed = true end
    return true
  end

  return complete, finish
end

-- The answer `done`.
local DONE_ANSWER = pack('>BI8', 1, 0)

-- Apply all settlements in ARGV from `at` on: `count` pairs of id and settlement, then the follow-ups. Return the
-- packed answers. fail_prefix: the prefix of the fail queue's keys.
local function settle_all(queue, name, fail_prefix, manual, count, at)
  local ids, answers = {}, {}
  for i = 1, count do ids[i] = ARGV[at + 2 * i - 2] end
  prefetch(queue, 'active', ids)
  prefetch_if_any(queue, 'successors', ids)
  prefetch_if_any(queue, 'outcomes', ids)
  if queue.has_output then prefetch_if_any(queue, 'outputs', ids) end
  local complete, finish = completer(queue)
  local then_at = at + 2 * count
  local fail_queue
  for i = 1, count do
    local id, text = ids[i], ARGV[at + 2 * i - 1]
    if complete(id, text) then
      answers[i] = DONE_ANSWER
    else
      finish()
      fail_queue = fail_queue or {name = name, open = function() return open_queue(fail_prefix, manual) end}
      answers[i], then_at = settle_packed(queue, id, text, fail_queue, manual, then_at)
    end
  end
  finish()
  return table.concat(answers)
end
