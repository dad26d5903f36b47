-- The output of ids (docs/explanation/contract.md, The output of a run).
--
-- The stream `output:ID` has an entry for each chunk: its id is the number of the report and the index in it. Field `h` has
-- I8 time, I4 attempt, I8 fence, I8 first, I8 revision, I4 + holder, and field `c` the chunk.
-- The hash `outputs` has for each id with output:
--
-- I8 begin, I8 cut, I4 cut_index, I4 bytes, I4 older: chunks before the number `begin` are those of the outcome, and
-- `older` are their bytes; the last chunk that was removed to keep the bound is cut-cut_index, 0-0 for none; `bytes` is
-- the size of all chunks. A flag in the field `numbers` of `meta` says whether a queue ever had output, so that others
-- pay nothing.

-- @include queue

local function read_output(queue, id)
  local text = queue.has_output and read_field(queue, 'outputs', id)
  if not text then return nil end
  if #text ~= 28 then damaged('outputs', id) end
  local begin, cut, cut_index, bytes, older = unpack_from('>I8I8I4I4I4', text)
  return {begin = begin, cut = cut, cut_index = cut_index, bytes = bytes, older = older}
end

-- Plan a command on the stream of an id. `commit` sends it after the planned writes.
local function plan_stream(queue, id, command, args)
  queue.stream_writes = queue.stream_writes or {}
  table.insert(queue.stream_writes, {key = queue.prefix .. 'output:' .. id, command = command, args = args})
end

local function check_streams(queue)
  for _, one in ipairs(queue.stream_writes) do expect_type(one.key, 'stream') end
end

local function write_streams(queue)
  for _, one in ipairs(queue.stream_writes) do
    if one.command == 'XADD' then
      for _, entry in ipairs(one.args) do call('XADD', one.key, entry[1], 'h', entry[2], 'c', entry[3]) end
    elseif one.command == 'UNLINK' then
      call('UNLINK', one.key)
    else
      send_chunked('XDEL', one.key, one.args)
    end
  end
end

local function drop_output(queue, id)
  if not read_output(queue, id) then return end
  set_field(queue, 'outputs', id, false)
  plan_stream(queue, id, 'UNLINK')
end

-- Store what is known of the output of an id; without a chunk, remove it.
local function store_output(queue, id, known)
  if known.bytes == 0 then return drop_output(queue, id) end
  set_field(queue, 'outputs', id, pack('>I8I8I4I4I4', known.begin, known.cut, known.cut_index, known.bytes, known.older))
end

-- Remove the chunks of the outcome. The caller stores what is known.
local function remove_older(queue, id, known)
  if known.older > 0 and known.older < known.bytes then
    local gone = {}
    for _, entry in ipairs(call('XRANGE', queue.prefix .. 'output:' .. id, '-', '(' .. decimal(known.begin) .. '-0')) do
      gone[#gone + 1] = entry[1]
    end
    if #gone > 0 then plan_stream(queue, id, 'XDEL', gone) end
  end
  known.bytes, known.older = known.bytes - known.older, 0
  if known.cut < known.begin then known.cut, known.cut_index = 0, 0 end
end

-- The current of an id ends: its chunks are those of the outcome now, if that is kept.
local function end_output(queue, id, is_kept)
  local known = read_output(queue, id)
  if not known then return end
  if not is_kept then return drop_output(queue, id) end
  remove_older(queue, id, known)
  known.older, known.begin = known.bytes, queue.number + 1
  store_output(queue, id, known)
end
