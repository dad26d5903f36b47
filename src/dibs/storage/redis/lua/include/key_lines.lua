-- Waiting jobs with a key, and the limits per_key and key_rate. A key is *closed* if the limits allow none of its jobs to
-- start now, else *open*.
--
-- line:P:K        the waiting jobs with the key K and the priority P, by run_at; members are I8 seq and id
-- heads:P         the first job of each line of an open key, by run_at; members are I8 seq and the key. In a queue with
--                 `fair` by the place of the key (storage/redis/lua/include/turns.lua)
-- opening         the closed keys with waiting jobs, by the ms at which the clock of the key allows a start; 'inf' for a
--                 key without room (per_key)
-- reopening       the closed keys of the time before `configure` changed a limit. A claim looks at them again first
-- runs:K          the ids with the key K that are active under leases
-- clocks          the clocks of keys (below)
-- later           ids of waiting jobs with a key that were scheduled when they began to wait, by run_at
-- key_priorities  the number of waiting jobs with a key, by priority
--
-- A step notes each key that it touches (`queue.touched`), with its state before the step. After its other writes it
-- reads the state again, and moves the heads of the key. So each verb only adds and removes jobs and runs.

-- @include job_record
-- @include queue

local limits = {plan = plan, next_number = next_number}

-- The arithmetic of rates: a clock in µs decides about each start. src/dibs/model/rates.py has the same formulas.

-- Return the µs up to which a clock may be for a start that is allowed now.
local function latest_clock(rate, now)
  return now * 1000 + (rate.burst - 1) * rate.interval
end

-- Return the number of starts that a clock allows now.
function limits.starts_allowed(clock, rate, now)
  local begin, latest = math.max(clock, now * 1000), latest_clock(rate, now)
  return begin > latest and 0 or math.floor((latest - begin) / rate.interval) + 1
end

-- Return the clock after a number of starts now.
function limits.charged(clock, rate, now, starts)
  return math.max(clock, now * 1000) + starts * rate.interval
end

-- The furthest that a clock may be ahead of now, in µs: 366 days.
local FURTHEST = 31622400000000

-- Return the clock after a run with a cost in thousandths of a start. Why in two parts: a number above 2 ^ 53 is rounded.
local function cost_charged(clock, rate, now, cost)
  local thousands, rest = math.floor(rate.interval / 1000), rate.interval % 1000
  local moved = (cost - 1000) * thousands + math.ceil((cost - 1000) * rest / 1000)
  if moved > 0 then return math.min(math.max(clock, now * 1000) + moved, now * 1000 + FURTHEST) end
  return clock > now * 1000 and clock + moved or clock
end

-- Return the earliest ms at which the clock allows a start; nil if it allows one now.
function limits.next_start(clock, rate, now)
  if clock <= latest_clock(rate, now) then return nil end
  return math.ceil((clock - (rate.burst - 1) * rate.interval) / 1000)
end

-- Return the clock of the queue.
function limits.queue_clock(queue)
  local clock = call('HGET', queue.prefix .. 'meta', 'clock')
  if clock and not tonumber(clock) then
    reading.prefix = queue.prefix
    damaged('meta', 'clock')
  end
  return tonumber(clock or 0)
end

-- The most closed keys that one step looks at again.
local MAX_REOPENED = 500

local function key_call(queue, command, name, ...)
  return call(command, queue.prefix .. name, ...)
end

-- Return {member, run_at} of the first job of a line, as texts; nil if the line is empty.
local function first_of_line(queue, priority, key)
  local found = key_call(queue, 'ZRANGE', 'line:' .. priority .. ':' .. key, 0, 0, 'WITHSCORES')
  return found[1] and found or nil
end

local function has_reopening(queue)
  if queue.checked.reopening == nil then own(queue, 'checked').reopening = key_call(queue, 'EXISTS', 'reopening') == 1 end
  return queue.checked.reopening
end

-- Note a key before this step changes its lines or runs; with a priority, note the first job of that line.
local function touch(queue, key, priority)
  queue.touched = queue.touched or {}
  local touched = queue.touched[key]
  if not touched then
    touched = {firsts = {}, closed = key_call(queue, 'ZSCORE', 'opening', key)
      or has_reopening(queue) and key_call(queue, 'ZSCORE', 'reopening', key)}
    queue.touched[key] = touched
  end
  if priority and touched.firsts[priority] == nil then
    touched.firsts[priority] = first_of_line(queue, priority, key) or false
  end
  return touched
end
limits.touch = touch

local function count_keyed(queue, priority, count)
  queue.key_counts = queue.key_counts or {}
  queue.key_counts[priority] = (queue.key_counts[priority] or 0) + count
