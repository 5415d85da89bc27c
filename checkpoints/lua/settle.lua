-- Remove a notice, and put others in its place: those that could not be told yet.
-- KEYS     1 outbox
-- ARGV     1 packed notice   2.. delay in ms, packed notice for each that takes its place
-- Returns  {OK}; {NONE}: it was settled already, and nothing was put in its place; {FOREIGN, key}
local bad = foreign({'zset'})
if bad then return {'FOREIGN', bad} end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return {'NONE'} end
local now = clock()
redis.call('ZREM', KEYS[1], ARGV[1])
for i = 2, #ARGV, 2 do redis.call('ZADD', KEYS[1], int(now + tonumber(ARGV[i])), ARGV[i + 1]) end
return {'OK'}
