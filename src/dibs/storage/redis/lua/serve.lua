-- Settle and claim (docs/explanation/contract.md, settle and claim) in one queue or in several. Each step is one queue: settle,
-- then claim, two atomic steps in one round trip. Runs end or return to waiting, each if its fence is valid. One script for all
-- queues costs half of one script for each.
--
-- KEYS     prefixes of the keys of all queues that the steps name
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  lease
-- ARGV[3]  number of steps
-- ARGV[4…] for each step: I4 index of the queue's prefix in KEYS, I4 index of the prefix of its fail queue, I4 number of
--          settlements, I4 number of follow-ups, I4 limit (0 claims no job) as one argument, name of the queue, then id,
--          settlement, id, settlement, ..., then the follow-ups (storage/redis/lua/include/settle_one.lua)
-- Returns  for each step {now, packed answers (settle_one.lua) or '', reply of storage/redis/lua/claim.lua or ''}.
--          The script stops after MAX_RUNS runs, so that other clients wait for at most some ms; the caller sends the
--          other steps again. If a step fails after other steps were applied, its reply is the error, and the last one.

-- @include complete_claimed
-- @include claim_step
-- @include each_queue

local MAX_RUNS = 1000

-- Return the claim of a step in an open queue. After settlements an error of the claim must not hide their answers; the next
-- claim raises the error. Most queues have no waiting job then, and the claim need not open the queue again.
local function claim_after(queue, settled, limit)
  if settled == 0 then return claim_step(queue.prefix, ARGV[1], ARGV[2], limit) end
  local claims, claimed = pcall(function()
    if has_waiting(queue) then return claim_step(queue.prefix, ARGV[1], ARGV[2], limit) end
    return claim_reply(queue, live_lease(queue, ARGV[2]) and 'claimed' or 'lost', {})
  end)
  return claims and claimed or {'claimed', queue.now, '', 0, {}}
end

local function serve_step(prefix, name, fail_prefix, settlements, limit, at)
  local queue, answers, claimed = open_queue(prefix, ARGV[1]), '', ''
  local now = queue.now
  if settlements > 0 then
    answers = settle_all(queue, name, fail_prefix, ARGV[1], settlements, at)
    commit(true)
  end
  if limit > 0 then claimed = claim_after(queue, settlements, limit) end
  -- A claim that changed no job has written no plan. The next step must not commit this queue.
  opened = {}
  return {now, answers, claimed}
end

-- Serve the step at ARGV[at]. Return its reply, the number of its runs, and the position after it.
local function serve_at(at)
  local index, fail_index, settlements, follow_ups, limit = unpack_from('>I4I4I4I4I4', ARGV[at])
  local reply = serve_step(KEYS[index], ARGV[at + 1], KEYS[fail_index], settlements, limit, at + 2)
  local claimed = reply[3] ~= '' and #reply[3][5] / 2 or 0
  return reply, settlements + claimed, at + 2 + 2 * settlements + 3 * follow_ups
end

local first, runs, at = serve_at(4)
local replies = {first}
for n = 2, tonumber(ARGV[3]) do
  if runs >= MAX_RUNS then break end
  local served, reply, more, next_at = pcall(serve_at, at)
  if not served then
    replies[n] = error_reply(reply)
    break
  end
  replies[n], runs, at = reply, runs + more, next_at
end
return replies
