-- Settle, then claim: two atomic steps in one round trip.
--
-- KEYS     as in storage/redis/lua/settle.lua
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  name of the queue
-- ARGV[3]  number of settlements
-- ARGV[4]  lease
-- ARGV[5]  limit
-- ARGV[6…] as ARGV[4…] of storage/redis/lua/settle.lua
-- Returns  {reply of storage/redis/lua/settle.lua, reply of storage/redis/lua/claim.lua}

-- @include settle_run
-- @include claim_step

local queue = open_queue(KEYS[1], ARGV[1])
local answers = settle_all(queue, ARGV[2], KEYS[2], ARGV[1], tonumber(ARGV[3]), 6)
commit(true)
-- The settlements are written, so an error of the claim (a key of another type) must not hide their answers. The
-- next claim raises the error.
local claims, claimed = pcall(claim_step, KEYS[1], ARGV[1], ARGV[4], tonumber(ARGV[5]))
return {answers, claims and claimed or {'claimed', decimal(queue.now), '', '0', {}}}
