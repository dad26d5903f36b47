-- One job meets its id, as the table of contract 3 says.
--
-- request   B mode, B time, h priority, I8 at, B + request key, then data
-- mode      0 update, 1 reject, 2 reject also the failed; update: + 4 replaces, 8 resets, 16 * rule (fold.lua)
-- time      0 now, 1 run_at, 2 delay; + 4 wants the outcome
-- answer    B status, B found, B repeated, I8 first, I8 revision, numbered as in codec.py

-- @include ends

local QUEUED, UPDATED, BLOCKED, DUPLICATE, COMPLETED, FAILED = 1, 2, 3, 4, 5, 6
local NOTHING, WAITING, RUNNING, RUNNING_BLOCKED = 1, 2, 3, 4

local function parse_request(id, text, now)
  local mode, time, priority, at, size, from = unpack_from('>BBhI8B', text)
  local kind, key = band(time, 3), size > 0 and sub(text, from, from + size - 1) or nil
  return {
    id = id, rejects = band(mode, 3), replaces = band(mode, 4) ~= 0, resets = band(mode, 8) ~= 0,
    rule = math.floor(mode / 16), priority = priority, wants = time >= 4, key = key,
    run_at = kind == 0 and now or kind == 1 and at or now + at, data = sub(text, from + size),
  }
end

local function new_job(request, now, number)
  return {
    id = request.id, priority = request.priority, run_at = request.run_at, enqueued_at = now, seq = number,
    first = number, revision = number, enqueues = 1, attempts = 0, retries = 0, stalls = 0, timeouts = 0,
    fence = false, data = request.data,
  }
end

-- Let a waiting job be what it has become: in its place, or out of its old place and in line again.
local function stay_or_move(queue, job, priority, run_at)
  if job.priority == priority and job.run_at == run_at then
    keep(queue, 'waiting', job.id, record(job))
    return
  end
  leave_line(queue, {id = job.id, seq = job.seq, listed = job.listed, priority = priority})
  line_up(queue, job, false)
end

local function update_waiting(queue, job, request, number)
  local priority, run_at = job.priority, job.run_at
  if request.replaces then job.data, job.priority = request.data, request.priority end
  job.run_at = move(run_at, request.rule, request.run_at)
  job.revision, job.enqueues = number, job.enqueues + 1
  if request.resets then zero(job) end
  stay_or_move(queue, job, priority, run_at)
  note(queue, 'updated', job.id, head_of(job))
  return UPDATED, WAITING, job.first
end

local function block(queue, request, number)
  local blocked, found = successor(queue, request.id), RUNNING_BLOCKED
  if blocked then
    add_fold(blocked, request, request, request.run_at, number)
  else
    blocked, found = begin_fold(request, request, request.run_at, queue.now, number), RUNNING
  end
  keep(queue, 'successors', request.id, successor_record(blocked))
  note(queue, 'blocked', request.id, head_of(heir_of(request.id, blocked)))
  return BLOCKED, found, blocked.first
end

local function start(queue, request, number)
  local job = new_job(request, queue.now, number)
  line_up(queue, job, true)
  note(queue, 'queued', job.id, head_of(job))
  return QUEUED, NOTHING, number
end

local function rejected(queue, request, waiting, active)
  local current = waiting or active
  if current then
    local job = parse_head(request.id, current, 1)
    local found = waiting and WAITING or look(queue, 'successors', request.id) and RUNNING_BLOCKED or RUNNING
    return DUPLICATE, found, job.first, job.revision
  end
  local ended = alive(queue, request.id)
  if not ended or ended.kind == 3 or (ended.kind == 2 and request.rejects < 2) then return nil end
  return ended.kind == 1 and COMPLETED or FAILED, NOTHING, ended.first, ended.revision
end

-- Returns status, found, first, revision.
local function accept(queue, request)
  local waiting = look(queue, 'waiting', request.id)
  local active = not waiting and look(queue, 'active', request.id)
  if request.rejects > 0 then
    local status, found, first, revision = rejected(queue, request, waiting, active)
    if status then return status, found, first, revision end
    -- Accepted, a Reject counts as a plain Update.
    request.replaces, request.resets, request.rule = true, true, ALWAYS
  end
  local number = draw(queue)
  local status, found, first
  if waiting then
    status, found, first = update_waiting(queue, parse(request.id, waiting), request, number)
  elseif active then
    status, found, first = block(queue, request, number)
  else
    status, found, first = start(queue, request, number)
  end
  return status, found, first, number
end
