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
