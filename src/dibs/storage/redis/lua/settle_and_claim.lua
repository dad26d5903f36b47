-- Settle, then claim: two atomic steps in one round trip.
--
-- KEYS     as in settle.lua
-- ARGV[1]  now in ms, '' for Redis's own time
-- ARGV[2]  name of the queue
-- ARGV[3]  number of settlements
-- ARGV[4]  lease
-- ARGV[5]  limit
-- ARGV[6…] as from ARGV[4] in settle.lua
-- Returns  {answers of settle.lua, answer of claim.lua}

-- @include settle_run
-- @include claim_step

local queue = open(KEYS[1], ARGV[1])
local answers = settle_all(queue, ARGV[2], KEYS[2], ARGV[1], tonumber(ARGV[3]), 6)
commit(true)
-- A key of another type that only claims meet must not hide what was settled: the next claim tells of it.
local claims, claimed = pcall(claim_step, KEYS[1], ARGV[1], ARGV[4], tonumber(ARGV[5]))
return {answers, claims and claimed or {'taken', decimal(queue.now), '', '0', {}}}
