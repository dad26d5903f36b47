-- Claim: who is due becomes active, in claim order.

-- @include log
-- @include line

-- Entries read at a time at most, and stale ones skipped at most in one step.
local LARGEST_WINDOW, MOST_STALE = 400, 4000

local function priorities(queue)
  local found = call('HKEYS', queue.base .. 'priorities')
  table.sort(found, function(a, b) return tonumber(a) > tonumber(b) end)
  return found
end

-- Reads the list of a priority from its head: the next entry that is not stale, and its record. Where
-- nothing is stale, it reads as many as are wanted and no more.
local function list_reader(queue, priority, wanted)
  local key = queue.base .. 'due:' .. priority
  local reader = {taken = 0, stale = 0}
  local at, entries, records, from, window = 1, {}, {}, 0, math.min(wanted, LARGEST_WINDOW)
  function reader.peek()
    while true do
      local entry = entries[at]
      if not entry then
        if reader.whole then return nil end
        entries, at, from = call('LRANGE', key, from, from + window - 1), 1, from + window
        reader.whole, window = #entries < window, math.min(2 * window, LARGEST_WINDOW)
        if #entries == 0 then return nil end
        local ids = {}
        for i, one in ipairs(entries) do ids[i] = sub(one, 9) end
        records, entry = call('HMGET', queue.base .. 'waiting', unpack(ids)), entries[1]
      end
      local text = records[at]
      if text and sub(text, 4, 11) == sub(entry, 1, 8) and band(string.byte(text), LISTED) ~= 0 then
        return entry, text
      end
      if reader.stale >= MOST_STALE then
        reader.tired = true
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

-- The due part of the ordered set, oldest first, up to `limit`.
local function due_set(queue, priority, limit)
  return call('ZRANGEBYSCORE', queue.base .. 'line:' .. priority, '-inf', decimal(queue.now), 'LIMIT', 0, limit)
end

local function before(a, b)
  local a_seq, a_run_at = unpack_from('>I8I8', a, 4)
  local b_seq, b_run_at = unpack_from('>I8I8', b, 4)
  return a_run_at < b_run_at or (a_run_at == b_run_at and a_seq < b_seq)
end

-- Take up to `limit` of one priority into `taken`; returns true when too many stale entries were met.
local function take_priority(queue, priority, limit, taken)
  local members, reader, i, count = due_set(queue, priority, limit), list_reader(queue, priority, limit), 1, 0
  local records = {}
  if #members > 0 then
    local ids = {}
    for n, member in ipairs(members) do ids[n] = sub(member, 9) end
    records = call('HMGET', queue.base .. 'waiting', unpack(ids))
  end
  while count < limit do
    local entry, listed = reader.peek()
    local lined = records[i]
    if reader.tired or not (entry or lined) then break end
    local from_line = lined and (not listed or before(lined, listed))
    taken[#taken + 1] = {id = sub(from_line and members[i] or entry, 9), text = from_line and lined or listed}
    count = count + 1
    if from_line then
      put(queue, 'zset', 'line:' .. priority, members[i], false)
      i = i + 1
    else
      reader.pop()
    end
  end
  queue.heads = queue.heads or {}
  queue.heads[priority] = reader.taken
  queue.live[priority] = (queue.live[priority] or 0) - (reader.taken - reader.stale)
  return reader.tired
end

local function take_due(queue, limit)
  local taken = {}
  for _, priority in ipairs(priorities(queue)) do
    if #taken >= limit then break end
    if take_priority(queue, priority, limit - #taken, taken) then return taken, true end
  end
  return taken, false
end

-- enqueues, attempts, retries, stalls and timeouts of what is claimed for the first time.
local ONCE = pack('>I4I4I4I4I4', 1, 1, 0, 0, 0)

-- The record of a waiting job, made active: what does not change is copied as it is.
local function activated(queue, text, lease_and_holder)
  local flags, head, at = string.byte(text), sub(text, 2, 27), 28
  local first, revision, enqueues, attempts, retries, stalls, timeouts
  if band(flags, LONG) ~= 0 then
    first, revision, enqueues, attempts, retries, stalls, timeouts, at = unpack_from('>I8I8I4I4I4I4I4', text, at)
  else
    if band(flags, LISTED) ~= 0 then head, at = sub(text, 2, 19) .. sub(text, 12, 19), 20 end
    -- What only waited is its own whole range, and was never counted: most are so.
    local seq = sub(text, 4, 11)
    return string.char(bor(band(flags, 255 - LISTED), LONG + ACTIVE)) .. head .. seq .. seq .. ONCE
      .. pack('>I8I8', draw(queue), queue.now) .. lease_and_holder .. sub(text, at)
  end
  flags = bor(band(flags, 255 - LISTED), LONG + ACTIVE)
  return string.char(flags) .. head
    .. pack('>I8I8I4I4I4I4I4I8I8', first, revision, enqueues, attempts + 1, retries, stalls, timeouts, draw(queue),
      queue.now) .. lease_and_holder .. sub(text, at)
end

-- Make up to `limit` due jobs active under a lease. Returns ids and records by turns, and whether the
-- search ended early.
local function take(queue, lease, holder, limit)
  local taken, tired = take_due(queue, limit)
  if #taken == 0 then return {}, tired end
  local reply, lease_and_holder = {}, lease .. with_size(holder)
  local waiting, active = planned_for(queue, 'hash', 'waiting'), planned_for(queue, 'hash', 'active')
  local held = planned_for(queue, 'set', 'held:' .. lease)
  for i, one in ipairs(taken) do
    local id, text = one.id, activated(queue, one.text, lease_and_holder)
    waiting[id], active[id], held[id] = false, text, true
    reply[2 * i - 1], reply[2 * i] = id, text
    if queue.level == 'all' then note(queue, 'claimed', id, sub(text, 1, parse_head(id, text, 1).head)) end
  end
  return reply, tired
end
