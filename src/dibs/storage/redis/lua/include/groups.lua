-- Groups: the queues that one blocking claim waits for (storage/redis/wakeups/blocking_claim.py).
--
-- The field `groups` of the hash `meta` has the groups of a queue: key, ms at which the membership ends, key, ms, ...
-- Of a group KEY, the set KEY:members has the prefixes of its queues, and the set KEY:woken those of the queues that
-- changed since its last claim. The list KEY:claim_tokens releases a blocking claim.

-- The ms for which the list and the sets are kept without a claim.
local GROUP_AGE = 300000

-- Release one blocking claim of a group. pcall: the step that calls this function is written already.
local function release_claim(key)
  if redis.pcall('EXISTS', key .. ':claim_tokens') == 0 then
    redis.pcall('RPUSH', key .. ':claim_tokens', '')
    redis.pcall('PEXPIRE', key .. ':claim_tokens', GROUP_AGE)
    redis.pcall('PEXPIRE', key .. ':woken', GROUP_AGE)
  end
end

-- Note a change of a queue for a group, and release one of its blocking claims.
local function release_group(key, prefix)
  redis.pcall('SADD', key .. ':woken', prefix)
  release_claim(key)
end

-- Note a change of a queue for its groups. `groups` is the field of its hash `meta`, and `now` its time in ms.
local function release_groups(groups, now, prefix)
  for key, ends_at in string.gmatch(groups, '(%S+) (%d+)') do
    if tonumber(ends_at) > now then release_group(key, prefix) end
  end
end
