-- Large payloads: each lies in a key of its own, `payload:NAME`, and its job refers to it. So a claim and a settlement move a
-- small record. Redis 7 computes a hash of all bytes of each text in a script, and each text of 1 MB takes 1.2 ms of the server.
--
-- reference  c20 name, I4 size, in the place of the payload in data with the flag BY_REFERENCE (job_record.lua). The name is a
--            number of the queue. A payload never changes. It belongs to one record of `waiting`, `active`, `successors` or
--            `outcomes`, and goes in the step after which no record refers to it
--
-- A flag in the field `numbers` of `meta` says whether a queue ever had a large payload, so that others pay nothing.

-- @include fold
-- @include outcomes

-- The largest payload that lies in the record of its job.
local LARGE = 4096

-- Return the data at `at` in a text as a record keeps it: a large payload becomes a reference. The payload is written if a record
-- of this step refers to it in the end. `number` is its number; nil for a new one.
local function stored_data(queue, text, at, number)
  local from = #text - at > LARGE and payload_at(text, at)
  if not from or #text - from < LARGE then return sub(text, at) end
  local reference = string.format('%020.0f', number or next_number(queue)) .. pack('>I4', #text - from + 1)
  own(queue, 'new_payloads')[reference], queue.has_payloads = sub(text, from), true
  return string.char(string.byte(text, at) + BY_REFERENCE) .. sub(text, at + 1, from - 1) .. reference
end

local function payload_key(queue, reference)
  return queue.prefix .. 'payload:' .. sub(reference, 1, 20)
end

-- Raise DIBSDAMAGED if the payload of a waiting job is missing, so that no claim takes the job.
local function check_payload(queue, id, reference)
  if redis.pcall('STRLEN', payload_key(queue, reference)) ~= unpack_from('>I4', reference, 21) then damaged('job', id) end
end

-- Return the data of a record, which `part` and `id` name in an error, with its payload instead of a reference to it.
local function whole_data(queue, data, part, id)
  local flags = string.byte(data)
  if band(flags, BY_REFERENCE) == 0 then return data end
  local reference = sub(data, -REFERENCE_SIZE)
  local payload = queue.new_payloads[reference] or redis.pcall('GET', payload_key(queue, reference))
  reading.prefix = queue.prefix
  if type(payload) ~= 'string' or #payload ~= unpack_from('>I4', reference, 21) then damaged(part, id) end
  return string.char(flags - BY_REFERENCE) .. sub(data, 2, -REFERENCE_SIZE - 1) .. payload
end

local PARSE = {waiting = parse_job, active = parse_job, successors = parse_successor, outcomes = parse_outcome}
local PARTS = {waiting = 'job', active = 'job', successors = 'successor', outcomes = 'outcome'}

-- Return the data of a record in one of the hashes of PARSE if it has a reference, else nil. Few other records end as the size of a
-- payload of less than 16 MB does, with a zero byte before three others, and only those are parsed.
local function referring_data(name, id, text)
  if not text or string.byte(text, -4) ~= 0 then return nil end
  if name == 'outcomes' and is_kept(text) then return nil end
  local data = PARSE[name](id, text).data
  return data and band(string.byte(data), BY_REFERENCE) ~= 0 and data or nil
end

-- Return a record for a reader outside of the scripts, with its payload.
local function whole_record(queue, name, id, text)
  reading.prefix = queue.prefix
  local data = queue.has_payloads and referring_data(name, id, text)
  if not data then return text end
  return sub(text, 1, -#data - 1) .. whole_data(queue, data, PARTS[name], id)
end

-- Find the payloads that no record refers to after this step, and those to write.
local function find_payload_changes(queue)
  local gone, used, unused, new = own(queue, 'gone_payloads'), {}, {}, {}
  for name, olds in pairs(queue.replaced) do
    for id, old in pairs(olds) do
      local data = referring_data(name, id, known_values(queue, name)[id])
      if data then used[sub(data, -REFERENCE_SIZE)] = true end
      -- A damaged record can only be removed, and its payload is unknown.
      local ok, old_data = pcall(referring_data, name, id, old)
      if ok and old_data then gone[sub(old_data, -REFERENCE_SIZE)] = true end
    end
  end
  for reference in pairs(gone) do
    if not used[reference] then unused[#unused + 1] = payload_key(queue, reference) end
  end
  for reference, payload in pairs(queue.new_payloads) do
    if used[reference] then new[payload_key(queue, reference)] = payload end
  end
  queue.unused_keys, queue.payloads_by_key = unused, new
end

local function remove_payloads(queue)
  for _, key in ipairs(queue.unused_keys or EMPTY) do call('UNLINK', key) end
end

local function write_payloads(queue)
  for key, payload in pairs(queue.payloads_by_key or EMPTY) do call('SET', key, payload) end
end

-- Return a record from outside, which has its payload, as the hash `name` keeps it.
local function stored_record(queue, name, id, text)
  local data = #text > LARGE and PARSE[name](id, text).data
  return data and sub(text, 1, -#data - 1) .. stored_data(queue, data, 1) or text
end
