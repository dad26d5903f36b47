-- Fast path of a plain completion of one job, alone or followed by a claim in a queue without waiting jobs, as after each
-- job of an idle queue. It makes no plan. It writes the same as storage/redis/lua/include/complete_claimed.lua, outcomes.lua and
-- commit.lua; tests/storage/redis/lua/test_single_settle.py compares them.
--
-- Any other step goes to the general path, and nothing is written then: a job that was claimed before or has a key, a
-- successor or an earlier outcome, an outcome that keeps data, the first outcome of its class, waiting jobs, limits, a full
-- log, a lease that has ended, a clock that has stepped back or has a lead, a new server process, a damaged record. Each key is read before the
-- first write, so a key of a wrong type fails the script before it has written.

-- @include digits
-- @include queue
-- @include defaults

-- Return the age of a completed outcome as text ('*' for ever, '0' for none) and whether the job itself sets a part of its
-- retention; nil if the outcome keeps data or attributes, or the general path must decide. The data begins at `at`.
local function completed_retention(text, at, of_queue)
  local flags, own = string.byte(text, at), ',,,'
  if not flags or flags > 15 or bit.band(flags, 1) ~= 0 then return nil end
  if bit.band(flags, 4) ~= 0 then
    local from = at + 1
    if bit.band(flags, 2) ~= 0 then
      if from + 3 > #text then return nil end
      from = from + 4 + struct.unpack('>I4', text, from)
    end
    if from + 3 > #text then return nil end
    local size = struct.unpack('>I4', text, from)
    if from + 3 + size > #text then return nil end
    own = string.sub(text, from + 4, from + 3 + size)
  end
  local own_age, own_keep = '', ''
  if own ~= ',,,' then own_age, own_keep = string.match(own, '^([%d*]*),[%d*]*,[%d*]*,([%a-]*)$') end
  local age, keep = string.match(of_queue, '^([%d*]*),[%d*]*,[%d*]*,([%a-]*)$')
  if not own_age or not age then return nil end
  if own_age ~= '' then age = own_age elseif age == '' then age = string.match(DEFAULT_RETENTION, '^%d+') end
  if string.find(own_keep ~= '' and own_keep or keep, 'c', 1, true) then return nil end
  return age, bit.band(flags, 4) ~= 0
end

-- Return a completion's fence and its result (I4 and the bytes; nil for none); nil for another settlement.
local function plain_completion(settlement)
  local kind, has = string.byte(settlement, 9, 10)
  if kind ~= 1 or (has ~= 0 and has ~= 16) or string.sub(settlement, 19, 20) ~= '\0\0' then return nil end
  return string.sub(settlement, 1, 8), has == 16 and string.sub(settlement, 21) or nil
end

-- Return whether a claim under this lease finds no job now, and no job later unless the queue changes.
local function finds_nothing(prefix, lease, now)
  local record = redis.call('HGET', prefix .. 'leases', lease)
  if not record or #record < 9 or redis.call('EXISTS', prefix .. 'priorities') == 1 then return false end
  local expires_at, dropped = struct.unpack('>I8B', record)
  return dropped == 0 and now < expires_at
end

