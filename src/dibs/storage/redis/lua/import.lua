-- Take whole ids in; one that exists here is left alone (contract 3, import_).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2…] six words for each id: id, current, successor, outcome, dropped ('' where there is none), and the
--          highest number in them
-- Returns  1 for each id taken in, 0 for each that exists

-- @include ends
-- @include commit

local queue, reply = open(KEYS[1], ARGV[1]), {}

local function clear(id)
  if look(queue, 'outcomes', id) then lose_outcome(queue, id) end
  keep(queue, 'dropped', id, false)
end

-- A run asked to cancel never comes back, here as elsewhere.
local function end_asked(job, blocked)
  local text, score = outcome_of(queue, job, 3, {})
  keep_outcome(queue, job.id, 3, text, score)
  if blocked ~= '' then line_up(queue, heir_of(job.id, parse_successor(blocked)), false) end
end

-- A run under a lease of elsewhere arrives as if released. Returns handed_off, ended or waiting.
local function current(id, text, blocked)
  local job = parse(id, text)
  if job.away then
    keep(queue, 'active', id, text)
    put(queue, 'set', 'away', id, true)
    if blocked ~= '' then keep(queue, 'successors', id, blocked) end
    return 'handed_off'
  end
  if job.asked then
    end_asked(job, blocked)
    return 'ended'
  end
  if job.fence then
    job.fence, job.progress, job.attempts = false, nil, job.attempts - 1
    if blocked ~= '' then come_back(job, parse_successor(blocked)) end
  end
  line_up(queue, job, false)
  return 'waiting'
end

local function import(id, text, blocked, ended, dropped, number)
  if look(queue, 'waiting', id) or look(queue, 'active', id) or alive(queue, id) then return 0 end
  clear(id)
  queue.number = math.max(queue.number, tonumber(number))
  local became = text ~= '' and current(id, text, blocked)
  if dropped ~= '' then keep(queue, 'dropped', id, dropped) end
  if ended ~= '' and became ~= 'ended' then
    local parsed = parse_outcome(id, ended)
    keep_outcome(queue, id, parsed.kind, ended, parsed.expires_at and decimal(parsed.expires_at) or '+inf')
  end
  return 1
end

for i = 2, #ARGV, 6 do
  reply[#reply + 1] = import(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
end
commit()
return reply
