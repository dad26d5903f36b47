-- One queue within one step: its settings, its clock, and the plan of its writes.
--
-- Redis keeps the writes of a script that fails half-way, so a script first reads and plans, and writes only in
-- `commit` at its end. The plan has one entry per key and member (false removes the member), so a batch needs few
-- commands. `new_records` is a list of id, record, id, record, ...; commit writes it to `waiting` before the plan.
--
-- The hash `meta` has the state of the queue:
--
-- time      I8 now, I8 lead: the highest time of the queue, and the ms by which it is ahead of the server's clock
-- numbers   I7 number, work, ended, log_size, trimmed, I4 retrying, B keyed, B configured, then c13 PROCESS, I7 ahead for the
--           latest process with functions, and for that with scripts. `keyed` is 1 while jobs with a key wait, 2 after
--           that, and 0 in a queue that never had one. `configured` is 1 if a setting has another value than its default,
--           2 more after the first output of a run, and 4 more
--           after the first large payload
-- secret, groups, reported, clock, and a field for each setting
--
-- Why two packed fields: a step reads and writes all of these numbers, and each field of its own takes 3,000 instructions
-- of the server to read, and each number as text 5,000 to write, of 250,000 in all.

-- @include job_record

local call = redis.call

-- The values of the settings that are not set; the age of outcomes as in storage/redis/codec/data.py. Ms, bytes and ms.
local DEFAULT_RETENTION = '3600000,604800000,3600000,f'
local DEFAULT_LOG_AGE, DEFAULT_LOG_BYTES, DEFAULT_REQUEST_KEY_AGE = 86400000, 67108864, 3600000

-- Return the names of the settings. A table of them would cost each step more.
local function setting_names()
  return 'paused', 'max_active', 'retention', 'log_level', 'log_age', 'log_bytes', 'request_key_age', 'fail_handler',
    'log_results', 'per_key', 'rate', 'key_rate', 'max_waiting', 'when_full', 'fair', 'shares'
end

-- Arguments per command: Lua's C stack limits unpack() to 8,000 values.
local CHUNK = 2000
-- Ms by which the clock may step back without a lead, as in src/dibs/storage/clock.py.
local TOLERANCE = 1000
-- The largest number that dibs stores.
local MAX_NUMBER = 2 ^ 53

-- This server process: the address of a C function in its memory, which is another one in another process (address space
-- randomisation). Why not INFO in each call: it takes 2 µs. A library of functions has another address than the scripts, and
-- the first letter, l or s, tells the two apart.
local PROCESS = sub('@engine', 1, 1) .. sub(string.rep('0', 12) .. string.match(tostring(redis.call), '%x+$'), -12)
-- µs by which the numbers of an incarnation are ahead of those of the incarnation before.
local JUMP = 3600000000

-- The names of the keys that most steps use. A join of a prefix and a name takes 600 instructions, and a step names 20 keys.
local KNOWN = {
  meta = true, waiting = true, active = true, outcomes = true, successors = true, priorities = true, leases = true,
  claim_tokens = true, log = true, ends = true, classes = true, class_ends = true, nothing = true,
}
-- The keys of the latest queues, by prefix; at most MAX_PREFIXES of them.
local MAX_PREFIXES = 64
local known_keys, prefixes = {}, 0

-- Return a table of the keys of a queue by name. The keys of a library outlive a call.
local function keys_of(prefix)
  local keys = known_keys[prefix]
  if keys then return keys end
  if prefixes == MAX_PREFIXES then known_keys, prefixes = {}, 0 end
  keys = setmetatable({}, {__index = function(known, name)
    local key = prefix .. name
    if KNOWN[name] then known[name] = key end
    return key
  end})
  known_keys[prefix], prefixes = keys, prefixes + 1
  return keys
end

local opened = {}
-- The time of the server; one for all queues of a script.
local server_time

-- Forget the state of the call before. The locals of a library outlive a call, those of a script do not.
local function begin_call()
  opened, server_time, reading.prefix = {}, nil, KEYS[1]
end

