-- Claim due jobs: select them in claim order (priority, run_at, seq), and make them active under a lease.

-- @include job_record
-- @include event_log
-- @include claim_order
-- @include keyed_claim

-- The most list entries that one LRANGE reads, and the most stale entries that one step skips.
local MAX_WINDOW, MAX_STALE = 400, 4000

-- Return the priorities of the waiting jobs, highest first, and those of jobs without a key as a set; nil if no job has a key.
-- Call it after next_due.
local function descending_priorities(queue)
  local found, plain = queue.priorities, nil
  if queue.keyed then
    plain = {}
    for i = 1, #found do plain[found[i]] = true end
    for _, priority in ipairs(call('HKEYS', queue.prefix .. 'key_priorities')) do
      if not plain[priority] then found[#found + 1] = priority end
    end
  end
  if #found > 1 then table.sort(found, function(a, b) return tonumber(a) > tonumber(b) end) end
  return found, plain
end

-- Return the records of waiting jobs. The reply of HGET takes half of the instructions of that of HMGET.
local function read_waiting_records(queue, ids)
  if #ids == 1 then return {call('HGET', queue.keys.waiting, ids[1])} end
  return call('HMGET', queue.prefix .. 'waiting', unpack(ids))
end

-- Return up to `wanted` jobs from the head of the list `due:P` of a priority P, as ids and records. Stale entries (entries of
-- jobs that changed later) are skipped: `stale` has for each the number of jobs before it. The first LRANGE reads `wanted`
-- entries, so a list without stale entries needs only one LRANGE.
local function read_list(queue, priority, wanted)
  local ids, records, stale, count, window = {}, {}, EMPTY, 0, math.min(wanted, MAX_WINDOW)
  local list = {ids = ids, records = records, stale = EMPTY, gave_up = false}
  while count < wanted do
    local from, found = count + #stale, {}
    local entries = call('LRANGE', queue.prefix .. 'due:' .. priority, small_text(from), small_text(from + window - 1))
    if #entries == 0 then break end
    for i = 1, #entries do found[i] = sub(entries[i], 9) end
    local texts = read_waiting_records(queue, found)
    for i = 1, #entries do
      local text = texts[i]
      if text and is_of_entry(text, entries[i]) then
        count = count + 1
        ids[count], records[count] = found[i], text
        if count == wanted then break end
      else
        if text then check_waiting(queue, found[i], text) end
        if #stale == MAX_STALE then
          list.gave_up = true
          return list
        end
        if stale == EMPTY then
          stale = {}
          list.stale = stale
        end
        stale[#stale + 1] = count
      end
    end
    if #entries < window then break end
    window = math.min(2 * window, MAX_WINDOW)
  end
  queue.proven.waiting, queue.proven['due:' .. priority] = true, true
  return list
end

-- Return the number of entries at the head of a list that the first `count` of its jobs leave behind.
local function passed_entries(list, count)
  local passed = count
  if list.stale == EMPTY then return count end
  for _, before in ipairs(list.stale) do
    if before <= count then passed = passed + 1 end
  end
  return passed
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

-- The list of a priority that has only jobs with a key.
local NO_LIST = {ids = {}, records = {}, stale = {}, gave_up = false}

-- Return the records of due members of `line:P`, and their ids.
local function read_members(queue, members)
  if #members == 0 then return {}, {} end
  local ids = {}
  for n, member in ipairs(members) do ids[n] = sub(member, 9) end
  local records = read_waiting_records(queue, ids)
  for n, member in ipairs(members) do
    -- A member of the set without its record is damage, too: set members are never stale.
    check_waiting(queue, ids[n], records[n])
    if packed_seq(records[n]) ~= sub(member, 1, 8) then damaged('job', ids[n]) end
  end
  return records, ids
end

-- Add up to `limit` due jobs of one priority to `claim`, in claim order: from its list, from the due members of its ordered
-- set, and from the heads of the lines of its keys. Return the numbers of jobs from the list and from the set.
local function merge_heads(queue, claim, limit, list, scheduled, scheduled_ids, heads)
  local listed, added = 0, 0
  while #claim.ids < limit do
    local one, other, head = list.records[listed + 1], scheduled[added + 1], heads and heads.peek()
    if list.gave_up and not one or heads and heads.gave_up or not (one or other or head) then break end
    local from_set = other and (not one or is_earlier(other, one))
    local text, n = from_set and other or one, #claim.ids + 1
    if head and (not text or comes_first(queue, head, text)) then
      claim.ids[n], claim.keyed[n] = heads.pop(head)
      claim.records[n] = false
    else
      if queue.fair then queue.turns.start('', false) end
      if from_set then added = added + 1 else listed = listed + 1 end
      claim.ids[n], claim.records[n] = from_set and scheduled_ids[added] or list.ids[listed], text
    end
  end
  return listed, added
end

-- Add up to `limit` due jobs of one priority to `claim`. `plain` is true if jobs without a key may wait.
local function select_priority(queue, priority, limit, claim, plain)
  local wanted = limit - #claim.ids
  local list = plain and read_list(queue, priority, wanted) or NO_LIST
  local members = plain and queue.due_sets[priority] and due_set_entries(queue, priority, wanted) or EMPTY
  local heads = queue.keyed and head_reader(queue, priority, wanted)
  local listed, added = #list.ids, 0
  if #claim.ids == 0 and #members == 0 and not heads and not queue.fair then
    claim.ids, claim.records = list.ids, list.records
  else
    if claim.ids == EMPTY then claim.ids, claim.records = {}, {} end
    if claim.keyed == EMPTY then claim.keyed = {} end
    local scheduled, scheduled_ids = read_members(queue, members)
    listed, added = merge_heads(queue, claim, limit, list, scheduled, scheduled_ids, heads)
  end
  if added > 0 then plan_many(queue, 'zset', 'line:' .. priority, true, {unpack(members, 1, added)}) end
  local passed = passed_entries(list, listed)
  if passed > 0 or added > 0 then
    queue.list_trims = queue.list_trims or {}
    queue.list_trims[priority] = passed
    count_listed(queue, priority, -listed)
  end
  return list.gave_up or heads and heads.gave_up
end

-- Return up to `limit` due jobs in claim order: their ids, and their records. Return true as the third value if the search
-- gave up at too many stale entries.
local function select_due(queue, limit)
  local claim, gave_up = {ids = EMPTY, records = EMPTY, keyed = EMPTY}, false
  local priorities, plain = descending_priorities(queue)
  for _, priority in ipairs(priorities) do
    if #claim.ids >= limit or gave_up then break end
    gave_up = select_priority(queue, priority, limit, claim, not plain or plain[priority])
  end
  if queue.allowances then finish_keyed_claim(queue, claim) end
  return claim.ids, claim.records, gave_up
end

-- Make up to `limit` due jobs active under a lease, with one fence. Return a list of id, record, id, record, ..., whether the
-- search gave up at too many stale entries, and the references to payloads, in the order of their jobs, nil for none.
local function claim_due(queue, lease, holder, limit)
  local ids, records, gave_up = select_due(queue, limit)
  reading.prefix = queue.prefix
  if #ids == 0 then return {}, gave_up end
  local reply, references, run = {}, nil, claimed_run(next_number(queue), queue.now, lease, holder)
  for i = 1, #ids do
    local id, at, was_retrying, reference = ids[i], 2 * i - 1, false, nil
    reply[at], reply[at + 1], was_retrying, reference = id, active_record(id, records[i], run)
    if reference then
      if not has_payload(queue, reference) then damaged('job', id) end
      references = (references or '') .. reference
    end
    if was_retrying then queue.retrying = queue.retrying - 1 end
  end
  plan_many(queue, 'hash', 'waiting', true, ids)
  plan_many(queue, 'hash', 'active', false, reply)
  plan_many(queue, 'set', 'held:' .. lease, false, ids)
  for i = 2, queue.log_level == 'all' and #reply or 0, 2 do
    local text = expand_claimed(reply[i])
    log_change(queue, 'claimed', reply[i - 1], sub(text, 1, parse_head(reply[i - 1], text, 1).head_end))
  end
  return reply, gave_up, references
end
