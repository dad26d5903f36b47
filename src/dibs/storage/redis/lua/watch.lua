-- Read the states of queues for a wait (storage/redis/wakeups/wait.py).
--
-- KEYS     prefixes of the queues' keys; in a cluster, one more key
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  number of queues
-- ARGV[3]  what the wait is for: work, events, ids or progress. It decides which of the values are read
-- Returns  for each queue {now, work, ended, last entry of the log or '', next_due or '', 1 if a job is due, else 0,
--          reported, secret of the messages or ''}

-- @include claim_order
-- @include each_queue

local watch = ARGV[3]
local is_by_id = watch == 'ids' or watch == 'progress'

-- Return the next due time of a queue, or nil, and 1 if a job is due, else 0.
local function read_due(queue)
  -- Most queues of a wait are empty.
  if not queue.keyed and not queue.rate and call('EXISTS', queue.prefix .. 'priorities') == 0 then return nil, 0 end
  local due, has_due = next_due(queue), 0
  if queue.keyed or queue.rate then
    local opening = limits.next_due(queue)
    due = due and opening and math.min(due, opening) or due or opening
  end
  if queue.keyed and limits.has_due(queue) then has_due = 1 end
  for _, priority in ipairs(call('HKEYS', queue.prefix .. 'priorities')) do
    local prefix = queue.prefix
    if tonumber(call('HGET', prefix .. 'priorities', priority)) > 0
      or call('ZCOUNT', prefix .. 'line:' .. priority, '-inf', decimal(queue.now)) > 0 then has_due = 1 end
  end
  if queue.rate and limits.next_start(limits.queue_clock(queue), queue.rate, queue.now) then has_due = 0 end
  return due, has_due
end

local function read_state(queue)
  local last, due, has_due, reported
  if watch == 'events' then last = call('XREVRANGE', queue.prefix .. 'log', '+', '-', 'COUNT', 1)[1] end
  if watch == 'work' then due, has_due = read_due(queue) end
  if watch == 'progress' then reported = call('HGET', queue.prefix .. 'meta', 'reported') end
  return {
    decimal(queue.now), decimal(queue.work), decimal(queue.ended), last and last[1] or '', due and decimal(due) or '',
    has_due or 0, reported or '0', is_by_id and call('HGET', queue.prefix .. 'meta', 'secret') or '',
  }
end

return each_queue(tonumber(ARGV[2]), function(prefix) return read_state(open_queue(prefix, ARGV[1])) end)
