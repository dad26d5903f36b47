-- Make the blocking claim with this id claim now. Its BLPOP also waits for an element in the list of this id, and the
-- script pushes one (storage/redis/wakeups/blocking_claim.py).
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  id of the claim
-- ARGV[2]  list of this id for a claim of several queues; absent in a cluster
-- Returns  nil. Without a waiting claim the keys expire after 10 s.

-- As in `commit`: a full server accepts the writes after a DEL.
redis.call('DEL', KEYS[1] .. 'nothing')
for _, key in ipairs({KEYS[1] .. 'claim_tokens:' .. ARGV[1], ARGV[2]}) do
  redis.call('RPUSH', key, '')
  redis.call('PEXPIRE', key, 10000)
end
