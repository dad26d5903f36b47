-- Groups: the queues that one blocking claim waits for (storage/redis/wakeups/queue_groups.py).
--
-- The field `groups` of the hash `meta` has the groups of a queue: key, ms at which the membership ends, key, ms, ...
-- The list KEY:parked releases a blocking claim of the group KEY; the set KEY:woken has the prefixes of the queues that
-- changed since the last claim of the group.

-- @include queue

-- The ms for which the list and the set are kept without a claim.
local GROUP_AGE = 300000

-- Note a change of a queue for a group, and release one of its blocking claims. pcall: the step is written already.
local function release_group(key, prefix)
  redis.pcall('SADD', key .. ':woken', prefix)
  if redis.pcall('EXISTS', key .. ':parked') == 0 then
    redis.pcall('RPUSH', key .. ':parked', '')
    redis.pcall('PEXPIRE', key .. ':parked', GROUP_AGE)
    redis.pcall('PEXPIRE', key .. ':woken', GROUP_AGE)
  end
end

local function release_groups(queue)
  for key, ends_at in string.gmatch(queue.groups, '(%S+) (%d+)') do
    if tonumber(ends_at) > queue.now then release_group(key, queue.prefix) end
  end
end
