-- Fast path of a claim: due jobs that all stand at the heads of the lists of their priorities, and were never claimed. It writes records of the form `claimed`, which the general path reads but does not write;
-- tests/storage/redis/lua/test_claim_order.py compares the two paths.

-- @include claimed_record
-- @include claim_order

-- Return the record of an entry that is not stale, if it can be claimed as it is; else nil.
local function claimable_record(entry, text)
  if not text then return nil end
  local flags, _, _, a, b, c, d, e, f, g, h = string.byte(text, 1, 11)
  local s, t, u, v, w, x, y, z = string.byte(entry, 1, 8)
  if flags ~= LISTED or h ~= z or g ~= y or f ~= x or e ~= w or d ~= v or c ~= u or b ~= t or a ~= s then return nil end
  local data_flags = string.byte(text, 20)
  if data_flags == 0 or data_flags and pcall(check_data, text, 20) then return text end
end

-- Append up to `limit` jobs from the head of a list to `ids` and `reply`. Return their number; nil if the general path must
-- claim. `run` is the first part of their records.
local function read_listed(queue, priority, limit, run, ids, reply)
  local entries, before = call('LRANGE', queue.prefix .. 'due:' .. priority, 0, limit - 1), #ids
  local count, at = #entries, 2 * before
  if count == 0 then return 0 end
  for i = 1, count do ids[before + i] = sub(entries[i], 9) end
  local records = call('HMGET', queue.prefix .. 'waiting', unpack(ids, before + 1, before + count))
  for i = 1, count do
    local text = claimable_record(entries[i], records[i])
    if not text then return nil end
    reply[at + 1], reply[at + 2], at = ids[before + i], run .. text, at + 2
  end
  queue.proven.waiting, queue.proven['due:' .. priority] = true, true
  return count
end

-- Claim up to `limit` jobs with one fence for all, after next_due. Return id, record, id, record, ...; nil, without a
-- change, if the general path must claim.
local function claim_listed(queue, lease, holder, limit)
  local priorities = queue.listed_priorities
  if not priorities or queue.keyed or queue.log_level == 'all' or limit < 1 then return nil end
  if #priorities > 1 then table.sort(priorities, function(a, b) return tonumber(a) > tonumber(b) end) end
  local run = pack('>BI8I8', CLAIMED, next_number(queue), queue.now) .. lease .. sized(holder)
  local ids, reply, counts = {}, {}, {}
  for _, priority in ipairs(priorities) do
    if #ids >= limit then break end
    local count = read_listed(queue, priority, limit - #ids, run, ids, reply)
    if not count then return nil end
    if count > 0 then counts[priority] = count end
  end
  if #ids == 0 then return reply end
  plan_many(queue, 'hash', 'waiting', true, ids)
  plan_many(queue, 'hash', 'active', false, reply)
  plan_many(queue, 'set', 'held:' .. lease, false, ids)
  queue.list_trims = counts
  for priority, count in pairs(counts) do queue.listed_counts[priority] = -count end
  return reply
end
