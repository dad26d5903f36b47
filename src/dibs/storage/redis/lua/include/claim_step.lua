-- A whole claim, from opening the queue to the reply (claim.lua tells its shape).

-- @include take
-- @include leases
-- @include commit

local function room(queue, limit)
  if not queue.max_active then return limit end
  local active = call('HLEN', queue.base .. 'active') - call('SCARD', queue.base .. 'away')
  return math.min(limit, math.max(0, queue.max_active - active))
end

local function answer(queue, status, reply, due)
  return {status, decimal(queue.now), due and decimal(due) or '', decimal(queue.work), reply}
end

local function claim_step(base, manual, lease, limit)
  local queue = open(base, manual)
  local found = live_lease(queue, lease)
  if not found then return answer(queue, 'lost', {}) end
  if queue.paused then return answer(queue, 'taken', {}) end
  -- Before anything is taken: what is taken is due now, so it is not the next that falls due.
  local due = next_due(queue)
  local reply, tired = take(queue, lease, found.holder, room(queue, limit))
  -- What it leaves is for the next that is parked: one token was for all that came.
  queue.full = #reply == 2 * limit
  if next(queue.live) or #queue.told > 0 then commit(true) end
  return answer(queue, tired and 'tired' or 'taken', reply, due)
end
