-- Cancel of a successor, the blocked job of an id. The revisions of its enqueues become a dropped range of the id,
-- which remembers that these enqueues were cancelled (docs/explanation/contract.md, When an enqueue is done).
--
-- dropped   pairs of I8 first, I8 revision, oldest first, at most eight

-- @include payloads

local MAX_DROPPED = 8

local function read_dropped(queue, id)
  local text, ranges = read_field(queue, 'dropped', id) or '', {}
  if #text % 16 ~= 0 then damaged('dropped', id) end
  for at = 1, #text, 16 do
    local first, revision = unpack_from('>I8I8', text, at)
    ranges[#ranges + 1] = {first = first, revision = revision}
  end
  return ranges
end

-- Return whether a dropped range lies inside the range of a job or outcome.
local function is_within(range, part)
  return part and part.first <= range.first and range.revision <= part.revision
end

-- Return the dropped ranges of an id, with the range of this successor added. Leave out ranges that lie neither in
-- the range of the current job nor in that of the outcome, because they are no longer needed.
local function add_dropped(queue, job, successor)
  local ranges, kept, ended = read_dropped(queue, job.id), {}, live_outcome(queue, job.id)
  local last = ranges[#ranges]
  if last and job.revision < last.first then
    -- No revision of the current lies between the last dropped range and this one: extend the last range.
    last.revision = successor.revision
    return ranges
  end
  for _, range in ipairs(ranges) do
    if is_within(range, job) or is_within(range, ended) then kept[#kept + 1] = range end
  end
  kept[#kept + 1] = successor
  if #kept > MAX_DROPPED then table.remove(kept, 1) end
  return kept
end

-- Cancel the successor of an active job. Return whether the job had a successor.
local function drop_successor(queue, job)
  local successor = read_successor(queue, job.id)
  if not successor then return false end
  local parts = {}
  for i, range in ipairs(add_dropped(queue, job, successor)) do
    parts[i] = pack('>I8I8', range.first, range.revision)
  end
  set_field(queue, 'dropped', job.id, table.concat(parts))
  set_field(queue, 'successors', job.id, false)
  log_attempt(queue, 'cancelled', job.id, encode_head(promoted_job(job.id, successor)))
  note_end(queue, job.id)
  return true
end
