-- Attributes as one string: I4 + name, I4 + value, again and again. Values are opaque.

-- @include record

local function each(attributes, visit)
  local at = 1
  while at <= #attributes do
    local name, value
    name, at = section(attributes, at)
    value, at = section(attributes, at)
    visit(name, value)
  end
end

-- Both, where both name one with the newer value.
local function merge(old, new)
  local newer, words = {}, {new}
  each(new, function(name) newer[name] = true end)
  each(old, function(name, value)
    if not newer[name] then words[#words + 1] = with_size(name) .. with_size(value) end
  end)
  return table.concat(words)
end

local function size_of(attributes)
  local size = 0
  each(attributes, function(name, value) size = size + #name + #value end)
  return size
end
