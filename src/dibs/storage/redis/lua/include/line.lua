-- Who waits, in claim order: priority descending, run_at ascending, seq ascending.
--
-- Per priority in use there are a list and an ordered set. Jobs due at once arrive in order, so a list
-- (`due:P`) keeps them in a third of the memory; scheduled and changed ones stand in the set (`line:P`)
-- by run_at, and among equals by their first 8 bytes, the seq. Entries of both are seq and id. An entry
-- of a list is stale unless its job still waits, LISTED, with that seq; an entry of a set is never stale.
-- `priorities` has the number of listed jobs for each priority in use.

-- @include queue

local function entry_of(job)
  return pack('>I8', job.seq) .. job.id
end

local function add_live(queue, priority, count)
  queue.live[priority] = (queue.live[priority] or 0) + count
end

-- A list that is mostly stale takes no more, or updates while nobody claims would fill the memory.
local function list_is_fit(queue, priority)
  local fit = queue.lines[priority]
  if fit == nil then
    local live = tonumber(call('HGET', queue.base .. 'priorities', priority) or 0)
    fit = call('LLEN', queue.base .. 'due:' .. priority) <= 2 * live + 1000
    queue.lines[priority] = fit
  end
  return fit
end

-- Put a waiting job in line, and keep its record. `fresh`: its seq is the newest of the queue.
local function line_up(queue, job, fresh)
  local priority = job.priority
  job.listed = fresh and job.run_at == queue.now and list_is_fit(queue, priority)
  if job.listed then
    local pushes = queue.pushes[priority] or {}
    queue.pushes[priority] = pushes
    pushes[#pushes + 1] = entry_of(job)
    add_live(queue, priority, 1)
  else
    put(queue, 'zset', 'line:' .. priority, entry_of(job), decimal(job.run_at))
    add_live(queue, priority, 0)
  end
  keep(queue, 'waiting', job.id, record(job))
  queue.worked = true
end

-- Take a waiting job out of line; its record is the caller's to keep or to remove.
local function leave_line(queue, job)
  if job.listed then
    add_live(queue, job.priority, -1)
  else
    put(queue, 'zset', 'line:' .. job.priority, entry_of(job), false)
    add_live(queue, job.priority, 0)
  end
end

local function check_lines(queue)
  if next(queue.live) then expect(queue.base .. 'priorities', 'hash') end
  for priority in pairs(queue.live) do expect(queue.base .. 'due:' .. priority, 'list') end
end

local function write_lines(queue)
  for priority, count in pairs(queue.heads or {}) do
    if count > 0 then call('LTRIM', queue.base .. 'due:' .. priority, count, -1) end
  end
  for priority, entries in pairs(queue.pushes) do send('RPUSH', queue.base .. 'due:' .. priority, entries) end
  for priority, count in pairs(queue.live) do
    if call('HINCRBY', queue.base .. 'priorities', priority, count) <= 0 then
      call('DEL', queue.base .. 'due:' .. priority)
      if call('ZCARD', queue.base .. 'line:' .. priority) == 0 then
        call('HDEL', queue.base .. 'priorities', priority)
      end
    end
  end
end

-- The earliest run_at later than now; nil when nothing is scheduled.
local function next_due(queue)
  local earliest
  for _, priority in ipairs(call('HKEYS', queue.base .. 'priorities')) do
    local first = call('ZRANGEBYSCORE', queue.base .. 'line:' .. priority, '(' .. decimal(queue.now), '+inf',
      'WITHSCORES', 'LIMIT', 0, 1)
    local at = tonumber(first[2])
    if at and (not earliest or at < earliest) then earliest = at end
  end
  return earliest
end
