-- Make due jobs active under a lease (docs/explanation/contract.md, claim).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  lease
-- ARGV[3]  limit
-- Returns  {status, now, next_due or '', token, {id, record, …}, references}; references is the text of the references to large
--          payloads (storage/redis/lua/include/payloads.lua), in the order of their jobs, left out for none; status is 'claimed', 'lost' (the lease), or
--          'incomplete' if the search gave up at stale entries and the caller should claim again

-- @include claim_step
-- @include commit

return claim_step(KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]))
