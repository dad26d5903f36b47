-- Cancel waiting jobs and successors; with ARGV[2] = 1 also request the cancel of active runs
-- (docs/explanation/contract.md, cancel).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  1 to request the cancel of active runs, else 0
-- ARGV[3…] ids
-- Returns  a status for each id: cancelled, requested, active, completed, failed or not_found

-- @include drop_successor
-- @include commit

local queue, running = open_queue(KEYS[1], ARGV[1]), ARGV[2] == '1'

local function cancel(id)
  local waiting, active = read_field(queue, 'waiting', id), read_field(queue, 'active', id)
  if waiting then
    end_job(queue, parse_job(id, waiting), {kind = 3})
    return 'cancelled'
  end
  if not active then
    local ended = live_outcome(queue, id)
    return ended and OUTCOME_KINDS[ended.kind] or 'not_found'
  end
  local job = parse_job(id, active)
  local dropped = drop_successor(queue, job)
  if running then return ask_to_end(queue, job) end
  return dropped and 'cancelled' or 'active'
end

local reply = {}
for i = 3, #ARGV do reply[i - 2] = cancel(ARGV[i]) end
commit(true)
return reply
