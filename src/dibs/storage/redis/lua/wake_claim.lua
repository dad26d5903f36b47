-- Make the blocking claim with this id claim now. Its BLPOP also waits for an element in the list of this id, and the
-- script pushes one (storage/redis/wakeups/blocking_claim.py).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  id of the claim
-- Returns  nil. Without a waiting claim the key expires after 10 s.

local key = KEYS[1] .. 'parked:' .. ARGV[1]
redis.call('RPUSH', key, '')
redis.call('PEXPIRE', key, 10000)
