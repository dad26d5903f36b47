-- Large payloads: each lies in a key of its own, `payload:NAME`, and its job refers to it. So a claim and a settlement move a
-- small record. Redis 7 computes a hash of all bytes of each text in a script, and each text of 1 MB takes 1.2 ms of the server.
--
-- reference  c20 name, I4 size, in the place of the payload in data with the flag BY_REFERENCE (job_record.lua). The name is a
--            random text of the client or a number of the queue. A payload never changes. It belongs to one record of
--            `waiting`, `active`, `successors` or `outcomes`, and goes in the step after which no record refers to it
--
-- The client of an enqueue sends the payloads ahead of the script, in the same request, so that they do not pass through it. They
-- expire after ten minutes unless the script stores a job that refers to them.
--
-- A flag in the field `numbers` of `meta` says whether a queue ever had a large payload, so that others pay nothing.

-- @include fold
-- @include outcomes

-- The largest payload that lies in the record of its job, as in storage/redis/codec/requests.py.
local LARGE = 4096

-- Note a payload that the client has sent ahead. Raise DIBSPAYLOAD if it is gone (storage/redis/network/errors.py).
local function note_sent(queue, reference)
  if not has_payload(queue, reference) then error('DIBSPAYLOAD a payload that was sent ahead of its job is gone', 0) end
  payload_plan(queue).new[reference], queue.has_payloads = true, true
end

-- Return the data at `at` in a text as a record keeps it: a large payload becomes a reference. The payload is written if a record
-- of this step refers to it in the end.
local function stored_data(queue, text, at)
  if string.byte(text, at) >= BY_REFERENCE then
    note_sent(queue, sub(text, -REFERENCE_SIZE))
    return sub(text, at)
  end
  local from = #text - at > LARGE and payload_at(text, at)
  if not from or #text - from < LARGE then return sub(text, at) end
  local reference = string.format('%020.0f', next_number(queue)) .. pack('>I4', #text - from + 1)
  payload_plan(queue).new[reference], queue.has_payloads = sub(text, from), true
  return string.char(string.byte(text, at) + BY_REFERENCE) .. sub(text, at + 1, from - 1) .. reference
end

-- Return the data of a record, which `part` and `id` name in an error, with its payload instead of a reference to it.
local function whole_data(queue, data, part, id)
  local flags = string.byte(data)
  if band(flags, BY_REFERENCE) == 0 then return data end
  local reference = sub(data, -REFERENCE_SIZE)
  local new = queue.payloads and queue.payloads.new[reference]
  local payload = type(new) == 'string' and new or redis.pcall('GET', payload_key(queue, reference))
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
  local planned, used, unused, written = queue.payloads, {}, {}, {}
  for name, olds in pairs(planned.replaced) do
    for id, old in pairs(olds) do
      local data = referring_data(name, id, known_values(queue, name)[id])
      if data then used[sub(data, -REFERENCE_SIZE)] = true end
      -- A damaged record can only be removed, and its payload is unknown.
      local ok, old_data = pcall(referring_data, name, id, old)
      if ok and old_data then planned.gone[sub(old_data, -REFERENCE_SIZE)] = true end
    end
  end
  for reference in pairs(planned.gone) do
    if not used[reference] then unused[#unused + 1] = payload_key(queue, reference) end
  end
  for reference, payload in pairs(planned.new) do
    if used[reference] then
      written[payload_key(queue, reference)] = payload
    elseif payload == true then
      unused[#unused + 1] = payload_key(queue, reference)
    end
  end
  planned.unused, planned.written = unused, written
end

local function remove_payloads(queue)
  for _, key in ipairs(queue.payloads.unused) do call('UNLINK', key) end
end

local function write_payloads(queue)
  for key, payload in pairs(queue.payloads.written) do
    if payload == true then call('PERSIST', key) else call('SET', key, payload) end
  end
end

-- Return a record from outside, which has its payload, as the hash `name` keeps it.
local function stored_record(queue, name, id, text)
  local data = #text > LARGE and PARSE[name](id, text).data
  return data and sub(text, 1, -#data - 1) .. stored_data(queue, data, 1) or text
end
