-- Fast path of an enqueue of one new job that is due now. Of all functions it uses only those of groups, and stands before
-- the others: their definitions, the plan and its checks take three quarters of the time of a single enqueue. It writes
-- the same as storage/redis/lua/include/fast_enqueue.lua and commit.lua; tests/storage/redis/lua/test_single_enqueue.py
-- compares them.
--
-- It leaves a new queue, a queue with the log level `all`, a clock that has stepped back or has a lead, a known id and a
-- damaged record to the general path, and has then written nothing. Each key is read before the first write, so a key of
-- a wrong type fails the script before it has written.

-- @include groups

if #ARGV == 4 and ARGV[1] == '' and ARGV[2] ~= '' then
  local call, meta, waiting, due = redis.call, KEYS[1] .. 'meta', KEYS[1] .. 'waiting', KEYS[1] .. 'due:0'
  local known = call('HMGET', meta, 'now', 'number', 'work', 'lead', 'groups', 'log_level')
  local last_now, last_number, id = tonumber(known[1]), tonumber(known[2]), ARGV[3]
  local time = call('TIME')
  local us = time[1] * 1000000 + time[2]
  local now = math.floor(us / 1000)
  if last_now and last_number and tonumber(known[3]) and now >= last_now and (not known[4] or known[4] == '0')
    and known[6] ~= 'all' and call('HEXISTS', KEYS[1] .. 'active', id) == 0
    and call('LLEN', due) <= 2 * (tonumber(call('HGET', KEYS[1] .. 'priorities', '0') or 0) or 0) + 1000 then
    local number = math.max(last_number + 1, us)
    local seq, work = struct.pack('>I8', number), string.format('%.0f', number + 1)
    local text = struct.pack('>BhI8I8', 32, 0, number, now) .. string.sub(ARGV[2], 14) .. ARGV[4]
    if call('HSETNX', waiting, id, text) == 1 then
      call('RPUSH', due, seq .. id)
      call('HINCRBY', KEYS[1] .. 'priorities', '0', 1)
      call('HSET', meta, 'now', string.format('%.0f', now), 'number', work, 'work', work)
      call('PUBLISH', KEYS[1] .. 'work', work)
      if call('EXISTS', KEYS[1] .. 'parked') == 0 then call('RPUSH', KEYS[1] .. 'parked', '') end
      if known[5] then release_groups(known[5], now, KEYS[1]) end
      return string.format('%.0f', number)
    end
  end
end
