-- The values of the settings of a queue that are not set; the age of outcomes as in storage/redis/codec/data.py.

local DEFAULT_RETENTION = '3600000,604800000,3600000,f'
-- Ms, bytes and ms.
local DEFAULT_LOG_AGE, DEFAULT_LOG_BYTES, DEFAULT_REQUEST_KEY_AGE = 86400000, 67108864, 3600000
