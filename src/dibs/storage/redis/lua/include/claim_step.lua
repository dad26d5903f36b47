-- One claim, from opening the queue to the reply. storage/redis/lua/claim.lua documents the reply.

-- @include claim_due
-- @include leases
-- @include commit

-- Return how many jobs a claim may take: `limit`, or fewer if the settings max_active and rate allow fewer.
local function claimable(queue, limit)
  if queue.max_active then
    local active = call('HLEN', queue.prefix .. 'active') - call('SCARD', queue.prefix .. 'away')
    limit = math.min(limit, math.max(0, queue.max_active - active))
  end
  if queue.rate then
    limit = math.min(limit, limits.starts_allowed(limits.queue_clock(queue), queue.rate, queue.now))
  end
  return limit
end

local function charge_queue(queue, starts)
  if not queue.rate or starts == 0 then return end
  local clock = limits.charged(limits.queue_clock(queue), queue.rate, queue.now, starts)
  plan(queue, 'hash', 'meta', 'clock', decimal(clock))
end

-- Return the earlier of two times; either may be nil.
local function earlier(a, b)
  return a and b and math.min(a, b) or a or b
end

-- Return the reply of a claim. Why no texts for its numbers: Redis sends a number with 3,000 instructions less.
local function claim_reply(queue, status, reply, due, references)
  return {status, queue.now, due and decimal(due) or '', queue.work, reply, references}
end

local function claim_step(prefix, manual, lease, limit)
  local queue = open_queue(prefix, manual)
  local found = live_lease(queue, lease)
  if not found then return claim_reply(queue, 'lost', {}) end
  if queue.paused then return claim_reply(queue, 'claimed', {}) end
  if queue.keyed then
    local reopened, more = limits.reopen(queue)
    if queue.fair then
      local brought, more_due = limits.turns(queue).bring_due(parse_job, key_of)
      reopened, more = reopened + brought, more or more_due
    end
    if reopened > 0 then
      commit(true)
      queue = open_queue(prefix, manual)
    end
    if more then return claim_reply(queue, 'incomplete', {}) end
  end
  -- Read next_due before the jobs: a claim takes only jobs that are due now, and next_due is later than now.
  local due = next_due(queue)
  if #queue.priorities == 0 and not queue.keyed then return claim_reply(queue, 'claimed', {}) end
  if queue.fair then limits.turns(queue) end
  local reply, gave_up, references = claim_due(queue, lease, found.holder, claimable(queue, limit))
  -- An enqueue of many jobs releases only one blocking claim. A claim that reached its limit
  -- releases the next blocking claim for the remaining jobs (release_blocking_claim in commit.lua).
  queue.limit_reached = #reply == 2 * limit
  charge_queue(queue, #reply / 2)
  if next(queue.listed_counts) or #queue.events > 0 or queue.touched then commit(true) end
  -- The claim itself may have closed keys.
  if queue.keyed or queue.rate then due = earlier(due, limits.next_due(queue)) end
  return claim_reply(queue, gave_up and 'incomplete' or 'claimed', reply, due, references)
end
