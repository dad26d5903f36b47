-- Make queues members of a group: the queues that one blocking claim waits for. A change of a member releases a blocking
-- claim of the group (release_groups in storage/redis/lua/include/commit.lua).
--
-- KEYS     prefixes of the queues' keys
-- ARGV[1]  now in ms, '' for the time of the server
-- ARGV[2]  key of the group
-- ARGV[3]  ms until the membership ends, unless the queue joins again
-- Returns  nil. A queue that was no member counts as changed, because the group has missed its earlier changes.

-- @include queue
-- @include groups

-- The most groups of a queue; the oldest ones end first.
local MAX_GROUPS = 16

-- As in `commit`: a full server accepts the writes after a DEL.
call('DEL', KEYS[1] .. 'nothing')
for _, prefix in ipairs(KEYS) do
  local queue = open_queue(prefix, ARGV[1])
  local joined, is_member = {ARGV[2] .. ' ' .. decimal(queue.now + tonumber(ARGV[3]))}, false
  for key, ends_at in string.gmatch(call('HGET', prefix .. 'meta', 'groups') or '', '(%S+) (%d+)') do
    local alive = tonumber(ends_at) > queue.now
    is_member = is_member or key == ARGV[2] and alive
    if alive and key ~= ARGV[2] and #joined < MAX_GROUPS then joined[#joined + 1] = key .. ' ' .. ends_at end
  end
  call('SADD', ARGV[2] .. ':members', prefix)
  call('HSET', prefix .. 'meta', 'groups', table.concat(joined, ' '))
  if not is_member then release_group(ARGV[2], prefix) end
  opened = {}
end
call('PEXPIRE', ARGV[2] .. ':members', ARGV[3])
