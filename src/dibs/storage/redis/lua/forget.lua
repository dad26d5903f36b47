-- Remove job, successor and outcome of each id (docs/explanation/contract.md, forget). Later fences of an id are still
-- higher, because all numbers of a queue only grow.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] ids
-- Returns  1 for each id that had a job or an outcome, else 0

-- @include payloads
-- @include commit

-- The most members of a set `line:P` that a forget of an unknown id reads.
local MAX_SEARCHED = 1000
local queue = open_queue(KEYS[1], ARGV[1])

-- Return the result of a function; false if it raises an error, as for a damaged record.
local function try(read, ...)
  local ok, found = pcall(read, ...)
  return ok and found
end

-- Remove the members of the sets `line:P` with this id. `last` is the position up to which each set is read.
local function remove_from_sets(id, last)
  local found = false
  for _, priority in ipairs(call('HKEYS', queue.prefix .. 'priorities')) do
    local key = 'line:' .. priority
    for _, member in ipairs(call('ZRANGE', queue.prefix .. key, 0, last)) do
      if sub(member, 9) == id then
        plan(queue, 'zset', key, member, false)
        count_listed(queue, priority, 0)
        found = true
      end
    end
  end
  return found
end

-- Return keys of waiting jobs: all, or if only claims are of interest, the keys of the first heads.
local function waiting_keys(first_only)
  local keys = {}
  local function collect(name, last, from)
    for _, member in ipairs(call('ZRANGE', queue.prefix .. name, 0, last)) do keys[sub(member, from)] = true end
  end
  for _, priority in ipairs(call('HKEYS', queue.prefix .. 'key_priorities')) do
    collect('heads:' .. priority, first_only and MAX_SEARCHED / 10 or -1, 9)
  end
  if not first_only then
    collect('opening', -1, 1)
    collect('reopening', -1, 1)
  end
  return keys
end

-- Remove the members of the lines of keys with this id, and return whether there were any. For a missing record, read only
-- the first member of few lines.
local function remove_from_key_lines(id, first_only)
  local found = false
  for key in pairs(queue.keyed and waiting_keys(first_only) or {}) do
    for _, priority in ipairs(call('HKEYS', queue.prefix .. 'key_priorities')) do
      local line = queue.prefix .. 'line:' .. priority .. ':' .. key
      for _, member in ipairs(call('ZRANGE', line, 0, first_only and 0 or -1)) do
        if sub(member, 9) == id then
          limits.remove(queue, key, tonumber(priority), id, member)
          found = true
        end
      end
    end
  end
  return found
end

-- Remove an active id from the runs of each key. A damaged record does not say its key.
local function remove_from_runs(id)
  if not queue.had_keys then return end
  local cursor = '0'
  repeat
    local found = call('SCAN', cursor, 'MATCH', queue.prefix .. 'runs:*', 'COUNT', 1000)
    for _, key in ipairs(found[2]) do
      if call('SISMEMBER', key, id) == 1 then limits.plan_run(queue, sub(key, #queue.prefix + 6), id, false) end
    end
    cursor = found[1]
  until cursor == '0'
end

-- Remove the newest entry with this id in the lists `due:P` from the count of its priority. The entry is then stale.
local function uncount_listed(id)
  local newest, newest_priority = -1, nil
  for _, priority in ipairs(call('HKEYS', queue.prefix .. 'priorities')) do
    for _, entry in ipairs(call('LRANGE', queue.prefix .. 'due:' .. priority, 0, -1)) do
      local seq = unpack_from('>I8', entry)
      if sub(entry, 9) == id and seq > newest then newest, newest_priority = seq, priority end
    end
  end
  if newest_priority then count_listed(queue, newest_priority, -1) end
end

-- Remove a job whose record is damaged (`text`) or missing (false), wherever its id is: the record would say where. A
-- damaged record costs O(jobs). For a missing record, the sets are read only where a claim finds the id.
local function remove_damaged(id, text)
  local in_set = remove_from_sets(id, text and -1 or MAX_SEARCHED)
  local in_line = remove_from_key_lines(id, not text)
  if read_field(queue, 'waiting', id) and not in_set and not in_line then uncount_listed(id) end
  if read_field(queue, 'active', id) then remove_from_runs(id) end
  if read_field(queue, 'waiting', id) then set_waiting(queue, id, false) end
  for _, name in ipairs({'active', 'successors'}) do
    if read_field(queue, name, id) then set_field(queue, name, id, false) end
  end
  for _, name in ipairs({'away', 'asked'}) do plan(queue, 'set', name, id, false) end
  for _, lease in ipairs(call('HKEYS', queue.prefix .. 'leases')) do plan(queue, 'set', 'held:' .. lease, id, false) end
  queue.work_changed = true
end

local function forget(id)
  local waiting, active = read_field(queue, 'waiting', id), read_field(queue, 'active', id)
  local ended = try(live_outcome, queue, id)
  local job = (waiting or active) and try(parse_job, id, waiting or active)
  local is_damaged = (waiting or active) and not job or ended == false
  if not job and (is_damaged or not ended) then
    remove_damaged(id, waiting or active)
  elseif waiting then
    remove_from_order(queue, job)
    set_waiting(queue, id, false)
  elseif active then
    remove_active(queue, job)
    set_field(queue, 'successors', id, false)
  end
  if read_field(queue, 'outcomes', id) then remove_outcome(queue, id) end
  set_field(queue, 'dropped', id, false)
  drop_output(queue, id)
  if not job and not ended and not is_damaged then return 0 end
  note_end(queue, id)
  log_change(queue, 'forgotten', id)
  return 1
end

local reply = {}
for i = 2, #ARGV do reply[i - 1] = forget(ARGV[i]) end
commit(true)
return reply
