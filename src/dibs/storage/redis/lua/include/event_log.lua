-- The event log of a queue: a Redis stream with one entry per step. The id of an entry is the last number of its step.
--
-- entry     I8 at, I4 count, then the events
-- event     one event, or a group: completed events of the jobs of one claim
-- one       B kind, B has (1 head, 2 error, 4 result), I2 + id, the head of the job at the event, I4 + error,
--           I4 + result
-- group     B 128 + kind, B has (8 enqueued_at), I2 count, I4 + ids, separated by NUL, I8 fence, I8 claimed_at, h priority,
--           I4 + holder, then for each event the last 7 bytes of seq, I8 run_at, and I8 enqueued_at if it is another time.
--           Such jobs were enqueued once
-- kind      EVENT_KINDS below; KINDS in storage/redis/codec/event_log.py has the same order
-- A head has first, revision, times, attempts, fence and holder.

-- @include queue

local EVENT_KINDS = {
  completed = 1, failed = 2, cancelled = 3, retried = 4, stalled = 5, timed_out = 6, released = 7,
  queued = 8, updated = 9, blocked = 10, promoted = 11, claimed = 12, handed_off = 13, cancel_requested = 14,
  amended = 15, forgotten = 16, paused = 17, resumed = 18, configured = 19,
}
-- The most ids that one message on the channel `ended` names. For more ids the message names none, and all waits for
-- ids of the queue read its state. A worker settles at most 400 runs in one request.
local MAX_NAMED_IDS = 400
-- A message that names at most this many ids includes their outcomes, except those with more bytes than the second
-- number. A wait that gets an outcome in a message need not read it from the server.
local MAX_PUBLISHED_OUTCOMES, MAX_PUBLISHED_BYTES, NO_OUTCOMES = 8, 1024, '\255\255\255\255'
-- The number of entries that trim_log reads at once, and the most reads in one step.
local TRIM_READ, TRIM_ROUNDS = 64, 16

local GROUP = 128

local function append_event(queue, kind, id, head, error, result)
  local has = (head and 1 or 0) + (error and 2 or 0) + (result and 4 or 0)
  local events = own(queue, 'events')
  events[#events + 1] = pack('>BBI2', EVENT_KINDS[kind], has, #id) .. id .. (head or '')
    .. (error and sized(error) or '') .. (result and sized(result) or '')
end

-- Log the end of an attempt, at the log levels `runs` and `all`. The event has the result if the setting log_results
-- allows its size.
local function log_attempt(queue, kind, id, head, error, result)
  if queue.log_level == 'off' then return end
  local logged = result and queue.log_results > 0 and #result <= queue.log_results and result
  append_event(queue, kind, id, head, error, logged)
end

-- Log completions of the jobs of one claim; `group` has what they share, and `ids` and `heads` are joined.
local function log_completions(queue, count, ids, group, heads)
  if queue.log_level == 'off' then return end
  local has = group.place_size > 15 and 8 or 0
  local events = own(queue, 'events')
  events[#events + 1] = pack('>BBI2I4', GROUP + EVENT_KINDS.completed, has, count, #ids) .. ids .. group.times
    .. group.priority .. group.sized_holder .. heads
  queue.grouped_events = (queue.grouped_events or 0) + count - 1
end

-- Log a change that only the level `all` keeps.
local function log_change(queue, kind, id, head)
  if queue.log_level == 'all' then append_event(queue, kind, id, head) end
end

local function check_log_type(queue)
  if #queue.events > 0 then expect_type(queue.keys.log, 'stream') end
end

-- Remove whole entries, oldest first, while the function `old` returns true. It gets the time of the entry in ms and
-- the size of the log in bytes. Return the number of removed events, and 1 if older entries may be left, else 0. A damaged
-- entry ends the call: it raises no error, because the step has written already. The id of one that is the oldest is the
-- third result.
local function trim_log(queue, old)
  local key, events = queue.prefix .. 'log', 0
  for round = 1, TRIM_ROUNDS do
    local gone, size, bad = {}, queue.log_size, nil
    for _, entry in ipairs(call('XRANGE', key, '-', '+', 'COUNT', TRIM_READ)) do
      local text = entry[2][2]
      if #text < 12 then
        bad = entry[1]
        break
      end
      local at, count = unpack_from('>I8I4', text)
      if not old(at, size) then break end
      size, events = size - #text, events + count
      gone[#gone + 1] = entry[1]
      queue.trimmed = tonumber(string.match(entry[1], '^%d+'))
    end
    if #gone > 0 then call('XDEL', key, unpack(gone)) end
    queue.log_size = size
    if bad then return events, 1, round == 1 and #gone == 0 and bad or nil end
    if #gone < TRIM_READ then return events, 0 end
  end
  return events, 1
end

-- Pack the events of a step as one entry of the log, and take its number.
local function number_log(queue)
  queue.entry = pack('>I8I4', queue.now, #queue.events + (queue.grouped_events or 0)) .. table.concat(queue.events)
  queue.entry_id, queue.log_size = decimal(next_number(queue)) .. '-0', queue.log_size + #queue.entry
end

local function write_log(queue)
  call('XADD', queue.keys.log, queue.entry_id, 'e', queue.entry)
  if queue.log_size > queue.log_bytes then
    trim_log(queue, function(_, size) return size > queue.log_bytes end)
    queue.log_trimmed = true
  end
end

-- Publish a message on a channel about ids, after its proof: everybody who may publish can send a message, but only who may
-- read the queue knows its secret. SHA-1 is the only hash that scripts have. pcall: see `publish` in commit.lua.
local function publish_proven(queue, name, message)
  local channel, secret = queue.prefix .. '@database:' .. name, call('HGET', queue.keys.meta, 'secret') or ''
  redis.pcall('PUBLISH', channel, redis.sha1hex(secret .. channel .. message .. secret) .. message)
end

-- Publish the ids whose run ended or whose outcome changed in this step. storage/redis/wakeups/listener.py reads the
-- message: the proof, I8 token before the step, I8 token now, then I4 + id and I4 + outcome for each id. An outcome is empty if it
-- does not exist or exceeds the limits above. With more than MAX_PUBLISHED_OUTCOMES ids, NO_OUTCOMES and the ids follow,
-- separated by NUL; with more than MAX_NAMED_IDS no id follows.
local function publish_ended(queue, before)
  local parts, count = {pack('>I8I8', before, queue.ended)}, #queue.ended_ids
  if count <= MAX_PUBLISHED_OUTCOMES then
    for i, id in ipairs(queue.ended_ids) do
      local text = queue.fields.outcomes and queue.fields.outcomes[id] or ''
      -- Only a step that writes outcomes in the short form has the function that sends them.
      local is_short = text ~= '' and band(string.byte(text), 3) == 0
      -- The data of an outcome may refer to a large payload.
      if queue.has_payloads and text ~= '' and not is_short and band(string.byte(text), HAS_DATA) ~= 0 then text = '' end
      if is_short then text = queue.outcome_reply and queue.outcome_reply(queue, id, text) or '' end
      parts[i + 1] = sized(id) .. sized(#text <= MAX_PUBLISHED_BYTES and text or '')
    end
  elseif count <= MAX_NAMED_IDS then
    parts[2] = NO_OUTCOMES .. table.concat(queue.ended_ids, '\0')
  end
  publish_proven(queue, 'ended', table.concat(parts))
end
