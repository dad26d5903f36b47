-- Store the progress of the active run with this fence (docs/explanation/contract.md, report).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  id
-- ARGV[3]  fence
-- ARGV[4]  progress
-- Returns  reported or lost

-- @include parse_record
-- @include commit

local queue, id = open_queue(KEYS[1], ARGV[1]), ARGV[2]
local text = read_field(queue, 'active', id)
local job = text and parse_job(id, text)
if not job or decimal(job.fence) ~= ARGV[3] then return 'lost' end
job.progress = ARGV[4]
set_field(queue, 'active', id, encode_job(job))
commit(true)
return 'reported'
