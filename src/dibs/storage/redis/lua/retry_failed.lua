-- Let failed jobs wait again (contract 3, retry_failed).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2…] ids
-- Returns  a word for each id

-- @include accept
-- @include commit

local queue = open(KEYS[1], ARGV[1])

local function retry(id)
  if look(queue, 'waiting', id) or look(queue, 'active', id) then return 'live' end
  local ended = alive(queue, id)
  if not ended then return 'not_found' end
  if ended.kind ~= 2 then return ENDS[ended.kind] end
  if not ended.data then return 'not_kept' end
  lose_outcome(queue, id)
  local job = new_job({id = id, priority = ended.priority, run_at = queue.now, data = ended.data}, queue.now,
    draw(queue))
  job.origin = ended.origin
  line_up(queue, job, true)
  note(queue, 'queued', id, head_of(job))
  return 'queued'
end

local reply = {}
for i = 2, #ARGV do reply[i - 1] = retry(ARGV[i]) end
commit()
return reply
