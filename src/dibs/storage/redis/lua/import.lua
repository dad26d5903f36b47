-- Import whole slots. An id that exists here stays as it is.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] six arguments for each id: id, current, successor, outcome, dropped ('' if absent), and the highest
--          number in them
-- Returns  1 for each imported id, 0 for each id that exists

-- @include payloads
-- @include commit

local queue, reply = open_queue(KEYS[1], ARGV[1]), {}

local function remove_expired(id)
  if read_field(queue, 'outcomes', id) then remove_outcome(queue, id) end
  set_field(queue, 'dropped', id, false)
  drop_output(queue, id)
end

-- End a job whose cancel was requested. As in return_job, such a job never waits again.
local function end_cancelled(job, successor)
  local found = successor ~= '' and parse_successor(job.id, successor)
  if found and not found.creates then join_range(job, found) end
  store_end(queue, job, {kind = 3}, found and found.creates)
  if found and found.creates then add_to_order(queue, promoted_job(job.id, found), false) end
end

-- Import the current job of an id. Its lease is unknown here, so an active run arrives as if released. Return the new
-- state of the job: handed_off, ended or waiting.
local function import_current(id, text, successor)
  local job = parse_job(id, text)
  if job.handed_off then
    set_field(queue, 'active', id, text)
    plan(queue, 'set', 'away', id, true)
    if successor ~= '' then set_field(queue, 'successors', id, successor) end
    return 'handed_off'
  end
  if job.cancel_requested then
    end_cancelled(job, successor)
    return 'ended'
  end
  if job.fence then
    job.fence, job.progress, job.attempts = false, nil, job.attempts - 1
    if job.seq == 0 then job.seq = next_number(queue) end
    if successor ~= '' then apply_successor(job, parse_successor(id, successor)) end
  end
  add_to_order(queue, job, false)
  return 'waiting'
end

local function import(id, text, successor, outcome, dropped)
  if read_field(queue, 'waiting', id) or read_field(queue, 'active', id) or live_outcome(queue, id) then
    return 0
  end
  remove_expired(id)
  text, successor = stored_record(queue, 'waiting', id, text), stored_record(queue, 'successors', id, successor)
  local arrived_as = text ~= '' and import_current(id, text, successor)
  if dropped ~= '' then set_field(queue, 'dropped', id, dropped) end
  if outcome ~= '' and arrived_as ~= 'ended' then
    local parsed = parse_outcome(id, outcome)
    store_outcome(queue, id, parsed.kind, stored_record(queue, 'outcomes', id, outcome), parsed.expires_at and decimal(parsed.expires_at) or '+inf')
  end
  return 1
end

-- First, because a run that began parked draws a seq, which is above those of later ids of the call.
for i = 7, #ARGV, 6 do queue.number = math.max(queue.number, tonumber(ARGV[i])) end
for i = 2, #ARGV, 6 do
  reply[#reply + 1] = import(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
commit()
return reply
