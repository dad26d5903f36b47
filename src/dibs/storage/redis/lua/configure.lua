-- Change settings of a queue, and return all of them.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] name, value, name, value, ...
-- Returns  'again' if claims must first look at the closed keys of an earlier change; the caller repeats the call. Else all
--          settings, in the order of `setting_names` in storage/redis/lua/include/queue.lua; nil for a default

-- @include commit

local queue, names = open_queue(KEYS[1], ARGV[1]), {setting_names()}
local before = call('HMGET', queue.prefix .. 'meta', setting_names())
local after, others, paused, changed = {}, false, nil, {}
for i, name in ipairs(names) do after[i] = before[i] end
for i = 2, #ARGV, 2 do
  for n, name in ipairs(names) do
    if name == ARGV[i] then after[n] = ARGV[i + 1] end
  end
end
local known = {'0', '', ',,,', 'runs', decimal(DEFAULT_LOG_AGE), decimal(DEFAULT_LOG_BYTES), decimal(DEFAULT_REQUEST_KEY_AGE), '0',
  '0', '', '', '', '', 'refuse', '0', ''}
for i, name in ipairs(names) do
  if (before[i] or known[i]) ~= (after[i] or known[i]) then
    changed[name] = true
    if name == 'paused' then paused = after[i] == '1' else others = true end
    plan(queue, 'hash', 'meta', name, after[i])
  end
end
if paused == nil and not others then return before end
queue.configured = false
for i in ipairs(names) do queue.configured = queue.configured or (after[i] or known[i]) ~= known[i] end
if after[4] == 'all' then queue.log_level = 'all' end
if paused ~= nil then log_change(queue, paused and 'paused' or 'resumed', '') end
if others then log_change(queue, 'configured', '') end
queue.work_changed = true

-- Another limit may open each closed key. The first claims after the change look at them again, some in each call, so that
-- this step takes no longer if a million keys are closed.
local opening, reopening, clocks = queue.prefix .. 'opening', queue.prefix .. 'reopening', queue.prefix .. 'clocks'
local closed = (changed.per_key or changed.key_rate) and call('EXISTS', opening) == 1
if closed and call('EXISTS', reopening) == 1 then
  opened, queue = {}, nil
  queue = open_queue(KEYS[1], ARGV[1])
  limits.reopen(queue)
  commit(true)
  return 'again'
end
for _, key in ipairs({opening, reopening, clocks}) do expect_type(key, 'zset') end
if changed.rate then plan(queue, 'hash', 'meta', 'clock', false) end
commit(true)
if closed then call('RENAME', opening, reopening) end
if changed.key_rate then call('UNLINK', clocks) end
return after
