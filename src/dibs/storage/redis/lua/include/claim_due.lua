-- Claim due jobs: select them in claim order (priority, run_at, seq), and make them active under a lease.

-- @include job_record
-- @include event_log
-- @include claim_order
-- @include keyed_claim

-- The most list entries that one LRANGE reads, and the most stale entries that one step skips.
local MAX_WINDOW, MAX_STALE = 400, 4000

-- Return the priorities of the waiting jobs, highest first, and those of jobs without a key as a set.
local function descending_priorities(queue)
  local found, plain = call('HKEYS', queue.prefix .. 'priorities'), {}
  for _, priority in ipairs(found) do plain[priority] = true end
  for _, priority in ipairs(queue.keyed and call('HKEYS', queue.prefix .. 'key_priorities') or {}) do
    if not plain[priority] then found[#found + 1] = priority end
  end
  table.sort(found, function(a, b) return tonumber(a) > tonumber(b) end)
  return found, plain
end

-- Return a reader of the list `due:P` of a priority P, from its head. peek() skips stale entries (entries of jobs
-- that changed later), and returns the next entry and the record of its job. pop() consumes this entry. The first
-- LRANGE reads `wanted` entries, so a list without stale entries needs only one LRANGE.
local function list_reader(queue, priority, wanted)
  local key = queue.prefix .. 'due:' .. priority
  local reader = {taken = 0, stale = 0}
  local at, entries, records, from, window = 1, {}, {}, 0, math.min(wanted, MAX_WINDOW)
  function reader.peek()
    while true do
      local entry = entries[at]
      if not entry then
        if reader.at_end then return nil end
        entries, at, from = call('LRANGE', key, from, from + window - 1), 1, from + window
        reader.at_end, window = #entries < window, math.min(2 * window, MAX_WINDOW)
        if #entries == 0 then return nil end
        local ids = {}
        for i, one in ipairs(entries) do ids[i] = sub(one, 9) end
        records, entry = call('HMGET', queue.prefix .. 'waiting', unpack(ids)), entries[1]
      end
      local text = records[at]
      if text and is_of_entry(text, entry) then
        return entry, text
      end
      if text then check_waiting(queue, sub(entry, 9), text) end
      if reader.stale >= MAX_STALE then
        reader.gave_up = true
        return nil
      end
      at, reader.taken, reader.stale = at + 1, reader.taken + 1, reader.stale + 1
    end
  end
  function reader.pop()
    at, reader.taken = at + 1, reader.taken + 1
  end
  return reader
end

-- Return up to `limit` due members of the ordered set `line:P`, oldest first.
local function due_set_entries(queue, priority, limit)
  return call('ZRANGEBYSCORE', queue.prefix .. 'line:' .. priority, '-inf', decimal(queue.now), 'LIMIT', 0, limit)
end

-- Return whether record `a` comes before record `b` in claim order; both have the same priority.
local function is_earlier(a, b)
  local a_seq, a_run_at = place_in_line(a)
  local b_seq, b_run_at = place_in_line(b)
  return a_run_at < b_run_at or (a_run_at == b_run_at and a_seq < b_seq)
end

-- A reader of the list of a priority that has only jobs with a key.
local NO_LIST = {taken = 0, stale = 0, peek = function() end}

-- Append up to `limit` due jobs of one priority to `selected`. `plain` is true if jobs without a key may wait. Return true
-- if a reader gave up after too many stale entries.
local function select_priority(queue, priority, limit, selected, plain)
  local members, reader = {}, NO_LIST
  if plain then members, reader = due_set_entries(queue, priority, limit), list_reader(queue, priority, limit) end
  local heads = queue.keyed and head_reader(queue, priority, limit)
  local i, count = 1, 0
  local records = {}
  if #members > 0 then
    local ids = {}
    for n, member in ipairs(members) do ids[n] = sub(member, 9) end
    records = call('HMGET', queue.prefix .. 'waiting', unpack(ids))
    for n, member in ipairs(members) do
      -- A member of the set without its record is damage, too: set members are never stale.
      check_waiting(queue, ids[n], records[n])
      if packed_seq(records[n]) ~= sub(member, 1, 8) then damaged('job', ids[n]) end
    end
  end
  while count < limit do
    local entry, listed = reader.peek()
    local scheduled, head = records[i], heads and heads.peek()
    if reader.gave_up or heads and heads.gave_up or not (entry or scheduled or head) then break end
    local from_set = scheduled and (not listed or is_earlier(scheduled, listed))
    local original = from_set and scheduled or listed
    local with_key = head and (not original or comes_first(head, original))
    selected[#selected + 1] = with_key and heads.pop(head)
      or {id = sub(from_set and members[i] or entry, 9), original = original}
    count = count + 1
    if with_key then
      -- heads.pop has planned the removal.
    elseif from_set then
      plan(queue, 'zset', 'line:' .. priority, members[i], false)
      i = i + 1
    else
      reader.pop()
    end
  end
  if plain then
    queue.list_trims = queue.list_trims or {}
    queue.list_trims[priority] = reader.taken
    queue.listed_counts[priority] = (queue.listed_counts[priority] or 0) - (reader.taken - reader.stale)
  end
  return reader.gave_up or heads and heads.gave_up
end

-- Return up to `limit` due jobs in claim order, and whether the search gave up at too many stale entries.
local function select_due(queue, limit)
  local selected, gave_up = {}, false
  local priorities, plain = descending_priorities(queue)
  for _, priority in ipairs(priorities) do
    if #selected >= limit or gave_up then break end
    gave_up = select_priority(queue, priority, limit - #selected, selected, plain[priority])
  end
  if queue.allowances then finish_keyed_claim(queue, selected) end
  return selected, gave_up
end

-- Make up to `limit` due jobs active under a lease. Return a list of id, record, id, record, ..., and whether the
-- search gave up at too many stale entries.
local function claim_due(queue, lease, holder, limit)
  local selected, gave_up = select_due(queue, limit)
  reading.prefix = queue.prefix
  if #selected == 0 then return {}, gave_up end
  local reply, lease_and_holder = {}, lease .. sized(holder)
  local waiting, active = planned_members(queue, 'hash', 'waiting'), planned_members(queue, 'hash', 'active')
  local held = planned_members(queue, 'set', 'held:' .. lease)
  for i, one in ipairs(selected) do
    local id = one.id
    local text = encode_active(id, one.original, next_number(queue), queue.now, lease_and_holder)
    count_retrying(queue, one.original, -1)
    waiting[id], active[id], held[id] = false, text, true
    reply[2 * i - 1], reply[2 * i] = id, text
    if queue.log_level == 'all' then
      log_change(queue, 'claimed', id, sub(text, 1, parse_head(id, text, 1).head_end))
    end
  end
  return reply, gave_up
end
