-- Remove job, successor and outcome of each id (docs/explanation/contract.md, forget). Later fences of an id are still
-- higher, because all numbers of a queue only grow.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] ids
-- Returns  1 for each id that had a job or an outcome, else 0

-- @include outcomes
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
  if read_field(queue, 'waiting', id) and not in_set then uncount_listed(id) end
  for _, name in ipairs({'waiting', 'active', 'successors'}) do
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
    set_field(queue, 'waiting', id, false)
  elseif active then
    remove_active(queue, job)
    set_field(queue, 'successors', id, false)
  end
  if read_field(queue, 'outcomes', id) then remove_outcome(queue, id) end
  set_field(queue, 'dropped', id, false)
  if not job and not ended and not is_damaged then return 0 end
  queue.ended_ids[#queue.ended_ids + 1] = id
  log_change(queue, 'forgotten', id)
  return 1
end

local reply = {}
for i = 2, #ARGV do reply[i - 1] = forget(ARGV[i]) end
commit(true)
return reply
