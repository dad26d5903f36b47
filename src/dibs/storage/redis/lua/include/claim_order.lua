-- Waiting jobs in claim order: priority descending, run_at ascending, seq ascending.
--
-- Each priority P in use has a list and an ordered set. Jobs that are due at once arrive in claim order, so the
-- list `due:P` keeps them in a third of the memory. The set `line:P` keeps scheduled and changed jobs, sorted by
-- run_at, and for equal run_at by the first 8 bytes of the member, the seq. Entries of both are I8 seq and the id.
-- A list entry is stale unless its job still waits, is LISTED, and has this seq. Set members are never stale.
-- The hash `priorities` has the number of listed jobs for each priority in use.
-- Jobs with a key stand in lines of their own (storage/redis/lua/include/key_lines.lua).

-- @include queue
-- @include key_lines
-- @include turns

-- Redis keeps a hash of up to 512 short fields (`hash-max-listpack-entries`) as one list, and searches it from its start for
-- each field. So the hash `waiting` gets the field '' with PADDING for a moment when it grows to LONG_HASH fields: Redis then
-- keeps it as a hash table until it is empty. A list of fewer fields is about as fast, and takes a third of the memory. The
-- empty text is the id of no job. PADDING is longer than `hash-max-listpack-value`, which is 64 by default.
local LONG_HASH, PADDING = 64, '-----------------------------------------------------------------'

local function order_entry(job)
  return pack('>I8', job.seq) .. job.id
end

-- Return the key in the data of a job; nil if it has none.
local function key_of(data)
  local flags, at = string.byte(data), 2
  if band(flags, HAS_KEY) == 0 then return nil end
  for bit = 0, 3 do
    if band(flags, 2 ^ bit) ~= 0 then at = at + 4 + unpack_from('>I4', data, at) end
  end
  return (read_sized(data, at))
end

-- Return a priority as text. A step names a list or a set of a priority several times, and each conversion of a number to a
-- text takes 4,000 instructions of the server.
local function priority_text(priority)
  return priority == 0 and '0' or string.format('%d', priority)
end

-- Count the listed jobs of a priority, as text.
local function count_listed(queue, priority, count)
  local counts = own(queue, 'listed_counts')
  counts[priority] = (counts[priority] or 0) + count
end

-- Return whether the list of a priority, as text, may get another entry. A list of mostly stale entries gets no more, so that
-- repeated updates without a claim do not fill the memory. The ordered set then takes the entry.
local function list_takes_more(queue, priority)
  local takes_more = queue.checked[priority]
  if takes_more == nil then
    local live, name, proven = call('HGET', queue.keys.priorities, priority), 'due:' .. priority, queue.proven
    takes_more = call('LLEN', queue.prefix .. name) <= 2 * (live and tonumber(live) or 0) + 1000
    own(queue, 'checked')[priority], proven.priorities, proven[name] = takes_more, true, true
  end
  return takes_more
end

-- Return the table for the new entries of the list of a priority, as text; `write_order` counts them.
local function new_entries(queue, priority)
  local entries = {}
  own(queue, 'list_entries')[priority], queue.work_changed = entries, true
  count_listed(queue, priority, 0)
  return entries
end

-- Add a waiting job to the claim order, and store its record. `fresh` is true if its seq is the newest of the queue.
local function add_to_order(queue, job, fresh)
  if band(string.byte(job.data), HAS_KEY) ~= 0 then return limits.add(queue, job) end
  if queue.fair then limits.turns(queue).enter('', job.id) end
  local priority = priority_text(job.priority)
  job.listed = fresh and job.run_at == queue.now and list_takes_more(queue, priority)
  if job.listed then
    local entries = queue.list_entries[priority] or new_entries(queue, priority)
    entries[#entries + 1] = order_entry(job)
  else
    plan(queue, 'zset', 'line:' .. priority, order_entry(job), decimal(job.run_at))
    count_listed(queue, priority, 0)
    queue.work_changed = true
  end
  set_waiting(queue, job.id, encode_job(job))
end

-- Remove a waiting job from the claim order. The caller stores or removes its record.
local function remove_from_order(queue, job)
  local key = key_of(job.data)
  if key then return limits.remove(queue, key, job.priority, job.id, order_entry(job)) end
  if queue.fair then limits.turns(queue).leave('', job.id) end
  local priority = priority_text(job.priority)
  if job.listed then
    count_listed(queue, priority, -1)
  else
    plan(queue, 'zset', 'line:' .. priority, order_entry(job), false)
    count_listed(queue, priority, 0)
  end
end

local function check_order_types(queue)
  if queue.listed_counts == EMPTY then return end
  check_key(queue, 'priorities', 'hash')
  for priority in pairs(queue.listed_counts) do check_key(queue, 'due:' .. priority, 'list') end
end

local function write_new_entries(queue)
  for priority, entries in pairs(queue.list_entries) do
    count_listed(queue, priority, #entries)
    local length = send_chunked('RPUSH', queue.prefix .. 'due:' .. priority, entries)
    -- As many jobs have come into the hash `waiting`.
    if length >= LONG_HASH and length - #entries < LONG_HASH then
      call('HSET', queue.prefix .. 'waiting', '', PADDING)
      call('HDEL', queue.prefix .. 'waiting', '')
    end
  end
end

local function write_order(queue)
  if queue.listed_counts == EMPTY then return end
  if queue.list_entries ~= EMPTY then write_new_entries(queue) end
  local trims = queue.list_trims or EMPTY
  for priority, count in pairs(queue.listed_counts) do
    local trimmed, list = trims[priority] or 0, queue.prefix .. 'due:' .. priority
    if call('HINCRBY', queue.keys.priorities, priority, small_text(count)) <= 0 then
      call('DEL', list)
      if call('ZCARD', queue.prefix .. 'line:' .. priority) == 0 then
        call('HDEL', queue.keys.priorities, priority)
      end
    elseif trimmed > 0 then
      call('LTRIM', list, small_text(trimmed), '-1')
    end
  end
end

-- Return the run_at of the first job in `line:P`, and that of the first job there that is not due yet; nil for none.
local function first_times(queue, priority)
  local key = queue.prefix .. 'line:' .. priority
  local at = tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  if not at or at > queue.now then return at, at end
  return at, tonumber(call('ZRANGEBYSCORE', key, '(' .. decimal(queue.now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- Return the earliest run_at later than now of a job without a key; nil if none is scheduled. `queue.priorities` then has the
-- priorities in use, and `queue.due_sets` those whose ordered set has due jobs.
local function next_due(queue)
  local earliest
  local priorities = call('HKEYS', queue.keys.priorities)
  queue.priorities, queue.due_sets, queue.proven.priorities = priorities, {}, true
  for _, priority in ipairs(priorities) do
    local first, at = first_times(queue, priority)
    if first and first <= queue.now then queue.due_sets[priority] = true end
    if at and (not earliest or at < earliest) then earliest = at end
  end
  return earliest
end
