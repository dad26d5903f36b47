-- A cancel drops a successor, and its range becomes a dropped range of the id (contract 1, Done).
--
-- dropped   pairs of I8 first, I8 revision, oldest first, at most eight

-- @include ends

local MOST_DROPPED = 8

local function ranges_of(queue, id)
  local text, ranges = look(queue, 'dropped', id) or '', {}
  for at = 1, #text, 16 do
    local first, revision = unpack_from('>I8I8', text, at)
    ranges[#ranges + 1] = {first = first, revision = revision}
  end
  return ranges
end

local function inside(range, part)
  return part and part.first <= range.first and range.revision <= part.revision
end

local function with_dropped(queue, job, blocked)
  local ranges, kept, ended = ranges_of(queue, job.id), {}, alive(queue, job.id)
  local last = ranges[#ranges]
  if last and job.revision < last.first then
    -- Nothing between the last dropped range and this one is in the current: one range says both.
    last.revision = blocked.revision
    return ranges
  end
  for _, range in ipairs(ranges) do
    if inside(range, job) or inside(range, ended) then kept[#kept + 1] = range end
  end
  kept[#kept + 1] = blocked
  if #kept > MOST_DROPPED then table.remove(kept, 1) end
  return kept
end

-- Returns whether there was one.
local function drop_successor(queue, job)
  local blocked = successor(queue, job.id)
  if not blocked then return false end
  local words = {}
  for i, range in ipairs(with_dropped(queue, job, blocked)) do
    words[i] = pack('>I8I8', range.first, range.revision)
  end
  keep(queue, 'dropped', job.id, table.concat(words))
  keep(queue, 'successors', job.id, false)
  tell_run(queue, 'cancelled', job.id, head_of(heir_of(job.id, blocked)))
  queue.ends[#queue.ends + 1] = job.id
  return true
end
