-- Enqueue requests. The state of each id decides what happens (docs/explanation/contract.md, enqueue).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] id, request, id, request, ... (storage/redis/lua/include/accept.lua)
-- Returns  the number of the first job if all jobs are new and took the fast path: each later job has the next number.
--          Not a table, because Redis 6.2 sends each table of a reply with a system call of its own.
--          Else {answers, now, outcomes, first, first_ids}
--          answers   packed answers (storage/redis/lua/include/accept.lua); '' if all jobs are new
--          outcomes  outcome or nil for each request that wants one and did not repeat a request key
--          first     number of the first job if all jobs are new, each later job has the next number; else ''
--          first_ids for each answer that repeats a request key, the id of the first request with that key

-- @include enqueue_requests

return enqueue_requests(0)
