-- End claimed runs or send them back, each as its fence allows (contract 3, settle).
--
-- KEYS[1]  beginning of the queue's keys
-- KEYS[2]  the same of its fail queue; '' where it has none
-- KEYS[3…] the same of the queues of follow-ups
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  name of the queue
-- ARGV[3]  number of settlements
-- ARGV[4…] id and settlement by turns, then the follow-ups (include/settle_run.lua)
-- Returns  the answers, packed one after the other (include/settle_run.lua)

-- @include settle_run
-- @include commit

local queue = open(KEYS[1], ARGV[1])
local answers = settle_all(queue, ARGV[2], KEYS[2], ARGV[1], tonumber(ARGV[3]), 4)
commit(true)
return answers