end

-- Move the clocks of the queue and of a key by the cost of a run. A clock that held jobs back and moves back wakes claims.
function limits.charge_cost(queue, key, cost)
  if queue.rate then
    local before = queue.clock or limits.queue_clock(queue)
    queue.clock = cost_charged(before, queue.rate, queue.now, cost)
    plan(queue, 'hash', 'meta', 'clock', decimal(queue.clock))
    if queue.clock < before and limits.next_start(before, queue.rate, queue.now) then queue.work_changed = true end
  end
  if key and queue.key_rate then
    local touched = touch(queue, key)
    local before = touched.clock or tonumber(key_call(queue, 'ZSCORE', 'clocks', key) or 0)
    touched.clock = cost_charged(before, queue.key_rate, queue.now, cost)
    touched.given_back = touched.given_back or touched.clock < before
    plan(queue, 'zset', 'clocks', key, decimal(touched.clock))
  end
end

function limits.add(queue, job)
  local key, name = key_of(job.data), 'line:' .. job.priority .. ':'
  touch(queue, key, job.priority).added = true
  if queue.fair then limits.turns(queue).enter(key, job.id) end
  plan(queue, 'zset', name .. key, order_entry(job), decimal(job.run_at))
  if job.run_at > queue.now then plan(queue, 'zset', 'later', job.id, decimal(job.run_at)) end
  count_keyed(queue, job.priority, 1)
  queue.keyed, queue.had_keys = true, true
  job.listed = false
  set_waiting(queue, job.id, encode_job(job))
end

-- Remove a waiting job from its line. `entry` is its member there. `start` is nil unless a claim takes the job: then whether
-- another job of the key certainly waits.
function limits.remove(queue, key, priority, id, entry, start)
  touch(queue, key, priority)
  if queue.fair then
    if start == nil then limits.turns(queue).leave(key, id) else limits.turns(queue).start(key, start) end
  end
  plan(queue, 'zset', 'line:' .. priority .. ':' .. key, entry, false)
  plan(queue, 'zset', 'later', id, false)
  count_keyed(queue, priority, -1)
end

-- Add or remove (false) a run to those that count for per_key.
function limits.plan_run(queue, key, id, active)
  touch(queue, key)
  plan(queue, 'set', 'runs:' .. key, id, active)
end

-- Return 'inf' for a key without room or with the share 0, the ms at which its clock allows a start, as text, or false for an open key.
local function closed_until(queue, key)
  if queue.shares and limits.share(queue, key) == 0 then return 'inf' end
  if queue.per_key and key_call(queue, 'SCARD', 'runs:' .. key) >= queue.per_key then return 'inf' end
  if not queue.key_rate then return false end
  local clock = tonumber(key_call(queue, 'ZSCORE', 'clocks', key) or 0)
  local at = limits.next_start(clock, queue.key_rate, queue.now)
  return at and decimal(at)
end

-- The priorities with waiting jobs that have a key, before this step, and those that this step adds.
local function key_priorities(queue)
  if not queue.key_priorities then
    queue.key_priorities = {}
    for _, priority in ipairs(key_call(queue, 'HKEYS', 'key_priorities')) do queue.key_priorities[priority] = true end
  end
  for priority in pairs(queue.key_counts or {}) do queue.key_priorities[tostring(priority)] = true end
  return queue.key_priorities
end
limits.first_of_line, limits.key_priorities = first_of_line, key_priorities

function limits.check_types(queue)
  for _, name in ipairs({'opening', 'reopening', 'clocks', 'later'}) do expect_type(queue.prefix .. name, 'zset') end
  expect_type(queue.prefix .. 'key_priorities', 'hash')
  for priority in pairs(key_priorities(queue)) do expect_type(queue.prefix .. 'heads:' .. priority, 'zset') end
  if queue.turns then
    queue.turns.finish_leave()
    expect_type(queue.prefix .. 'turns', 'hash')
  end
  for key in pairs(queue.per_key and queue.touched or {}) do expect_type(queue.prefix .. 'runs:' .. key, 'set') end
end

local function plan_head(queue, priority, key, first, is_head)
  local score = is_head and first[2]
  plan(queue, 'zset', 'heads:' .. priority, sub(first[1], 1, 8) .. key, score)
end

-- Plan the heads of a touched key in the lines that this step did not touch. Return whether one of them has jobs.
local function plan_other_heads(queue, key, touched, closed)
  local waits = false
  for priority in pairs(key_priorities(queue)) do
    local first = touched.firsts[tonumber(priority)] == nil and first_of_line(queue, priority, key)
    if first then
      waits = true
      if not touched.closed ~= not closed then plan_head(queue, priority, key, first, not closed) end
    end
  end
  return waits
