-- Cancel what waits or is blocked; with `running`, ask what is active to stop (contract 3, cancel).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  1 for running, else 0
-- ARGV[3…] ids
-- Returns  a word for each id

-- @include dropping
-- @include commit

local queue, running = open(KEYS[1], ARGV[1]), ARGV[2] == '1'

local function ask(job)
  if job.away then
    finish(queue, job, {kind = 3})
    return 'cancelled'
  end
  if not job.asked then
    job.asked = true
    keep(queue, 'active', job.id, record(job))
    put(queue, 'set', 'asked', job.id, true)
    note(queue, 'cancel_requested', job.id, head_of(job))
  end
  return 'requested'
end

local function cancel(id)
  local waiting, active = look(queue, 'waiting', id), look(queue, 'active', id)
  if waiting then
    finish(queue, parse(id, waiting), {kind = 3})
    return 'cancelled'
  end
  if not active then
    local ended = alive(queue, id)
    return ended and ENDS[ended.kind] or 'not_found'
  end
  local job = parse(id, active)
  local dropped = drop_successor(queue, job)
  if running then return ask(job) end
  return dropped and 'cancelled' or 'active'
end

local reply = {}
for i = 3, #ARGV do reply[i - 2] = cancel(ARGV[i]) end
commit(true)
return reply
