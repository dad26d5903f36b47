-- The part of a claim that takes jobs with a key. Such jobs stand in lines of their own; a claim meets only the head of
-- each line of an open key (storage/redis/lua/include/key_lines.lua).

-- @include queue
-- @include key_lines

-- The most heads of keys without room that one step skips. They exist only after a limit became lower.
local MAX_CLOSED = 1000

-- Return what this claim may take of a key: `room` is the number of jobs, `taken` those that it has taken.
local function allowance(queue, key)
  queue.allowances = queue.allowances or {}
  local found = queue.allowances[key]
  if found then return found end
  found = {room = math.huge, taken = 0}
  if queue.shares and limits.share(queue, key) == 0 then found.room = 0 end
  if queue.per_key then found.room = math.min(found.room, queue.per_key - call('SCARD', queue.prefix .. 'runs:' .. key)) end
  if queue.key_rate then
    found.clock = tonumber(call('ZSCORE', queue.prefix .. 'clocks', key) or 0)
    found.room = math.min(found.room, limits.starts_allowed(found.clock, queue.key_rate, queue.now))
  end
  queue.allowances[key] = found
  return found
end

-- Return a function that returns member and run_at of the jobs in a line, one after the other, and whether it has read another
-- one. It reads few at first.
local function line_reader(queue, priority, key)
  local name, jobs, at, from, size = queue.prefix .. 'line:' .. priority .. ':' .. key, {}, 1, 0, 2
  return function()
    if at > #jobs then
      jobs, at = call('ZRANGE', name, from, from + size - 1, 'WITHSCORES'), 1
      from, size = from + size, math.min(2 * size, MAX_WINDOW)
    end
    at = at + 2
    return jobs[at - 2], tonumber(jobs[at - 1]), at <= #jobs
  end
end

local function is_before(run_at, seq, other_run_at, other_seq)
  return run_at < other_run_at or (run_at == other_run_at and seq < other_seq)
end

-- Return whether a job with a key comes before the waiting job of a record in claim order. The latter has no key.
local function comes_first(queue, job, text)
  if queue.fair then return job.run_at < queue.turns.place('') end
  local seq, run_at = place_in_line(text)
  return is_before(job.run_at, job.seq, run_at, seq)
end

-- Return a reader of the due jobs of one priority that have a key with room, in claim order. peek() returns the next of
-- them: a table with run_at, seq, key, and the function `read` of its line. pop() takes it, and returns its
-- id and the 8 bytes of its seq. In a queue with `fair`, the place of the key stands for run_at, and 0 for the seq.
local function head_reader(queue, priority, wanted)
  local name, window, at, from = queue.prefix .. 'heads:' .. priority, {}, 1, 0
  local reader, followers, closed = {}, {}, 0
  local latest = queue.fair and '+inf' or decimal(queue.now)

  local function add(job)
    local i = #followers
    while i > 0 and is_before(followers[i].run_at, followers[i].seq, job.run_at, job.seq) do i = i - 1 end
    -- The earliest follower is the last of the list.
    table.insert(followers, i + 1, job)
  end

  -- Return the next head that the claim has not met; nil at the end.
  local function next_head()
    while true do
      if at > #window then
        window, at = call('ZRANGEBYSCORE', name, '-inf', latest, 'WITHSCORES', 'LIMIT', from, wanted), 1
        from = from + wanted
        if #window == 0 then return nil end
      end
      local key = sub(window[at], 9)
      local head = {key = key, seq = unpack_from('>I8', window[at]), run_at = tonumber(window[at + 1]), is_head = true}
      local place = queue.fair and queue.turns.place(key)
      if allowance(queue, key).room > 0 then
        if not place or place == head.run_at then return head end
        -- This claim has started a job of a higher priority with this key.
        add({key = key, seq = 0, run_at = place})
        at = at + 2
      else
        limits.touch(queue, key, tonumber(priority))
        at, closed = at + 2, closed + 1
      end
      if closed > MAX_CLOSED then
        reader.gave_up = true
        return nil
      end
    end
  end

  -- Add the job that follows a taken job in its line, if it is due.
  local function add_follower(key, read)
    local member, run_at, more = read()
    if not member or run_at > queue.now then return end
    local job = {key = key, seq = unpack_from('>I8', member), run_at = run_at, member = member, read = read, more = more}
    if queue.fair then job.seq, job.run_at = 0, queue.turns.place(key) end
    add(job)
  end

  function reader.peek()
    local head, follower = next_head(), followers[#followers]
    if head and follower and is_before(follower.run_at, follower.seq, head.run_at, head.seq) then return follower end
    return head or follower
  end

  function reader.pop(job)
    local allowed = allowance(queue, job.key)
    if job.is_head then at = at + 2 else followers[#followers] = nil end
    if not job.read then
      job.read = line_reader(queue, priority, job.key)
      local member, _, more = job.read()
      job.member, job.more = member, more
      if not job.member then damaged('job', job.key) end
    end
    local id = sub(job.member, 9)
    limits.remove(queue, job.key, tonumber(priority), id, job.member, job.more or false)
    limits.plan_run(queue, job.key, id, true)
    allowed.room, allowed.taken = allowed.room - 1, allowed.taken + 1
    if allowed.room > 0 then add_follower(job.key, job.read) end
    return id, sub(job.member, 1, 8)
  end

  return reader
end

-- Read the records of the selected jobs with a key.
local function read_records(queue, claim)
  local ids, places = {}, {}
  for i, id in ipairs(claim.ids) do
    if claim.keyed[i] then ids[#ids + 1], places[#ids + 1] = id, i end
  end
  if #ids == 0 then return end
  for n, text in ipairs(call('HMGET', queue.prefix .. 'waiting', unpack(ids))) do
    check_waiting(queue, ids[n], text)
    if packed_seq(text) ~= claim.keyed[places[n]] then damaged('job', ids[n]) end
    claim.records[places[n]] = text
  end
end

-- Charge the clocks of the keys for the jobs that the claim took.
local function charge_keys(queue)
  for key, allowed in pairs(queue.key_rate and queue.allowances or {}) do
    if allowed.taken > 0 then
      local clock = limits.charged(allowed.clock, queue.key_rate, queue.now, allowed.taken)
      plan(queue, 'zset', 'clocks', key, decimal(clock))
    end
  end
end

-- Read the records of the selected jobs, and charge the clocks.
local function finish_keyed_claim(queue, claim)
  read_records(queue, claim)
  charge_keys(queue)
end