end

-- Plan the heads of a touched key in the lines that this step touched. Return whether one of them has jobs.
local function plan_touched_heads(queue, key, touched, closed)
  local waits = false
  for priority, before in pairs(touched.firsts) do
    local first = first_of_line(queue, priority, key)
    waits = waits or first ~= nil
    local same = before and first and before[1] == first[1] and before[2] == first[2]
    if not same or not touched.closed ~= not closed then
      if before and not touched.closed then plan_head(queue, priority, key, before, false) end
      if first and not closed then plan_head(queue, priority, key, first, true) end
    end
  end
  return waits
end

-- Plan the place of a touched key: its heads, or its moment in `opening`.
local function plan_key(queue, key, touched)
  if key == '' then return end
  -- The end of a run under an open key needs no write, unless its cost closes the key.
  if not touched.closed and not touched.clock and not next(touched.firsts) then return end
  local closed = closed_until(queue, key)
  local waits
  if queue.fair then
    waits = queue.turns.plan_heads(key, closed)
  else
    waits = plan_touched_heads(queue, key, touched, closed)
    if not waits or not touched.closed ~= not closed then
      waits = plan_other_heads(queue, key, touched, closed) or waits
    end
  end
  if waits and closed then
    plan(queue, 'zset', 'opening', key, closed)
  elseif touched.closed then
    plan(queue, 'zset', 'opening', key, false)
  end
  if has_reopening(queue) then plan(queue, 'zset', 'reopening', key, false) end
  -- A key without room gets work for claims only when it has room again.
  if waits and closed ~= 'inf' and (touched.added or touched.closed == 'inf' or touched.given_back) then
    queue.work_changed = true
  end
end

local function write_counts(queue)
  local name, changed = queue.prefix .. 'key_priorities', false
  for priority, count in pairs(queue.key_counts or {}) do
    if count ~= 0 and call('HINCRBY', name, priority, count) <= 0 then
      call('HDEL', name, priority)
      changed = true
    end
  end
  if changed and call('EXISTS', name) == 0 then queue.keyed = false end
end

-- Write the places of the touched keys, after the other writes of the step.
function limits.write(queue)
  local keys = queue.touched
  queue.plan = {}
  if queue.fair then limits.turns(queue).plan() end
  for key, touched in pairs(keys) do plan_key(queue, key, touched) end
  for name, planned in pairs(queue.plan) do
    send_chunked(REMOVE[planned.kind], queue.prefix .. name, removals(planned))
    send_chunked(ADD[planned.kind], queue.prefix .. name, additions(planned))
  end
  write_counts(queue)
end

-- Touch the closed keys whose moment has come, and those that a change of the limits may have opened, so that `commit`
-- finds their places. Return their number, and whether more are left.
function limits.reopen(queue)
  local keys = key_call(queue, 'ZRANGEBYSCORE', 'opening', '-inf', decimal(queue.now), 'LIMIT', 0, MAX_REOPENED)
  if has_reopening(queue) then
    for _, key in ipairs(key_call(queue, 'ZRANGE', 'reopening', 0, MAX_REOPENED - 1)) do keys[#keys + 1] = key end
  end
  for _, key in ipairs(keys) do touch(queue, key) end
  return #keys, #keys >= MAX_REOPENED
end

-- Return the earliest moment later than now at which a limit may admit more jobs, or a job with a key falls due; nil
-- if there is none.
function limits.next_due(queue)
  local times = {}
  if queue.keyed then
    local now = '(' .. decimal(queue.now)
    times = key_call(queue, 'ZRANGEBYSCORE', 'later', now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local opening = key_call(queue, 'ZRANGEBYSCORE', 'opening', now, '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    times = {tonumber(times[2] or opening[2]), tonumber(opening[2])}
  end
  if queue.rate and call('EXISTS', queue.prefix .. 'priorities', queue.prefix .. 'key_priorities') > 0 then
    times[#times + 1] = limits.next_start(limits.queue_clock(queue), queue.rate, queue.now)
  end
  return times[1] and math.min(unpack(times))
end

-- Return whether a claim may find a due job with a key.
function limits.has_due(queue)
  local now = decimal(queue.now)
  if has_reopening(queue) or key_call(queue, 'ZCOUNT', 'opening', '-inf', now) > 0 then return true end
  if queue.fair and key_call(queue, 'ZCOUNT', 'later', '-inf', now) > 0 then return true end
  for priority in pairs(key_priorities(queue)) do
    if key_call(queue, 'ZCOUNT', 'heads:' .. priority, '-inf', queue.fair and '+inf' or now) > 0 then return true end
  end
  return false
end
