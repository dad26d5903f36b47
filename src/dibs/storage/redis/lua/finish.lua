-- End a handed-off run by its id and a revision of it (docs/explanation/contract.md, finish).
--
-- KEYS[1]  prefix of the queue's keys
-- KEYS[2]  prefix of the keys of its fail queue; KEYS[1] again if it is a fail queue itself
-- KEYS[3…] prefixes of the keys of the queues of follow-ups
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  name of the queue
-- ARGV[3]  id
-- ARGV[4]  revision
-- ARGV[5]  settlement, with fence 0 (storage/redis/lua/include/settle_one.lua)
-- ARGV[6…] follow-ups of the settlement
-- Returns  done, lost, refused or not_found

-- @include settle_one
-- @include commit

local queue, id, revision = open_queue(KEYS[1], ARGV[1]), ARGV[3], tonumber(ARGV[4])
local settlement = parse_settlement(ARGV[5])

-- Return whether the revision is in the range of a job or outcome.
local function is_within(part)
  return part.first <= revision and revision <= part.revision
end

local outcome = read_outcome(queue, id)
if outcome and is_within(outcome) then return outcome.kind == settlement.kind and 'done' or 'lost' end
local text = read_field(queue, 'active', id)
local waiting = not text and read_field(queue, 'waiting', id)
if not text and not waiting then return 'not_found' end
local job = parse_job(id, text or waiting)
if not is_within(job) then return 'lost' end
if waiting or not job.handed_off then return 'refused' end
local fail_queue = {name = ARGV[2], open = function() return open_queue(KEYS[2], ARGV[1]) end}
end_run(queue, job, settlement, fail_queue, function()
  for n = 6, 5 + 3 * settlement.follow_up_count, 3 do
    local target = open_queue(KEYS[tonumber(ARGV[n])], ARGV[1])
    accept(target, parse_request(ARGV[n + 1], ARGV[n + 2], target.now))
  end
end)
commit(true)
return 'done'
