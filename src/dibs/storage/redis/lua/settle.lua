-- End claimed runs or return them to waiting, each if its fence is valid (docs/explanation/contract.md, settle).
--
-- KEYS[1]  prefix of the queue's keys
-- KEYS[2]  prefix of the keys of its fail queue; KEYS[1] again if it is a fail queue itself
-- KEYS[3…] prefixes of the keys of the queues of follow-ups
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  name of the queue
-- ARGV[3]  number of settlements
-- ARGV[4…] id, settlement, id, settlement, ..., then the follow-ups (storage/redis/lua/include/settle_one.lua)
-- Returns  packed answers (storage/redis/lua/include/settle_one.lua)

-- @include settle_run
-- @include commit

local queue = open_queue(KEYS[1], ARGV[1])
local answers = settle_all(queue, ARGV[2], KEYS[2], ARGV[1], tonumber(ARGV[3]), 4)
commit(true)
return answers
