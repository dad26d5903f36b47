-- The same step in each of several queues, in one script.

-- @include queue

-- Return the reply for an error that pcall has caught. Redis 7 raises tables, Redis 6.2 raises texts.
local function error_reply(raised)
  return {err = type(raised) == 'table' and raised.err or raised}
end

-- Call step(prefix) for the first `count` prefixes in KEYS, and return the replies. An error is the reply of its queue
-- and stops no other queue.
local function each_queue(count, step)
  local replies = {}
  for i = 1, count do
    local ok, reply = pcall(step, KEYS[i])
    replies[i] = ok and reply or error_reply(reply)
    -- A step may have read a queue without a commit, and the next commit must not write it.
    opened = {}
  end
  return replies
end