-- Return the time in ms and in µs, and the lead: the ms by which this time is ahead of the server's clock.
-- src/dibs/storage/clock.py has the same rule. `manual` is a manual time, '' for the server's clock; `highest` is the
-- highest time of the queue, and `stored` its stored lead.
local function clock(prefix, manual, highest, stored)
  if manual ~= '' then return math.max(tonumber(manual), highest), tonumber(manual) * 1000, 0 end
  server_time = server_time or call('TIME')
  local us = server_time[1] * 1000000 + server_time[2]
  local now, lead = math.floor(us / 1000), stored
  if now >= highest - TOLERANCE then
    lead = 0
  elseif now + lead < highest - TOLERANCE then
    lead = highest - now
  end
  if lead ~= stored then
    -- A script that only reads stores the lead, too: otherwise a queue that is only read would stand still. DEL is the
    -- first write, so that a full server stores the lead (see `commit`); it then also accepts the writes of this one
    -- step. pcall: on a server that refuses to write, the next step stores the lead.
    redis.pcall('DEL', prefix .. 'nothing')
    redis.pcall('HSET', prefix .. 'meta', 'time', pack('>I8I8', highest, lead))
  end
  return math.max(now + lead, highest), us + lead * 1000, lead
end

-- Return the rate in a setting: the µs between two starts, and the burst; nil if the setting is not set.
local function parse_rate(name, text)
  if not text or text == '' then return nil end
  local starts, per, burst = string.match(text, '^(%d+),(%d+),(%d+)$')
  if not starts then damaged('meta', name) end
  return {interval = math.ceil(tonumber(per) * 1000 / tonumber(starts)), burst = tonumber(burst)}
end

-- Read the settings of a queue that differ from their defaults.
local function read_settings(queue)
  local known = call('HMGET', queue.prefix .. 'meta', setting_names())
  local function number(i, default)
    if not known[i] or known[i] == '' then return default end
    return tonumber(known[i]) or damaged('meta', (select(i, setting_names())))
  end
  queue.paused, queue.max_active, queue.retention = known[1] == '1', number(2), known[3] or ',,,'
  queue.log_level, queue.log_age, queue.log_bytes = known[4] or 'runs', number(5, DEFAULT_LOG_AGE), number(6, DEFAULT_LOG_BYTES)
  queue.request_key_age, queue.fail_handler = number(7, DEFAULT_REQUEST_KEY_AGE), known[8] == '1'
  queue.log_results, queue.per_key = number(9, 0), number(10)
  queue.rate, queue.key_rate = parse_rate('rate', known[11]), parse_rate('key_rate', known[12])
  queue.max_waiting, queue.drops_new = number(13), known[14] == 'drop_new'
  queue.fair, queue.shares = known[15] == '1', known[16] ~= '' and known[16]
end

-- The position after the numbers in the field `numbers`.
local PROCESSES_AT = 42

