-- Enqueue failed jobs again (docs/explanation/contract.md, retry_failed).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  the time in ms until the jobs are due
-- ARGV[3…] ids
-- Returns  a status for each id: queued, live, completed, cancelled, not_kept or not_found

-- @include accept
-- @include commit

local queue, delay = open_queue(KEYS[1], ARGV[1]), tonumber(ARGV[2])

-- The outcome of an id becomes its job again.
local function return_output(id)
  local known = read_output(queue, id)
  if not known then return end
  known.begin, known.older = 0, 0
  store_output(queue, id, known)
end

local function retry(id)
  if read_field(queue, 'waiting', id) or read_field(queue, 'active', id) then return 'live' end
  local ended = live_outcome(queue, id)
  if not ended then return 'not_found' end
  if ended.kind ~= 2 then return OUTCOME_KINDS[ended.kind] end
  if not ended.data then return 'not_kept' end
  remove_outcome(queue, id)
  return_output(id)
  local job = new_job({id = id, priority = ended.priority, run_at = queue.now + delay, data = ended.data}, queue.now,
    next_number(queue))
  job.origin = ended.origin
  add_to_order(queue, job, true)
  log_change(queue, 'queued', id, encode_head(job))
  return 'queued'
end

local reply = {}
for i = 3, #ARGV do reply[i - 2] = retry(ARGV[i]) end
-- The outcome becomes the job, so a full server accepts it.
commit(true)
return reply
