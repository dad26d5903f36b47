-- The log: one entry per step and queue in a stream, its id a number drawn last.
--
-- entry     I8 at, I4 count, then the events
-- event     B kind, B has (1 head, 2 error), I2 + id, the head of the job as it was, I4 + error
-- Kinds are numbered in codec.py. A head tells first, revision, times, attempts, fence and holder.

-- @include queue

local KIND = {
  completed = 1, failed = 2, cancelled = 3, retried = 4, stalled = 5, timed_out = 6, released = 7,
  queued = 8, updated = 9, blocked = 10, promoted = 11, claimed = 12, handed_off = 13, cancel_requested = 14,
  amended = 15, forgotten = 16, paused = 17, resumed = 18, configured = 19,
}
-- Beyond so many ids, whoever waits for one of the queue looks for itself.
local MOST_NAMED = 64
-- The outcomes of so few ids are told with them, each up to so many bytes: whoever waits need not ask.
local MOST_SHOWN, LARGEST_SHOWN = 8, 1024
-- Entries read at once, and how often in one step, when the log has grown too large.
local SWEEP, SWEEPS = 64, 16

local function tell(queue, kind, id, head, error)
  local has = (head and 1 or 0) + (error and 2 or 0)
  queue.told[#queue.told + 1] = pack('>BBI2', KIND[kind], has, #id) .. id .. (head or '')
    .. (error and with_size(error) or '')
end

-- Tell the end of an attempt.
local function tell_run(queue, kind, id, head, error)
  if queue.level ~= 'off' then tell(queue, kind, id, head, error) end
end

-- Tell what only the level `all` keeps.
local function note(queue, kind, id, head)
  if queue.level == 'all' then tell(queue, kind, id, head) end
end

local function check_log(queue)
  if #queue.told > 0 then expect(queue.base .. 'log', 'stream') end
end

-- Forget whole entries from the oldest on while `old` says so; returns how many events went.
local function sweep(queue, old)
  local key, events = queue.base .. 'log', 0
  for _ = 1, SWEEPS do
    local gone, size = {}, queue.log_size
    for _, entry in ipairs(call('XRANGE', key, '-', '+', 'COUNT', SWEEP)) do
      local text = entry[2][2]
      local at, count = unpack_from('>I8I4', text)
      if not old(at, size) then break end
      size, events = size - #text, events + count
      gone[#gone + 1] = entry[1]
      queue.trimmed = tonumber(string.match(entry[1], '^%d+'))
    end
    if #gone > 0 then call('XDEL', key, unpack(gone)) end
    queue.log_size = size
    if #gone < SWEEP then break end
  end
  return events
end

local function write_log(queue)
  if #queue.told == 0 then return end
  local text = pack('>I8I4', queue.now, #queue.told) .. table.concat(queue.told)
  call('XADD', queue.base .. 'log', decimal(draw(queue)) .. '-0', 'e', text)
  queue.log_size, queue.logged = queue.log_size + #text, true
  if queue.log_size > queue.log_bytes then
    sweep(queue, function(_, size) return size > queue.log_bytes end)
  end
end

-- Tell those who wait for ids: the token before, the token now, and for each id, unless they are too many, the
-- id and its outcome, each with its size; nothing for an outcome where there is none, or it is not told.
local function tell_ends(queue, before)
  local words = {pack('>I8I8', before, queue.ended)}
  local outcomes = #queue.ends <= MOST_SHOWN and queue.slots.outcomes or {}
  for i = 1, #queue.ends <= MOST_NAMED and #queue.ends or 0 do
    local id = queue.ends[i]
    local text = outcomes[id] or ''
    words[i + 1] = with_size(id) .. with_size(#text <= LARGEST_SHOWN and text or '')
  end
  call('PUBLISH', queue.base .. 'ended', table.concat(words))
end
