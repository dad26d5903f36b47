-- The end of every step that writes: check the kind of every key in the plan, then write.

-- @include line
-- @include log

local function check_plan()
  for _, queue in pairs(opened) do
    for name, planned in pairs(queue.plan) do expect(queue.base .. name, planned.kind) end
    if #queue.fresh > 0 then expect(queue.base .. 'waiting', 'hash') end
    check_lines(queue)
    check_log(queue)
  end
end

-- First what frees memory, so that there is room for the rest.
local function write_plan()
  for _, queue in pairs(opened) do
    for name, planned in pairs(queue.plan) do send(REMOVE[planned.kind], queue.base .. name, removals(planned)) end
  end
  for _, queue in pairs(opened) do
    send('HSET', queue.base .. 'waiting', queue.fresh)
    for name, planned in pairs(queue.plan) do send(ADD[planned.kind], queue.base .. name, additions(planned)) end
  end
end

-- Let one parked claim go on, or the next that comes: a token lies there until one takes it.
local function let_one_go(queue)
  local key = queue.base .. 'parked'
  if call('EXISTS', key) == 0 then call('RPUSH', key, '') end
end

local function write_meta(queue)
  if queue.worked then queue.work = draw(queue) end
  local ended = queue.ended
  if #queue.ends > 0 then queue.ended = draw(queue) end
  call('HSET', queue.base .. 'meta', 'now', decimal(queue.now), 'number', decimal(queue.number),
    'work', decimal(queue.work), 'ended', decimal(queue.ended),
    'log_size', decimal(queue.log_size), 'trimmed', decimal(queue.trimmed))
  if queue.worked then call('PUBLISH', queue.base .. 'work', decimal(queue.work)) end
  if queue.worked or (queue.full and call('EXISTS', queue.base .. 'priorities') == 1) then let_one_go(queue) end
  if #queue.ends > 0 then tell_ends(queue, ended) end
  if queue.logged then call('PUBLISH', queue.base .. 'told', '') end
end

-- Write the plan; all queues are closed, so that a second step may follow. At maxmemory Redis refuses the
-- first write of a script that may need memory, and none after that: so with `even_if_full`, ends, returns
-- and renewals are taken, while enqueues are refused whole.
local function commit(even_if_full)
  check_plan()
  if even_if_full then call('DEL', KEYS[1] .. 'nothing') end
  write_plan()
  for _, queue in pairs(opened) do
    write_lines(queue)
    write_log(queue)
    write_meta(queue)
  end
  opened = {}
end