-- Return the replies of settle.lua and, with a lease, of claim.lua; nil, without a change, if the general path must settle.
-- Long, because all reads and checks stand before the first write.
local function complete_one(prefix, lease, id, settlement)
  local call, pack, sub = redis.call, struct.pack, string.sub
  local fence, result = plain_completion(settlement)
  local text = fence and call('HGET', prefix .. 'active', id)
  if not text or #text < 54 or string.byte(text) ~= 34 or sub(text, 2, 9) ~= fence then return nil end
  local at = 54 + struct.unpack('>I4', text, 50)
  if string.byte(text, at) ~= 32 or #text < at + 19 then return nil end
  local known = call('HMGET', prefix .. 'meta', 'now', 'number', 'work', 'ended', 'log_size', 'lead', 'keyed',
    'max_active', 'rate', 'retention', 'log_level', 'log_bytes', 'log_results',
    PROCESS, 'secret')
  local last_now, last_number, ended, log_size = tonumber(known[1]), tonumber(known[2]), tonumber(known[4]), tonumber(known[5])
  local max_active, rate, log_results = known[8], known[9], known[13]
  local ahead = tonumber(known[14])
  if not last_now or not last_number or not ahead or not tonumber(known[3]) or not ended or not log_size
    or known[6] and known[6] ~= '0' or known[7] == '1' or max_active and max_active ~= '' or rate and rate ~= ''
    or log_results and log_results ~= '0' then return nil end
  local age, is_own = completed_retention(text, at + 19, known[10] or ',,,')
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local now = math.floor(us / 1000)
  if not age or now < last_now or call('HEXISTS', prefix .. 'successors', id) == 1
    or call('HEXISTS', prefix .. 'outcomes', id) == 1 or call('EXISTS', prefix .. 'dropped') == 1
    or lease and not finds_nothing(prefix, lease, now) then return nil end
  local held, priority, head = prefix .. 'held:' .. sub(text, 18, 49), sub(text, at + 1, at + 2), sub(text, at + 4, at + 18)
  local holder, age_ms = sub(text, 54, at - 1), tonumber(age)
  call('SCARD', held)

  -- The outcome, what a message about it has, and its class in the short form.
  local outcome, message, class = nil, '', nil
  if is_own and age ~= '0' then
    local seq, run_at = sub(text, at + 3, at + 10), sub(text, at + 11, at + 18)
    call('ZCARD', prefix .. 'completed')
    outcome = pack('>BI8I8', 1 + (age_ms and 0 or 4) + (result and 32 or 0), now, age_ms and now + age_ms or 0)
      .. '\3' .. priority .. seq .. run_at .. run_at .. seq .. seq .. pack('>I4I4I4I4I4', 1, 1, 0, 0, 0) .. sub(text, 2, at - 1)
      .. (result or '')
    message = outcome
  elseif age ~= '0' then
    local ahead_ms, fence_number, claimed_at = ahead / 1000, struct.unpack('>I8I8', text, 2)
    local name = (ahead_ms == 0 and age or age .. '+' .. ahead_ms) .. ',' .. holder
    local lead, duration = math.floor(fence_number / 1000) - claimed_at - ahead_ms, now - claimed_at
    class = tonumber(call('HGET', prefix .. 'classes', name) or nil)
    if not class or class >= 2 ^ 24 or lead < 0 or lead > 255 or duration < 0 or duration >= 2 ^ 24 then return nil end
    call('ZCARD', prefix .. 'class_ends')
    call('HLEN', prefix .. 'ends')
    call('LLEN', prefix .. 'ends:' .. age)
    local has_priority = priority ~= '\0\0'
    outcome = pack('>BI3', (has_priority and 16 or 0) + (result and 32 or 0), class) .. sub(text, 3, 9)
      .. pack('>BI3', lead, duration) .. (has_priority and priority or '') .. head .. (result or '')
    message = '\0' .. pack('>I4', #name) .. name .. outcome
  end
  local number, event = math.max(last_number + 1, us + ahead), nil
  if known[11] ~= 'off' then
    event = pack('>I8I4BBI2I4', now, 1, 129, 0, 1, #id) .. id .. sub(text, 2, 17) .. priority .. sub(text, 50, at - 1) .. head
    log_size = log_size + #event
    if log_size > tonumber(known[12] or DEFAULT_LOG_BYTES) then return nil end
    call('XLEN', prefix .. 'log')
  end

  -- As in `commit`: a full server accepts the writes after a DEL.
  call('DEL', prefix .. 'nothing')
  call('HDEL', prefix .. 'active', id)
  call('SREM', held, id)
  if outcome then call('HSET', prefix .. 'outcomes', id, outcome) end
  if class then
    call('ZADD', prefix .. 'class_ends', age_ms and string.format('%.0f', now + age_ms) or '+inf', class)
    call('HINCRBY', prefix .. 'ends', age, 1)
    if age_ms then call('RPUSH', prefix .. 'ends:' .. age, pack('>I6', now) .. id) end
  elseif outcome then
    call('ZADD', prefix .. 'completed', age_ms and string.format('%.0f', now + age_ms) or '+inf', id)
  end
  if event then
    call('XADD', prefix .. 'log', digits(number) .. '-0', 'e', event)
    number = number + 1
  end
  local now_text, last = string.format('%s%03d', time[1], now % 1000), digits(number)
  call('HSET', prefix .. 'meta', 'now', now_text, 'number', last, 'ended', last, 'log_size', string.format('%.0f', log_size))
  message = pack('>I8I8I4', ended, number, #id) .. id .. pack('>I4', #message <= 1024 and #message or 0)
    .. (#message <= 1024 and message or '')
  local channel, secret = prefix .. '@database:ended', known[15] or ''
  redis.pcall('PUBLISH', channel, redis.sha1hex(secret .. channel .. message .. secret) .. message)
  if event then redis.pcall('PUBLISH', prefix .. '@database:told', '') end
  return pack('>BI8', 1, 0), {'claimed', now_text, '', known[3], {}}
end
