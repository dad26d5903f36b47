-- Remove job, successor and outcome of each id (docs/explanation/contract.md, forget). Later fences of an id are still
-- higher, because all numbers of a queue only grow.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] ids
-- Returns  1 for each id that had a job or an outcome, else 0

-- @include outcomes
-- @include commit

local queue = open_queue(KEYS[1], ARGV[1])

local function forget(id)
  local waiting, active = read_field(queue, 'waiting', id), read_field(queue, 'active', id)
  local ended = live_outcome(queue, id)
  local job = (waiting or active) and parse_job(id, waiting or active)
  if waiting then
    remove_from_order(queue, job)
    set_field(queue, 'waiting', id, false)
  elseif active then
    remove_active(queue, job)
    set_field(queue, 'successors', id, false)
  end
  if read_field(queue, 'outcomes', id) then remove_outcome(queue, id) end
  set_field(queue, 'dropped', id, false)
  if not job and not ended then return 0 end
  queue.ended_ids[#queue.ended_ids + 1] = id
  log_change(queue, 'forgotten', id, encode_head(job or ended))
  return 1
end

local reply = {}
for i = 2, #ARGV do reply[i - 1] = forget(ARGV[i]) end
commit(true)
return reply
