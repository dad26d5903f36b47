-- Outcomes of plain completed jobs in a short form, and the index of their ends.
--
-- kept      B flags, I3 class, I7 fence, B lead of the fence, I3 duration, h priority if its flag is set, the last 7
--           bytes of seq, I8 run_at, I8 enqueued_at if its flag is set (else it is run_at), I4 + result if its flag is set
-- flags     16 priority, 32 result, 64 enqueued_at; the two lowest bits are 0, unlike those of any other outcome
-- lead      ms by which the fence, without the ms that its class has as `ahead`, is later than claimed_at
-- duration  ms from claimed_at to ended_at
-- class     a number for an age in ms ('*' for ever), a holder, and ms by which the numbers were ahead of the time: the
--           hash `classes` has 'age,holder' or 'age+ahead,holder' by number, and the number by this text; its field '#' has the last number. The ordered set `class_ends` has the numbers by
--           the expiry of their last outcome
--
-- A record of 30 bytes or less needs an allocation of 32. No ordered set has the ids of these outcomes: the list
-- `ends:AGE` has an entry for each step, I6 ended_at and the ids, separated by NUL. The outcomes of one age expire in the
-- order of its list. An entry is stale for an id whose outcome was replaced or removed meanwhile. The hash `ends` has the
-- number of outcomes in this form, by age.

-- @include queue

local KEEPS_PRIORITY, KEEPS_RESULT, KEEPS_TIME, NO_PRIORITY = 16, 32, 64, '\0\0'

local function is_kept(text)
  local flags = string.byte(text)
  return flags and band(flags, 3) == 0
end

-- Return 'age,holder' of the class of an outcome.
local function class_text(queue, class)
  return read_field(queue, 'classes', decimal(class))
end

-- Return an outcome for a reader outside of the scripts: one in the short form follows NUL and I4 + 'age,holder'.
-- storage/redis/codec/slots.py reads it.
local function outcome_reply(queue, id, text)
  if not text or not is_kept(text) then return text end
  local class = #text > 4 and class_text(queue, (unpack_from('>I3', text, 2)))
  return class and '\0' .. sized(class) .. text or damaged('outcome', id)
end

local function count_kept(queue, age, count)
  queue.kept_counts = queue.kept_counts or {}
  queue.kept_counts[age] = (queue.kept_counts[age] or 0) + count
end

local COMPLETED_FLAG, KEPT_FOR_EVER, NO_LEASE = 1, 4, string.rep('\0', 32)

-- Return fence, claimed_at and ended_at of an outcome in the short form, and the age and the holder of its class, as texts.
local function read_kept(queue, text)
  local _, class, fence, lead, duration = unpack_from('>BI3I7BI3', text)
  local age, ahead, holder = string.match(class_text(queue, class) or error('no class'), '^([%d*]*)%+?(%d*),(.*)$')
  local claimed_at = math.floor(fence / 1000) - lead - (tonumber(ahead) or 0)
  return fence, claimed_at, claimed_at + duration, age, holder
end

local function expand_kept(queue, text)
  local fence, claimed_at, ended_at, age, holder = read_kept(queue, text)
  local flags, priority, at, for_ever = string.byte(text), NO_PRIORITY, 16, age == '*'
  if band(flags, KEEPS_PRIORITY) ~= 0 then priority, at = sub(text, 16, 17), 18 end
  local result_at = at + (band(flags, KEEPS_TIME) ~= 0 and 23 or 15)
  if #text < result_at - 1 then error('no outcome') end
  return pack('>BI8I8', COMPLETED_FLAG + (for_ever and KEPT_FOR_EVER or 0) + band(flags, KEEPS_RESULT), ended_at,
      for_ever and 0 or ended_at + tonumber(age))
    .. first_run_head(priority, '\0' .. sub(text, at, result_at - 1), pack('>I8I8', fence, claimed_at) .. NO_LEASE .. sized(holder))
    .. sub(text, result_at)
end

-- Return an outcome in the general form (storage/redis/lua/include/outcomes.lua).
local function expand_outcome(queue, id, text)
  if not text or text == '' or not is_kept(text) then return text end
  local ok, expanded = pcall(expand_kept, queue, text)
  reading.prefix = queue.prefix
  return ok and expanded or damaged('outcome', id)
end

-- Subtract an outcome that this step removes or replaces from the count of its age.
local function uncount_kept(queue, id, text)
  local ok, age = pcall(function() return (select(4, read_kept(queue, text))) end)
  if ok then count_kept(queue, age, -1) end
end

-- Return whether an outcome in the short form has expired. An unreadable outcome counts as expired, so that `prune`
-- removes it.
local function has_kept_expired(queue, text)
  local ok, expires_at = pcall(function()
    local _, _, ended_at, age = read_kept(queue, text)
    return age == '*' and math.huge or ended_at + tonumber(age)
  end)
  return not ok or expires_at <= queue.now
end

-- Read the ids with an expired outcome in the short form, in the order of their ends. Call visit(id, text) for each, and
-- stop after `most` of them, or after `most_read` ids. Return the number of ids that were visited, whether ids may be
-- left, and a list of {age, number of entries that were read completely, rest of the next entry or nil}.
local function each_expired_kept(queue, most, most_read, visit)
  local visited, read, passed = 0, 0, {}
  for _, age in ipairs(call('HKEYS', queue.prefix .. 'ends')) do
    local entries, rest = 0, nil
    while age ~= '*' do
      local entry = call('LINDEX', queue.prefix .. 'ends:' .. age, entries)
      if not entry or #entry > 6 and unpack_from('>I6', entry) + tonumber(age) > queue.now then break end
      local ids, at = {}, 7
      for id in string.gmatch(sub(entry, 7), '[^%z]+') do ids[#ids + 1] = id end
      prefetch(queue, 'outcomes', ids)
      for _, id in ipairs(ids) do
        if visited >= most or read >= most_read then
          rest = sub(entry, 1, 6) .. sub(entry, at)
          break
        end
        local text = read_field(queue, 'outcomes', id)
        if text and is_kept(text) and has_kept_expired(queue, text) then visited = visited + 1; visit(id, text) end
        at, read = at + #id + 1, read + 1
      end
      if rest then break end
      entries = entries + 1
    end
    passed[#passed + 1] = {age, entries, rest}
    if rest then return visited, true, passed end
  end
  return visited, false, passed
end
