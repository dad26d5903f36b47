-- Write the version of the layout, unless a newer dibs has written a higher one.
--
-- KEYS[1]  key of the version
-- ARGV[1]  version
-- Returns  nil

if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then
  -- A full server accepts the writes after the first one, if that needs no memory (see `commit`).
  redis.call('DEL', KEYS[1])
  redis.call('SET', KEYS[1], ARGV[1])
end
