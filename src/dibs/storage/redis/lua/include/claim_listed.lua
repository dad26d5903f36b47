-- Fast path of a claim: due jobs that all stand at the heads of the lists of their priorities, and were never claimed. It writes records of the form `claimed`, which the general path reads but does not write;
-- tests/storage/redis/lua/test_claim_order.py compares the two paths.

-- @include job_record
-- @include claim_order

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
  local run = claimed_run(next_number(queue), queue.now, lease, holder)
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