-- Read the numbers of a queue from the field `numbers` of `meta`.
local function read_numbers(queue, text)
  if #text < PROCESSES_AT - 1 then damaged('meta', 'numbers') end
  local keyed, configured
  queue.number, queue.work, queue.ended, queue.log_size, queue.trimmed, queue.retrying, keyed, configured =
    unpack_from('>I7I7I7I7I7I4BB', text)
  if queue.number > MAX_NUMBER or keyed > 2 or configured > 7 then damaged('meta', 'numbers') end
  queue.keyed, queue.had_keys, queue.configured, queue.processes = keyed == 1, keyed > 0, configured % 2 == 1, sub(text, PROCESSES_AT)
  queue.has_output, queue.has_payloads = band(configured, 2) ~= 0, configured > 3
  local at = string.find(text, PROCESS, PROCESSES_AT, true)
  if at then queue.ahead = unpack_from('>I7', text, at + #PROCESS) end
end

-- The tables of a queue to which this step has added nothing. `own` makes its own.
local EMPTY = setmetatable({}, {__newindex = function() error('a table of all queues is read-only') end})

-- The settings that are not set, and the tables that most steps do not need.
local NEW_QUEUE = {__index = {
  plan = EMPTY, new_records = EMPTY, listed_counts = EMPTY, checked = EMPTY, batches = EMPTY, list_entries = EMPTY,
  events = EMPTY, ended_ids = EMPTY, retentions = EMPTY, retention = ',,,', log_level = 'runs', log_age = DEFAULT_LOG_AGE, log_bytes = DEFAULT_LOG_BYTES,
  request_key_age = DEFAULT_REQUEST_KEY_AGE, log_results = 0,
}}

-- Open a queue by the prefix of its keys. Its time and its numbers never step back. Fields of one step:
--
-- keys           the keys of the queue, by name
-- plan           planned writes, by key name: Redis type, and members with their values
-- batches        planned writes of many members of one key: kind, name, removes, args, kind, ... (plan_many)
-- new_records    id, record, id, record, ... of new waiting jobs
-- fields         read or planned values of hashes, by key name and id
-- listed_counts  changes of the number of listed jobs, by priority
-- list_entries   new entries of the list `due:P`, by priority
-- list_trims     number of entries to remove from the head of `due:P`, by priority; nil before a claim
-- proven         names of keys whose Redis type a read of this step has proven
-- checked        results of existence and size checks, by key name or priority
-- events         packed events for the log
-- retentions     resolved retentions, by kind and texts
-- ended_ids      ids that ended or changed their outcome
-- work_changed   true if a claim may now find more jobs
-- limit_reached  true if a claim took as many jobs as its limit
-- touched        keys of jobs whose lines or runs this step changes (storage/redis/lua/include/key_lines.lua); nil if none
-- ahead          µs by which the numbers are ahead of the time; nil before begin_incarnation
-- incarnation    the incarnation that this step begins in this queue; nil in almost every step
-- key_counts     changes of the number of waiting jobs with a key, by priority; nil if none
-- turns          the functions for turns of keys (storage/redis/lua/include/turns.lua); nil unless the queue is fair
-- payloads       the plan for large payloads (payload_plan); nil if the step changes none
-- allowances     what a claim may take of each key (storage/redis/lua/include/keyed_claim.lua); nil if it met none
local function open_queue(prefix, manual)
  if opened[prefix] then return opened[prefix] end
  reading.prefix = prefix
  local keys = keys_of(prefix)
  local known = call('HMGET', keys.meta, 'time', 'numbers')
  -- A table with these fields has room for 32, so that it need not grow.
  local queue = setmetatable({
    prefix = prefix, keys = keys, fields = {waiting = nil, active = nil, outcomes = nil},
    proven = {meta = true, waiting = nil, active = nil},
    number = 0, work = 0, ended = 0, log_size = 0, trimmed = 0, retrying = 0, keyed = false, had_keys = false, has_payloads = false,
    configured = false, processes = '', ahead = nil, now = 0, us = 0, lead = 0,
  }, NEW_QUEUE)
  if known[2] then read_numbers(queue, known[2]) end
  if queue.configured then read_settings(queue) end
  local highest, lead = 0, 0
  if known[1] then
    if #known[1] ~= 16 then damaged('meta', 'time') end
    highest, lead = unpack_from('>I8I8', known[1])
    if highest > MAX_NUMBER or lead > MAX_NUMBER then damaged('meta', 'time') end
  end
  local now, us, new_lead = clock(prefix, manual, highest, lead)
  queue.now, queue.us, queue.lead = now, math.max(us, now * 1000), new_lead
  opened[prefix] = queue
  return queue
end

-- Write the state of a queue, as open_queue reads it.
local function write_state(queue)
  call('HSET', queue.keys.meta, 'time', pack('>I8I8', queue.now, queue.lead), 'numbers',
    pack('>I7I7I7I7I7I4BB', queue.number, queue.work, queue.ended, queue.log_size, queue.trimmed, math.max(0, queue.retrying),
      queue.keyed and 1 or queue.had_keys and 2 or 0, (queue.configured and 1 or 0) + (queue.has_output and 2 or 0)
        + (queue.has_payloads and 4 or 0))
      .. queue.processes)
end

-- Begin the incarnation of this server process in a queue, which `commit` then writes, and return the µs by which its
-- numbers are ahead of the time, a whole number of ms. A replica that was promoted, and a server that was restarted, may
-- have lost the latest numbers. So the numbers are JUMP further ahead than those of its data (docs/explanation/contract.md,
-- Numbers after a loss).
--
-- The hash `PREFIX:incarnation` has the latest incarnation, also for a queue that was lost as a whole; in a cluster, each
-- queue has such a hash. A second_repl_offset above 0 is that of a former replica. A server may forbid INFO; then PROCESS
-- stands for the id.
local function begin_incarnation(queue)
  local in_cluster = string.sub(KEYS[#KEYS], -6) == 'moving'
  local key = (in_cluster and queue.prefix or string.match(queue.prefix, '^(.-:){')) .. 'incarnation'
  local info, known = redis.pcall('INFO', 'replication'), call('HMGET', key, 'id', 'ahead')
  info = type(info) == 'string' and info or ''
  local id, ahead = string.match(info, 'master_replid:(%x+)') or PROCESS, tonumber(known[2] or 0)
  if known[1] and known[1] ~= id or not known[1] and string.match(info, 'second_repl_offset:%d') then
    ahead = ahead + JUMP
  end
  queue.ahead, queue.incarnation = ahead, {key = key, id = id}
  local first = string.find(queue.processes, sub(PROCESS, 1, 1), 1, true) == 1 and 21 or 1
  queue.processes = sub(queue.processes, first, first + 19) .. PROCESS .. pack('>I7', ahead)
  return ahead
end

-- Return a number above every earlier number of this queue, and at least now in µs (docs/explanation/contract.md,
-- Numbers). Numbers of one step are consecutive, so the reply to an enqueue of new ids has only the first number.
local function next_number(queue)
  queue.number = math.max(queue.number + 1, queue.us + (queue.ahead or begin_incarnation(queue)))
  return queue.number
end

-- Return a whole number as text. Two numbers of at most 10 digits take 3,200 instructions, and one of 16 digits 5,300.
local function decimal(number)
  if number < 1000000 or number >= 2147483648000000 then return string.format('%.0f', number) end
  local high = math.floor(number / 1000000)
  return string.format('%d%06d', high, number - high * 1000000)
end

-- Return a table of a queue for additions of this step.
local function own(queue, name)
  local values = queue[name]
  if values == EMPTY then
    values = {}
    queue[name] = values
  end
  return values
end

-- Note an id that ended, or whose outcome changed.
local function note_end(queue, id)
  local ids = own(queue, 'ended_ids')
  ids[#ids + 1] = id
end

-- Return a small whole number as text; the most frequent ones cost no conversion.
local function small_text(number)
  return number == 1 and '1' or number == -1 and '-1' or string.format('%d', number)
end

-- Return the table of planned members of a key. A caller with many writes fills this table itself, for speed.
local function planned_members(queue, kind, name)
  local planned = queue.plan[name]
  if not planned then
    planned = {kind = kind, members = {}}
    own(queue, 'plan')[name] = planned
  end
  return planned.members
end

local function plan(queue, kind, name, member, value)
  planned_members(queue, kind, name)[member] = value
end

-- Plan the write of many members of one key. `args` are the arguments of the command after the key; with `removes` they
-- are the members to remove.
local function plan_many(queue, kind, name, removes, args)
  local batches = own(queue, 'batches')
  local n = #batches
  batches[n + 1], batches[n + 2], batches[n + 3], batches[n + 4] = kind, name, removes, args
end

-- Return the values of a hash that this step has read or planned, by id.
local function known_values(queue, name)
  local values = queue.fields[name]
  if not values then
    values = {}
    queue.fields[name] = values
  end
  return values
end

-- Return the value of an id in a hash, with the changes that this step has planned; false if the id is absent.
local function read_field(queue, name, id)
  reading.prefix = queue.prefix
  local values = known_values(queue, name)
  local value = values[id]
  if value == nil then
    value = call('HGET', queue.keys[name], id)
    values[id], queue.proven[name] = value, true
  end
  return value
end

-- Read the values of many ids in a hash with few commands, for later calls of read_field.
local function prefetch(queue, name, ids)
  local values = known_values(queue, name)
  queue.proven[name] = #ids > 0
  if #ids == 1 then
    values[ids[1]] = call('HGET', queue.keys[name], ids[1])
    return
  end
  for from = 1, #ids, CHUNK do
    local found = call('HMGET', queue.prefix .. name, unpack(ids, from, math.min(from + CHUNK - 1, #ids)))
    for i = 1, #found do values[ids[from + i - 1]] = found[i] end
  end
end

local FALSE_BY_DEFAULT = {__index = function() return false end}

-- Read the values of ids in a hash that often does not exist. For many ids one command finds out that it does not.
local function prefetch_if_any(queue, name, ids)
  if #ids < 10 or call('EXISTS', queue.prefix .. name) == 1 then return prefetch(queue, name, ids) end
  queue.fields[name], queue.proven[name] = setmetatable({}, FALSE_BY_DEFAULT), true
end

-- The hashes whose records may refer to a large payload (storage/redis/lua/include/payloads.lua).
local REFERRING = {waiting = true, active = true, successors = true, outcomes = true}

-- Return the plan for the large payloads of a queue. `replaced` has the records that this step replaces, by hash and id, `gone` the
-- references of other records that it removes, and `new` the new payloads by reference. A script that needs this table includes
-- payloads.lua; a claim does not, because a script of Redis 6.2 would take a sixth longer.
local function payload_plan(queue)
  local planned = queue.payloads
  if not planned then
    planned = {replaced = {}, gone = {}, new = {}}
    queue.payloads = planned
  end
  return planned
end

local function payload_key(queue, reference)
  return queue.prefix .. 'payload:' .. sub(reference, 1, 20)
end

-- Return whether the server has the payload of a reference.
local function has_payload(queue, reference)
  return redis.pcall('STRLEN', payload_key(queue, reference)) == (unpack_from('>I4', reference, 21))
end

-- Remember the record that this step replaces first, so that `commit` finds the payloads to which no record refers any longer.
local function remember_replaced(queue, name, id, text)
  local replaced = payload_plan(queue).replaced
  replaced[name] = replaced[name] or {}
  if replaced[name][id] == nil then replaced[name][id] = text end
end

-- Plan to set the value of an id in a hash; `value` false removes the id.
local function set_field(queue, name, id, value)
  if queue.has_payloads and REFERRING[name] then remember_replaced(queue, name, id, read_field(queue, name, id)) end
  known_values(queue, name)[id] = value
  plan(queue, 'hash', name, id, value)
end

-- Count the job of a waiting record, which may be nil or false, if it is retrying: 1 adds it, -1 takes it out.
local function count_retrying(queue, text, change)
  if is_retrying(text) then queue.retrying = queue.retrying + change end
end

-- Plan the record of a waiting job; false removes it. The caller has read the record that it replaces.
local function set_waiting(queue, id, text)
  count_retrying(queue, known_values(queue, 'waiting')[id], -1)
  count_retrying(queue, text, 1)
  set_field(queue, 'waiting', id, text)
end

-- Call a command with many arguments. Return its last reply.
local function send_chunked(command, key, args)
  if #args > 0 and #args <= CHUNK then return call(command, key, unpack(args)) end
  local reply
  for from = 1, #args, CHUNK do reply = call(command, key, unpack(args, from, math.min(from + CHUNK - 1, #args))) end
  return reply
end

local ADD = {hash = 'HSET', zset = 'ZADD', set = 'SADD', list = 'RPUSH'}
local REMOVE = {hash = 'HDEL', zset = 'ZREM', set = 'SREM'}

local function removals(planned)
  local args, n = {}, 0
  for member, value in pairs(planned.members) do
    if value == false then args[n + 1], n = member, n + 1 end
  end
  return args
end

local function additions(planned)
  local args, n, kind = {}, 0, planned.kind
  for member, value in pairs(planned.members) do
    if value == false then
      -- write_plan in storage/redis/lua/include/commit.lua removes members before it adds any.
    elseif kind == 'hash' then
      args[n + 1], args[n + 2], n = member, value, n + 2
    elseif kind == 'zset' then
      args[n + 1], args[n + 2], n = value, member, n + 2
    else
      args[n + 1], n = member, n + 1
    end
  end
  return args
end

-- Commands that succeed for one Redis type only. Their reply is a number, which takes 2,000 instructions less than that of
-- TYPE.
local SIZE = {hash = 'HLEN', zset = 'ZCARD', set = 'SCARD', list = 'LLEN'}

-- Raise DIBSTYPE if a key has another Redis type. storage/redis/network/errors.py reads the message.
local function expect_type(key, kind)
  if SIZE[kind] and type(redis.pcall(SIZE[kind], key)) == 'number' then return end
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    error('DIBSTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind, 0)
  end
end

-- Raise DIBSTYPE if a key of the queue has another Redis type, unless this step has read the key.
local function check_key(queue, name, kind)
  if not queue.proven[name] then expect_type(queue.keys[name], kind) end
end
