-- Conversion of outcomes in the short form (storage/redis/lua/include/short_outcomes.lua) to the general form.

-- @include short_outcomes

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
