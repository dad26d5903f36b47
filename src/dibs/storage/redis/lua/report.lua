-- Keep progress on the active run with this fence (contract 3, report).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  id
-- ARGV[3]  fence
-- ARGV[4]  progress
-- Returns  reported or lost

-- @include commit

local queue, id = open(KEYS[1], ARGV[1]), ARGV[2]
local text = look(queue, 'active', id)
local job = text and parse(id, text)
if not job or decimal(job.fence) ~= ARGV[3] then return 'lost' end
job.progress = ARGV[4]
keep(queue, 'active', id, record(job))
commit(true)
return 'reported'
