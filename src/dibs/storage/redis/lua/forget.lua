-- Remove everything of each id (contract 3, forget). The numbers of the queue are its fence floor.
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2…] ids
-- Returns  1 for each id that was known, else 0

-- @include ends
-- @include commit

local queue = open(KEYS[1], ARGV[1])

local function forget(id)
  local waiting, active = look(queue, 'waiting', id), look(queue, 'active', id)
  local ended = alive(queue, id)
  local job = (waiting or active) and parse(id, waiting or active)
  if waiting then
    leave_line(queue, job)
    keep(queue, 'waiting', id, false)
  elseif active then
    let_go(queue, job)
    keep(queue, 'successors', id, false)
  end
  if look(queue, 'outcomes', id) then lose_outcome(queue, id) end
  keep(queue, 'dropped', id, false)
  if not job and not ended then return 0 end
  queue.ends[#queue.ends + 1] = id
  note(queue, 'forgotten', id, head_of(job or ended))
  return 1
end

local reply = {}
for i = 2, #ARGV do reply[i - 1] = forget(ARGV[i]) end
commit(true)
return reply
