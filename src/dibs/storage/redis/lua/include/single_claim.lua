-- Fast path of a claim of a few jobs that all stand at the head of the only list of due jobs, and were never claimed. It
-- makes no plan. It writes the same as storage/redis/lua/include/claim_listed.lua and commit.lua;
-- tests/storage/redis/lua/test_single_claim.py compares them.
--
-- Any other claim goes to the general path, and nothing is written then: a queue with limits, keys, scheduled jobs or the
-- log level `all`, a clock that has stepped back or has a lead, a new server process, a claim that finds no job, a damaged record. Each key is
-- read before the first write, so a key of a wrong type fails the script before it has written.

-- @include digits
-- @include queue
-- @include groups

-- The most jobs of such a claim. A larger claim gains little.
local MOST_SINGLE = 16

-- Return whether the sections of the data that begins at `at` end within the record (check_data in job_record.lua).
local function has_whole_data(text, at)
  local flags, next_at = string.byte(text, at), at + 1
  if flags == 0 then return true end
  if not flags or flags > 31 then return false end
  for i = 0, 4 do
    if bit.band(flags, 2 ^ i) ~= 0 then
      if next_at + 3 > #text then return false end
      next_at = next_at + 4 + struct.unpack('>I4', text, next_at)
    end
  end
  return next_at <= #text + 1
end

-- Return the reply of claim.lua; nil, without a change, if the general path must claim.
local function claim_few(prefix, lease, limit)
  local call, meta = redis.call, prefix .. 'meta'
  local known = call('HMGET', meta, 'now', 'number', 'work', 'lead', 'keyed', 'groups', 'paused', 'max_active', 'rate',
    'log_level', PROCESS)
  local last_now, last_number, max_active, rate = tonumber(known[1]), tonumber(known[2]), known[8], known[9]
  local ahead = tonumber(known[11])
  if not last_now or not last_number or not ahead or not tonumber(known[3]) or known[4] and known[4] ~= '0' or known[5] == '1'
    or known[7] == '1' or max_active and max_active ~= '' or rate and rate ~= '' or known[10] == 'all' then return nil end
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local now, record = math.floor(us / 1000), call('HGET', prefix .. 'leases', lease)
  if now < last_now or not record or #record < 9 then return nil end
  local expires_at, dropped = struct.unpack('>I8B', record)
  local priorities = call('HKEYS', prefix .. 'priorities')
  if dropped ~= 0 or now >= expires_at or #priorities ~= 1 then return nil end
  local priority, waiting, active, held = priorities[1], prefix .. 'waiting', prefix .. 'active', prefix .. 'held:' .. lease
  local due = prefix .. 'due:' .. priority
  local entries = call('LRANGE', due, 0, limit - 1)
  if #entries == 0 or call('ZCARD', prefix .. 'line:' .. priority) > 0 then return nil end
  local ids = {}
  for i, entry in ipairs(entries) do ids[i] = string.sub(entry, 9) end
  local number, records = math.max(last_number + 1, us + ahead), call('HMGET', waiting, unpack(ids))
  local run = struct.pack('>BI8I8', 34, number, now) .. lease .. struct.pack('>I4', #record - 9) .. string.sub(record, 10)
  local taken = {}
  for i, text in ipairs(records) do
    if not text or string.byte(text) ~= 32 or string.sub(text, 4, 11) ~= string.sub(entries[i], 1, 8)
      or not has_whole_data(text, 20) then return nil end
    taken[2 * i - 1], taken[2 * i] = ids[i], run .. text
  end
  call('HLEN', active)
  call('SCARD', held)
  -- As in `commit`: a full server accepts the writes after a DEL.
  call('DEL', prefix .. 'nothing')
  call('HDEL', waiting, unpack(ids))
  call('HSET', active, unpack(taken))
  call('SADD', held, unpack(ids))
  call('LTRIM', due, #ids, -1)
  local left = call('HINCRBY', prefix .. 'priorities', priority, -#ids)
  if left <= 0 then
    call('DEL', due)
    call('HDEL', prefix .. 'priorities', priority)
  end
  local now_text = string.format('%s%03d', time[1], now % 1000)
  call('HSET', meta, 'now', now_text, 'number', digits(number))
  if left > 0 and #ids == limit then
    if call('EXISTS', prefix .. 'claim_tokens') == 0 then call('RPUSH', prefix .. 'claim_tokens', '') end
    if known[6] then
      release_groups(known[6], now, prefix)
    end
  end
  return {'claimed', now_text, '', known[3], taken}
end
