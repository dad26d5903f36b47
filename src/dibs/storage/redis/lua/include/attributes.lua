-- Attributes of a job as one string: I4 + name, I4 + value for each attribute.
--
-- Python packs the same string in storage/redis/codec/data.py (encode_attributes). No script reads the values.

-- @include job_record

local function each(attributes, visit)
  local at = 1
  while at <= #attributes do
    local name, value
    name, at = read_sized(attributes, at)
    value, at = read_sized(attributes, at)
    visit(name, value)
  end
end

-- Return the attributes of `old` and `new` together; a name in both gets the value of `new`.
local function merge(old, new)
  local newer, parts = {}, {new}
  each(new, function(name) newer[name] = true end)
  each(old, function(name, value)
    if not newer[name] then parts[#parts + 1] = sized(name) .. sized(value) end
  end)
  return table.concat(parts)
end

-- Return the number of bytes of all names and values, without the size fields; a limit applies to it.
local function size_of(attributes)
  local size = 0
  each(attributes, function(name, value) size = size + #name + #value end)
  return size
end
