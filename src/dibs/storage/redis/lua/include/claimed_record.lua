-- Checks of records on the fast paths of claim and settle, which parse no record.

-- @include job_record

-- Positions (1 is the first byte) of the size of the holder, and of the holder, in the form `claimed`.
local HOLDER_SIZE, HOLDER = 50, 54

-- Return the position of the waiting record in a record of the form `claimed`; nil for another record.
local function waiting_record_at(text)
  if string.byte(text) ~= CLAIMED or #text < HOLDER then return nil end
  local at = HOLDER + unpack_from('>I4', text, HOLDER_SIZE)
  return string.byte(text, at) == LISTED and #text >= at + 19 and at or nil
end

-- Raise an error unless data (storage/redis/lua/include/job_record.lua) begins at `at`.
local function check_data(text, at)
  local flags = string.byte(text, at)
  if not flags or flags > 31 then error('no data') end
  at = at + 1
  for i = 0, 4 do
    if band(flags, 2 ^ i) ~= 0 then at = select(2, read_sized(text, at)) end
  end
end
