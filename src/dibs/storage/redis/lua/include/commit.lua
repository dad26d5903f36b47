-- The end of each step (one verb on one queue): check the Redis type of every key in the plan, then write the plan.

-- @include claim_order
-- @include event_log
-- @include groups
-- @include output

local function check_queue(queue)
  if queue.plan ~= EMPTY then
    for name, planned in pairs(queue.plan) do check_key(queue, name, planned.kind) end
  end
  local batches = queue.batches
  for i = 1, #batches, 4 do check_key(queue, batches[i + 1], batches[i]) end
  if #queue.new_records > 0 then check_key(queue, 'waiting', 'hash') end
  check_order_types(queue)
  if queue.touched then limits.check_types(queue) end
  if queue.kept_counts then check_key(queue, 'ends', 'hash') end
  check_log_type(queue)
  if queue.payloads then find_payload_changes(queue) end
  if queue.stream_writes then check_streams(queue) end
end

-- Return whether a command was sent.
local function write_batches(queue, removes)
  local batches, sent = queue.batches, false
  for i = 1, #batches, 4 do
    if batches[i + 2] == removes then
      send_chunked((removes and REMOVE or ADD)[batches[i]], queue.keys[batches[i + 1]], batches[i + 3])
      sent = sent or #batches[i + 3] > 0
    end
  end
  return sent
end

-- Return whether a command was sent.
local function write_removals(queues)
  local sent = false
  for i = 1, #queues do sent = write_batches(queues[i], true) or sent end
  return sent
end

local function write_new_records(queue)
  if #queue.new_records > 0 then send_chunked('HSET', queue.keys.waiting, queue.new_records) end
end

local function write_planned(queue, commands, arguments_of)
  if queue.plan == EMPTY then return end
  for name, planned in pairs(queue.plan) do
    send_chunked(commands[planned.kind], queue.prefix .. name, arguments_of(planned))
  end
end

-- Remove members first, because that frees memory for the additions.
local function write_plan(queues)
  for i = 1, #queues do
    write_planned(queues[i], REMOVE, removals)
    if queues[i].payloads then remove_payloads(queues[i]) end
  end
  for i = 1, #queues do
    if queues[i].payloads then write_payloads(queues[i]) end
    write_new_records(queues[i])
    write_batches(queues[i], false)
    write_planned(queues[i], ADD, additions)
  end
end

-- Write the changes of the number of outcomes in the short form. Without such outcomes each entry of `ends:AGE` is stale.
local function write_kept_counts(queue)
  if not queue.kept_counts then return end
  for age, count in pairs(queue.kept_counts) do
    if call('HINCRBY', queue.keys.ends, age, small_text(count)) <= 0 then
      call('HDEL', queue.prefix .. 'ends', age)
      call('DEL', queue.prefix .. 'ends:' .. age)
    end
  end
end

-- Release one blocking claim: push one element to the list that its BLPOP waits for. Without a waiting claim the
-- element stays in the list and releases the next one.
local function release_blocking_claim(queue)
  local key = queue.keys.claim_tokens
  if call('EXISTS', key) == 0 then call('RPUSH', key, '') end
end

local function has_waiting(queue)
  return queue.keyed or call('EXISTS', queue.keys.priorities) == 1
end

-- Take the numbers of a step: first that of its entry in the log.
local function take_numbers(queue)
  if #queue.events > 0 then number_log(queue) end
  if queue.work_changed then queue.work = next_number(queue) end
  queue.ended_before = queue.ended
  if #queue.ended_ids > 0 then queue.ended = next_number(queue) end
end

-- Write what a step of one queue adds to its plan. Its state is written first: on a full server, this is the refused write.
local function write_rest(queue)
  write_order(queue)
  if queue.touched then
    limits.write(queue)
    if queue.work_changed and queue.work <= queue.work_before then queue.work = next_number(queue) end
  end
  write_kept_counts(queue)
  if #queue.events > 0 then write_log(queue) end
  if queue.stream_writes then write_streams(queue) end
  if queue.touched or queue.log_trimmed then write_state(queue) end
  if queue.incarnation then
    call('HSET', queue.incarnation.key, 'id', queue.incarnation.id, 'ahead', decimal(queue.ahead))
  end
end

-- Send the messages about a step. PUBLISH by pcall, here and elsewhere: a message is a hint, and the step is written. If an
-- operator takes the right to publish away, an error would tell the caller that nothing has happened.
local function publish(queue)
  if queue.work_changed then redis.pcall('PUBLISH', queue.prefix .. '@database:work', decimal(queue.work)) end
  if queue.work_changed or (queue.limit_reached and has_waiting(queue)) then
    release_blocking_claim(queue)
    local groups = call('HGET', queue.keys.meta, 'groups')
    if groups then release_groups(groups, queue.now, queue.prefix) end
  end
  if #queue.ended_ids > 0 then publish_ended(queue, queue.ended_before) end
  if #queue.events > 0 then redis.pcall('PUBLISH', queue.prefix .. '@database:told', '') end
end

-- Write the plan, and forget the opened queues, so that the script may begin a second step. A Redis at maxmemory
-- refuses a script only at its first write, and only if that write may need memory. With `even_if_full` the first write is
-- a removal of many members, or a DEL of a missing key; otherwise it is an HSET. So a full server accepts settlements,
-- returns and renewals, and it refuses each enqueue as a whole.
local function commit(even_if_full)
  -- One walk of `opened`: each costs 1,700 instructions.
  local queues = {}
  for _, queue in pairs(opened) do
    queues[#queues + 1] = queue
    check_queue(queue)
  end
  if even_if_full and not write_removals(queues) then call('DEL', keys_of(KEYS[1]).nothing) end
  for i = 1, #queues do
    local queue = queues[i]
    queue.work_before = queue.work
    take_numbers(queue)
    write_state(queue)
  end
  if not even_if_full then write_removals(queues) end
  write_plan(queues)
  for i = 1, #queues do
    write_rest(queues[i])
    publish(queues[i])
  end
  opened = {}
end
