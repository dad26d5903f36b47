-- Change settings of a queue, and return all of them.
--
-- KEYS[1]  prefix of the queue's keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2…] name, value, name, value, ...
-- Returns  the number of shares if they are too many, and nothing has changed; 'again' if claims must first look at the closed keys of an earlier change; the caller repeats the call. Else all
--          settings, in the order of `setting_names` in storage/redis/lua/include/queue.lua; nil for a default

-- @include claim_due
-- @include commit

-- The most keys with a share of their own.
local MOST_SHARES = 1000

-- Return the text of the shares (storage/redis/lua/include/turns.lua) after a patch, in which '' removes a share, and their number.
local function merged_shares(text, patch)
  local shares, keys, entries = {}, {}, {}
  for key, share in string.gmatch((text or '') .. patch, '%z%z([^%z]+)%z(%d*)') do
    if not shares[key] then keys[#keys + 1] = key end
    shares[key] = share
  end
  for _, key in ipairs(keys) do
    if shares[key] ~= '' then entries[#entries + 1] = '\0\0' .. key .. '\0' .. shares[key] end
  end
  return table.concat(entries), #entries
end

-- Begin the turn of each key again whose share has changed, in the same place.
local function begin_turns(queue, before, after)
  local old, new = {shares = before}, {shares = after}
  for key in string.gmatch((before or '') .. after, '%z%z([^%z]+)%z%d+') do
    local turn = limits.share(old, key) ~= limits.share(new, key) and call('HGET', queue.prefix .. 'turns', key)
    if turn then plan(queue, 'hash', 'turns', key, sub(turn, 1, 7) .. '\0\0') end
  end
end

-- Return the first job without a key: its priority, run_at, and member in a line; nil if none waits.
local function first_without_key(queue)
  local priorities = call('HKEYS', queue.keys.priorities)
  table.sort(priorities, function(a, b) return tonumber(a) > tonumber(b) end)
  for _, priority in ipairs(priorities) do
    local list, found = read_list(queue, priority, 1), call('ZRANGE', queue.prefix .. 'line:' .. priority, 0, 0, 'WITHSCORES')
    local member, run_at = found[1], tonumber(found[2])
    if list.ids[1] then
      local seq, at = place_in_line(list.records[1])
      local listed = pack('>I8', seq) .. list.ids[1]
      if not member or at < run_at or (at == run_at and listed < member) then member, run_at = listed, at end
    end
    if member then return {key = '', priority = tonumber(priority), run_at = run_at, member = member} end
  end
end

-- Plan the heads of all keys anew, and in a queue that becomes fair their turns, in the order of their first jobs.
local function change_fair(queue, fair)
  local priorities, keys, firsts = call('HKEYS', queue.prefix .. 'key_priorities'), {}, {}
  local function add_keys(names, from)
    for _, name in ipairs(names) do keys[sub(name, from)] = true end
  end
  for _, priority in ipairs(priorities) do
    local heads = call('ZRANGE', queue.prefix .. 'heads:' .. priority, 0, -1)
    for _, member in ipairs(heads) do plan(queue, 'zset', 'heads:' .. priority, member, false) end
    add_keys(heads, 9)
  end
  for _, name in ipairs({'opening', 'reopening'}) do add_keys(call('ZRANGE', queue.prefix .. name, 0, -1), 1) end
  add_keys(call('HKEYS', queue.prefix .. 'turns'), 1)
  keys[''] = nil
  for key in pairs(keys) do
    local first = {key = key, heads = {}}
    local closed = call('ZSCORE', queue.prefix .. 'opening', key) or call('ZSCORE', queue.prefix .. 'reopening', key)
    for _, priority in ipairs(priorities) do
      local found = first_of_line(queue, priority, key)
      if found and not closed then first.heads[priority] = found end
      if found and (not first.priority or tonumber(priority) > first.priority) then
        first.priority, first.run_at, first.member = tonumber(priority), tonumber(found[2]), found[1]
      end
    end
    if first.priority then firsts[#firsts + 1] = first end
  end
  firsts[#firsts + 1] = fair and first_without_key(queue) or nil
  table.sort(firsts, function(a, b)
    if a.priority ~= b.priority then return a.priority > b.priority end
    if a.run_at ~= b.run_at then return a.run_at < b.run_at end
    return a.member < b.member
  end)
  for _, first in ipairs(firsts) do
    local place = fair and next_number(queue)
    if fair then plan(queue, 'hash', 'turns', first.key, pack('>I7I2', place, 0)) end
    for priority, found in pairs(first.heads or {}) do
      if not fair then
        plan_head(queue, priority, first.key, found, true)
      elseif tonumber(found[2]) <= queue.now then
        plan(queue, 'zset', 'heads:' .. priority, NO_SEQ .. first.key, decimal(place))
      end
    end
  end
end

local queue, names = open_queue(KEYS[1], ARGV[1]), {setting_names()}
local before = call('HMGET', queue.prefix .. 'meta', setting_names())
local after, others, paused, changed = {}, false, nil, {}
for i, name in ipairs(names) do after[i] = before[i] end
for i = 2, #ARGV, 2 do
  for n, name in ipairs(names) do
    if name == ARGV[i] then after[n] = ARGV[i + 1] end
  end
  if ARGV[i] == 'shares' then
    local count
    after[#names], count = merged_shares(before[#names], ARGV[i + 1])
    if count > MOST_SHARES then return count end
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
local closed = (changed.per_key or changed.key_rate or changed.shares) and call('EXISTS', opening) == 1
if closed and call('EXISTS', reopening) == 1 then
  opened, queue = {}, nil
  queue = open_queue(KEYS[1], ARGV[1])
  limits.reopen(queue)
  commit(true)
  return 'again'
end
for _, key in ipairs({opening, reopening, clocks}) do expect_type(key, 'zset') end
if changed.rate then plan(queue, 'hash', 'meta', 'clock', false) end
local fair = after[#names - 1] == '1'
if changed.fair then
  expect_type(queue.prefix .. 'turns', 'hash')
  change_fair(queue, fair)
elseif changed.shares and fair then
  begin_turns(queue, before[#names], after[#names])
end
commit(true)
if changed.fair and not fair then call('UNLINK', queue.prefix .. 'turns') end
if closed then call('RENAME', opening, reopening) end
if changed.key_rate then call('UNLINK', clocks) end
return after
