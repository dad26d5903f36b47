-- Count the ids of queues in each state.
--
-- KEYS     prefixes of the queues' keys; in a cluster, one more key
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  number of queues
-- Returns  for each queue {lead of the queue in ms, waiting, scheduled, retrying, active, handed_off, blocked, completed, failed,
--          cancelled, 1 if the numbers may be inexact, else 0}

-- @include short_outcomes
-- @include each_queue

-- The most expired outcomes in the short form that one step reads.
local MAX_READ = 10000

-- Return the numbers of waiting, scheduled, retrying, active, handed-off and blocked jobs.
local function count_live(queue, later)
  local prefix, scheduled = queue.prefix, 0
  if call('EXISTS', prefix .. 'waiting', prefix .. 'active') == 0 then return 0, 0, 0, 0, 0, 0 end
  for _, priority in ipairs(call('HKEYS', prefix .. 'priorities')) do
    scheduled = scheduled + call('ZCOUNT', prefix .. 'line:' .. priority, later, '+inf')
  end
  if queue.keyed then scheduled = scheduled + call('ZCOUNT', prefix .. 'later', later, '+inf') end
  local waiting = call('HLEN', prefix .. 'waiting')
  -- The record of a damaged job that was forgotten may not have said whether it was retrying.
  local retrying = math.max(0, math.min(waiting, queue.retrying))
  return waiting, scheduled, retrying, call('HLEN', prefix .. 'active'), call('SCARD', prefix .. 'away'),
    call('HLEN', prefix .. 'successors')
end

-- Return the number of outcomes in the short form, which have no ordered set, and true if it may be inexact. Those that
-- have expired are counted one by one.
local function count_kept(queue)
  local kept, seen, counts = 0, {}, call('HVALS', queue.prefix .. 'ends')
  if #counts == 0 then return 0, false end
  for _, count in ipairs(counts) do kept = kept + tonumber(count) end
  local _, more = each_expired_kept(queue, MAX_READ, MAX_READ, function(id)
    if not seen[id] then kept, seen[id] = kept - 1, true end
  end)
  return kept, more
end

return each_queue(tonumber(ARGV[2]), function(prefix)
  local queue = open_queue(prefix, ARGV[1])
  -- Most queues of a worker are empty.
  if call('EXISTS', prefix .. 'waiting', prefix .. 'active', prefix .. 'ends', prefix .. 'completed', prefix .. 'failed',
    prefix .. 'cancelled') == 0 then return {queue.lead, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
  local later = '(' .. decimal(queue.now)
  local kept, more = count_kept(queue)
  local waiting, scheduled, retrying, active, handed_off, blocked = count_live(queue, later)
  return {
    queue.lead, waiting, scheduled, retrying, active, handed_off, blocked,
    call('ZCOUNT', prefix .. 'completed', later, '+inf') + kept, call('ZCOUNT', prefix .. 'failed', later, '+inf'),
    call('ZCOUNT', prefix .. 'cancelled', later, '+inf'), more and 1 or 0,
  }
end)
