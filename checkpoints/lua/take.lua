-- Take the notices of a partition whose time has come. Who takes them has `hold` ms to settle them:
-- then they are there again, for a teller that died.
-- KEYS     1 outbox
-- ARGV     1 limit   2 hold in ms
-- Returns  {OK, packed notice, time in ms, …}, the longest overdue first; {FOREIGN, key}
local bad = foreign({'zset'})
if bad then return {'FOREIGN', bad} end
local now = clock()
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[1]))
for i = 1, #found, 2 do redis.call('ZADD', KEYS[1], int(now + tonumber(ARGV[2])), found[i]) end
table.insert(found, 1, 'OK')
return found
