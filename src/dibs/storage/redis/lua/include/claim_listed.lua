-- Fast path of a claim: the due jobs of a queue with one priority in use, which all stand at the head of its list and
-- were never claimed. It writes records of the form `claimed`, which the general path reads but does not write;
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

-- Claim up to `limit` jobs with one fence for all, after next_due. Return id, record, id, record, ...; nil, without a change, if the
-- general path must claim.
local function claim_listed(queue, lease, holder, limit)
  if queue.keyed or queue.log_level == 'all' or limit < 1 then return nil end
  local priority = queue.only_listed
  if not priority then return nil end
  local entries, ids = call('LRANGE', queue.prefix .. 'due:' .. priority, 0, limit - 1), {}
  local count, reply, at = #entries, {}, 0
  if count == 0 then return nil end
  for i = 1, count do ids[i] = sub(entries[i], 9) end
  local records = call('HMGET', queue.prefix .. 'waiting', unpack(ids))
  local run = pack('>BI8I8', CLAIMED, next_number(queue), queue.now) .. lease .. sized(holder)
  for i = 1, count do
    local text = claimable_record(entries[i], records[i])
    if not text then return nil end
    reply[at + 1], reply[at + 2], at = ids[i], run .. text, at + 2
  end
  queue.proven.waiting, queue.proven['due:' .. priority] = true, true
  plan_many(queue, 'hash', 'waiting', true, ids)
  plan_many(queue, 'hash', 'active', false, reply)
  plan_many(queue, 'set', 'held:' .. lease, false, ids)
  queue.list_trims = {[priority] = count}
  queue.listed_counts[priority] = -count
  return reply
end
