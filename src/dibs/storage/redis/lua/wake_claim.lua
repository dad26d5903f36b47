-- Let the claim that is parked at a place go on now: it waits for the key of its place, too (parking.py).
--
-- KEYS[1]  beginning of the queue's keys
-- ARGV[1]  name of the place
-- Returns  nothing. Where nobody is parked, the key goes by itself.

local key = KEYS[1] .. 'parked:' .. ARGV[1]
redis.call('RPUSH', key, '')
redis.call('PEXPIRE', key, 10000)
