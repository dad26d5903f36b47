-- The expired outcomes in the short form (storage/redis/lua/include/short_outcomes.lua), in the order of their ends.

-- @include expand_outcome

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
