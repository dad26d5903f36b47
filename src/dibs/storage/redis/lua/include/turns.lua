-- The turns of keys in a queue with `fair` (docs/explanation/contract.md, Turns of keys). '' stands for the jobs without a key.
--
-- turns    the keys with waiting jobs: I7 place, I2 starts since the turn began. A place is a number; the lowest is first
-- heads:P  has in such a queue the place of each key as score, and the member I8 0 and the key. It has only keys whose first
--          job is due; a claim adds the others when the time of an id in `later` has come (`bring_due`)

-- @include key_lines

-- Return the number of starts in a turn of a key. The setting is 0 0 key 0 share, 0 0 key 0 share, ...: no key has a NUL.
function limits.share(queue, key)
  if not queue.shares then return 1 end
  local _, at = string.find(queue.shares, '\0\0' .. key .. '\0', 1, true)
  return at and tonumber(string.match(queue.shares, '^%d+', at + 1)) or 1
end

-- Return the functions for the turns of a fair queue. Why inside of a function that uses `limits` and globals: a step of another
-- queue then creates this one alone, and Redis 6.2 searches each outer local of a function when it creates the function.
function limits.turns(queue)
  if queue.turns then return queue.turns end
  local turns = {}
  queue.turns = turns
  -- The key whose job this step removed last, and the id of that job.
  local left, left_id

  -- Return the turn of a key: its `place`, false if no job of it waits, and `starts`.
  local function turn_of(key)
    local touched = limits.touch(queue, key)
    if not touched.turn then
      local text = redis.call('HGET', queue.prefix .. 'turns', key)
      touched.turn = {place = false, starts = 0, change = 0}
      if text then touched.turn.place, touched.turn.starts = struct.unpack('>I7I2', text) end
      touched.turn.old_place, touched.turn.old_starts = touched.turn.place, touched.turn.starts
    end
    return touched.turn
  end

  -- Return the number of waiting jobs of a key before this step.
  local function count_waiting(key)
    local priorities, count = queue.prefix .. 'key_priorities', 0
    if key == '' then
      count = redis.call('HLEN', queue.prefix .. 'waiting')
      for _, keyed in ipairs(redis.call('HVALS', priorities)) do count = count - tonumber(keyed) end
    else
      for _, priority in ipairs(redis.call('HKEYS', priorities)) do
        count = count + redis.call('ZCARD', queue.prefix .. 'line:' .. priority .. ':' .. key)
      end
    end
    return count
  end

  local function is_waiting(key)
    local turn = turn_of(key)
    turn.waiting = turn.waiting or count_waiting(key)
    return turn.waiting + turn.change > 0
  end

  -- Take a key that lost its last waiting job out of the ring. Why later: the next change may bring that job back to the key.
  -- `commit` calls it before the first write, because it counts.
  function turns.finish_leave()
    if left and not is_waiting(left) then turn_of(left).place = false end
    left = nil
  end

  -- Note a job that begins to wait.
  function turns.enter(key, id)
    if left == key and left_id == id then left = nil end
    turns.finish_leave()
    local turn = turn_of(key)
    turn.change = turn.change + 1
    if not turn.place then turn.place, turn.starts = limits.next_number(queue), 0 end
  end

  -- Note a waiting job that is removed.
  function turns.leave(key, id)
    turns.finish_leave()
    local turn = turn_of(key)
    turn.change, left, left_id = turn.change - 1, key, id
  end

  -- Note a waiting job that a claim starts. `more` is true if another job of the key certainly waits.
  function turns.start(key, more)
    local turn = turn_of(key)
    turn.change = turn.change - 1
    if not more and not is_waiting(key) then
      turn.place = false
    elseif turn.starts + 1 >= (key == '' and 1 or limits.share(queue, key)) then
      turn.place, turn.starts = limits.next_number(queue), 0
    else
      turn.starts = turn.starts + 1
    end
  end

  -- Return the place of a key, false if it has none.
  function turns.place(key)
    return turn_of(key).place
  end

  -- Plan the heads of a key. Return whether one of its lines has jobs.
  function turns.plan_heads(key, closed)
    local waits, place = false, turn_of(key).place
    for priority in pairs(limits.key_priorities(queue)) do
      local first = limits.first_of_line(queue, priority, key)
      waits = waits or first ~= nil
      local is_due = first and not closed and tonumber(first[2]) <= queue.now
      limits.plan(queue, 'zset', 'heads:' .. priority, string.rep('\0', 8) .. key, is_due and string.format('%.0f', place) or false)
    end
    return waits
  end

  -- Touch the keys of jobs that have fallen due, so that `commit` finds their places. Return their number, and whether more are
  -- left.
  function turns.bring_due(parse_job, key_of)
    local ids = redis.call('ZRANGEBYSCORE', queue.prefix .. 'later', '-inf', string.format('%.0f', queue.now), 'LIMIT', 0, 500)
    for _, id in ipairs(ids) do
      local job = parse_job(id, redis.call('HGET', queue.prefix .. 'waiting', id))
      limits.touch(queue, key_of(job.data), job.priority)
      limits.plan(queue, 'zset', 'later', id, false)
    end
    return #ids, #ids == 500
  end

  -- Plan the turns that this step has changed.
  function turns.plan()
    for key, touched in pairs(queue.touched) do
      local turn = touched.turn
      if turn and (turn.place ~= turn.old_place or turn.starts ~= turn.old_starts) then
        limits.plan(queue, 'hash', 'turns', key, turn.place and struct.pack('>I7I2', turn.place, turn.starts))
      end
    end
  end

  return turns
end
