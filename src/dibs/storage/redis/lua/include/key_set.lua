-- Key sets: the request keys of one writer, packed by batch, in the hash `keys`. No request key contains NUL. The ordered set
-- `batch_ends` has their expiry.
--
-- NAME\0N  a batch: I8 expires_at, I4 number of requests, their keys (16 bytes each), and a byte for each status, or none
--           if each is `queued`
-- NAME\0   I8 expires_at, I8 number of the last batch. It expires after all batches.

-- @include queue

local MEMBER_BYTES = 16

-- Return the field of a batch of a key set, of the number of the last batch for number ''.
local function batch_field(name, number)
  return name .. '\0' .. number
end

-- Return a field of a key set, nil if it does not exist or has expired. `least` is the smallest size of a good one.
local function read_batch_field(queue, field, least)
  local text = read_field(queue, 'keys', field)
  if not text then return nil end
  if #text < least then damaged('request_key', field) end
  return struct.unpack('>I8', text) > queue.now and text or nil
end

-- Return the number of the last batch of a key set, and the time until which the number is kept; 0 and 0 if the set does not
-- exist.
local function last_batch(queue, name)
  local text = read_batch_field(queue, batch_field(name, ''), 16)
  if not text then return 0, 0 end
  local expires_at, number = struct.unpack('>I8I8', text)
  return number, expires_at
end
