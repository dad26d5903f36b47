-- End a handed-off run from elsewhere, named by a revision in its range (contract 3, finish).
--
-- KEYS     as in settle.lua
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  name of the queue
-- ARGV[3]  id
-- ARGV[4]  revision
-- ARGV[5]  settlement, with fence 0 (include/settle_run.lua)
-- ARGV[6…] its follow-ups
-- Returns  done, lost, refused or not_found

-- @include settle_run
-- @include commit

local queue, id, revision = open(KEYS[1], ARGV[1]), ARGV[3], tonumber(ARGV[4])
local how = parse_settlement(ARGV[5])

local function within(part)
  return part.first <= revision and revision <= part.revision
end

local ended = outcome(queue, id)
if ended and within(ended) then return ended.kind == how.kind and 'done' or 'lost' end
local text = look(queue, 'active', id)
local waiting = not text and look(queue, 'waiting', id)
if not text and not waiting then return 'not_found' end
local job = parse(id, text or waiting)
if not within(job) then return 'lost' end
if waiting or not job.away then return 'refused' end
end_run(queue, job, how, {name = ARGV[2], open = function() return open(KEYS[2], ARGV[1]) end}, function()
  for word = 6, 5 + 3 * how.follows, 3 do
    local into = open(KEYS[tonumber(ARGV[word])], ARGV[1])
    accept(into, parse_request(ARGV[word + 1], ARGV[word + 2], into.now))
  end
end)
commit(true)
return 'done'
