-- Add queues to the set of queue names, also on a full server: a worker needs this step before its first lease.
--
-- KEYS[1]  key of the set
-- ARGV[1]  name
-- ARGV[2…] more names
-- Returns  nil

-- A full server accepts the writes after the first one, if that needs no memory (see `commit`).
redis.call('SREM', KEYS[1], '')
for _, name in ipairs(ARGV) do redis.call('SADD', KEYS[1], name) end
