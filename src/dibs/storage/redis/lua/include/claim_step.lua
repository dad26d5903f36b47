-- One claim, from opening the queue to the reply. storage/redis/lua/claim.lua documents the reply.

-- @include claim_due
-- @include leases
-- @include commit

-- Return how many jobs a claim may take: `limit`, or fewer if the setting max_active allows fewer active jobs.
local function claimable(queue, limit)
  if not queue.max_active then return limit end
  local active = call('HLEN', queue.prefix .. 'active') - call('SCARD', queue.prefix .. 'away')
  return math.min(limit, math.max(0, queue.max_active - active))
end

local function claim_reply(queue, status, reply, due)
  return {status, decimal(queue.now), due and decimal(due) or '', decimal(queue.work), reply}
end

local function claim_step(prefix, manual, lease, limit)
  local queue = open_queue(prefix, manual)
  local found = live_lease(queue, lease)
  if not found then return claim_reply(queue, 'lost', {}) end
  if queue.paused then return claim_reply(queue, 'claimed', {}) end
  -- Read next_due before claim_due: claim_due takes only jobs that are due now, and next_due is later than now.
  local due = next_due(queue)
  local reply, gave_up = claim_due(queue, lease, found.holder, claimable(queue, limit))
  -- An enqueue of many jobs releases only one blocking claim. A claim that reached its limit
  -- releases the next blocking claim for the remaining jobs (release_blocking_claim in commit.lua).
  queue.limit_reached = #reply == 2 * limit
  if next(queue.listed_counts) or #queue.events > 0 then commit(true) end
  return claim_reply(queue, gave_up and 'incomplete' or 'claimed', reply, due)
end
