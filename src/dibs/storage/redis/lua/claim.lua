-- Make due jobs active under a lease (contract 3, claim).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  lease
-- ARGV[3]  limit
-- Returns  {status, now, next_due or '', token, {id, record, …}}; status 'taken', 'lost', or 'tired' when the
--          search ended early and should be repeated

-- @include claim_step
-- @include commit

return claim_step(KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]))
